"""Quantization schemes: one class each, found by name through `trtbuild.names.QUANTIZATIONS`."""
