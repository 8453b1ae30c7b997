"""Calibration: run the model on sample tokens and note the ranges of what it computes."""
