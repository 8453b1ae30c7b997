"""The `reference` target: run a converted checkpoint on torch and transformers, behind TensorRT-LLM's tensors.

`model` turns a checkpoint into a transformers model, `engine` serves it with transformers' continuous batching and
paged KV cache, `static` serves those that it cannot, `factory` picks one of them, `tensors` and `reply` speak Triton's
tensors. Nothing here imports Triton.
"""
