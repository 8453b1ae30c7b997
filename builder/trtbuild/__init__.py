"""trtbuild: from a Hugging Face folder to a measured Triton deployment of TensorRT-LLM."""

__version__ = "0.1.0"
