"""What a quantized checkpoint is worth: compared with its source, as it lies on disk, one decoder layer at a time."""
