"""The `reference` target: run a converted checkpoint on torch and transformers, behind TensorRT-LLM's tensors.

`model` turns a checkpoint into a transformers model, `engine` serves it with transformers' continuous batching and
paged KV cache, `tensors` and `serving` speak Triton's tensors. Nothing here imports Triton.
"""
