"""Architectures: one table each. `registry.py` finds the table for a config."""
