"""The command line. One module per verb; a verb's module is imported only when that verb is used."""
