"""How much memory a deployment takes, on every rank, and what fits: formulas over headers and config.json; reads no weights, runs nothing."""
