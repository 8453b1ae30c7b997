"""The demonstration: a real small model from a GGUF file to a measured Triton stream, through the commands a user types."""
