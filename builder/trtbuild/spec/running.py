"""Sections of trtbuild.yaml: how requests are scheduled and memory is shared while a model runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from trtbuild.spec.section import Positive, Section


class KvCache(Section, frozen=True):
    """The paged KV cache."""

    tokens_per_block: Annotated[int, Meta(ge=4, description="Tokens in one block of the paged cache.")] = 32
    max_tokens: Annotated[
        Positive | None,
        Meta(
            description="Size of the pool in tokens; empty: what free_gpu_memory_fraction gives, "
            "for the target reference max_batch_size x max_seq_len, at most 16384."
        ),
    ] = None
    free_gpu_memory_fraction: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Share of the GPU memory that is free after the model was loaded; if max_tokens is given, the smaller counts.",
        ),
    ] = 0.9
    enable_block_reuse: Annotated[
        bool, Meta(description="Keep blocks of finished requests for prompts that begin alike.")
    ] = True
    host_cache_bytes: Annotated[int, Meta(ge=0, description="Host memory that blocks are moved to, bytes.")] = 0
    max_attention_window: Annotated[
        tuple[Positive, ...],
        Meta(description="Attention window of each layer in tokens, repeated over the layers; empty: the model's."),
    ] = ()


class Scheduling(Section, frozen=True):
    """How requests share the GPU; in-flight batching is always on."""

    policy: Annotated[
        Literal["guaranteed_no_evict", "max_utilization", "static_batch"],
        Meta(description="Whether a running request can be paused for lack of KV cache blocks."),
    ] = "guaranteed_no_evict"
    chunked_context: Annotated[bool, Meta(description="Process long prompts in pieces of max_num_tokens.")] = True


class LlmApi(Section, frozen=True):
    """How the LLM API serves (target pytorch)."""

    attn_backend: Annotated[Literal["TRTLLM", "FLASHINFER", "VANILLA"], Meta(description="Attention kernels.")] = (
        "TRTLLM"
    )
    moe_backend: Annotated[
        str | None, Meta(description="Kernels for experts, e.g. CUTLASS; empty: TensorRT-LLM chooses.")
    ] = None
    cuda_graphs: Annotated[bool, Meta(description="Capture decoding in CUDA graphs.")] = True
    cuda_graph_padding: Annotated[bool, Meta(description="Pad batches to the next captured size.")] = True
    overlap_scheduler: Annotated[bool, Meta(description="Schedule the next step while this one runs.")] = True
    attention_dp: Annotated[bool, Meta(description="Attention data parallel over the tensor parallel ranks.")] = False
    stream_interval: Annotated[Positive, Meta(description="Tokens between two messages of a stream.")] = 1
    guided_decoding: Annotated[
        Literal["xgrammar", "llguidance"] | None, Meta(description="Backend for grammars and JSON.")
    ] = None
    extra: Annotated[
        dict[str, Any],
        Meta(description="Any other argument of the LLM API by its own name; checked against the version's table."),
    ] = field(default_factory=dict)


class Lora(Section, frozen=True):
    """LoRA adapters that are applied while serving; to add one to the weights see model.merge_lora."""

    adapters: Annotated[
        tuple[str, ...], Meta(description="PEFT folders; the first says which modules are adapted.")
    ] = ()
    max_rank: Annotated[Positive, Meta(description="Largest rank of any adapter.")] = 64
    target_modules: Annotated[
        tuple[str, ...], Meta(description="TensorRT-LLM's module names, e.g. attn_qkv; empty: the first adapter's.")
    ] = ()
    device_cache_fraction: Annotated[float, Meta(gt=0, lt=1, description="Share of free GPU memory for adapters.")] = (
        0.05
    )
    host_cache_bytes: Annotated[int, Meta(ge=0, description="Host memory for adapters, bytes.")] = 2**30
