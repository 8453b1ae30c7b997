"""What is known about TensorRT-LLM: its releases, its command lines, its files. The only package that knows version numbers."""
