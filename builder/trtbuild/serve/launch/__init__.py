"""How a repository is launched: one plan, and a table of ways to carry it out."""
