"""A mock of a Triton server with LLM models: gRPC, HTTP and an OpenAI-like endpoint over one seeded, recorded schedule."""
