"""Conversion: `plan` says everything from headers, `execute` does it in one streaming pass."""
