"""Number formats of weights: scales, codes and back. One module per format; they know numbers, not names, files or layouts."""
