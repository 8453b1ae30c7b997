"""Client and latency probe for LLMs behind Triton Inference Server."""
