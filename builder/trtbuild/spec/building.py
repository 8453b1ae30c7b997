"""Sections of trtbuild.yaml: what a model is cut into and how an engine is built."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from trtbuild.spec.section import Positive, Section


class ParallelSection(Section, frozen=True):
    """How the model is cut over GPUs (ranks)."""

    tp_size: Annotated[Positive, Meta(description="Tensor parallel size.")] = 1
    pp_size: Annotated[Positive, Meta(description="Pipeline parallel size.")] = 1
    ep_size: Annotated[Positive, Meta(description="Expert parallel size (models with experts only).")] = 1
    embedding: Annotated[
        Literal["replicated", "vocab", "hidden"],
        Meta(description="Keep the embedding whole on every rank, or cut it over the vocabulary or the hidden size."),
    ] = "replicated"

    refused_keys: ClassVar[dict[str, str]] = {
        "cp_size": "context parallelism (cp_size) is not supported; use tp_size, pp_size or ep_size"
    }


class Limits(Section, frozen=True):
    """What one server accepts at most."""

    max_batch_size: Annotated[
        Positive | None, Meta(description="Requests in one batch; empty: 256, or 16 for the target reference.")
    ] = None
    max_input_len: Annotated[
        Positive | None,
        Meta(description="Prompt of one request, tokens; empty: what max_seq_len and max_num_tokens leave."),
    ] = None
    max_seq_len: Annotated[
        Positive | None, Meta(description="Prompt plus answer, tokens; empty: the model's positions.")
    ] = None
    max_num_tokens: Annotated[
        Positive | None,
        Meta(
            description="Tokens processed in one step, over all requests; empty: 8192, or 512 for the target reference."
        ),
    ] = None
    opt_num_tokens: Annotated[
        Positive | None,
        Meta(description="Tokens per step that engine kernels are tuned for; empty: max_batch_size x max_beam_width."),
    ] = None
    max_beam_width: Annotated[Positive, Meta(description="Beams of one request.")] = 1


#: A plugin's dtype; auto is the model's.
PluginDtype = Literal["auto", "float16", "bfloat16", "float32", "disable"]


class Engine(Section, frozen=True):
    """How `trtllm-build` builds (target tensorrt)."""

    workers: Annotated[Positive | None, Meta(description="Ranks built at a time; empty: one per visible GPU.")] = None
    timing_cache: Annotated[
        str | None,
        Meta(description="Timing cache that is read when it exists, and written; empty: one beside the engine."),
    ] = None
    profiling_verbosity: Annotated[
        Literal["layer_names_only", "detailed", "none"], Meta(description="What the engine tells a profiler.")
    ] = "layer_names_only"
    log_level: Annotated[
        Literal["error", "warning", "info", "verbose", "debug"], Meta(description="Of trtllm-build.")
    ] = "info"
    stall_timeout_s: Annotated[
        Positive, Meta(description="A build that prints nothing for so many seconds is stopped.")
    ] = 1800
    monitor_memory: Annotated[bool, Meta(description="Print TensorRT's allocations; needs TensorRT 10.6.")] = False
    logits_dtype: Annotated[
        Literal["float16", "float32"] | None, Meta(description="dtype of logits; empty: the checkpoint's.")
    ] = None
    gather_context_logits: Annotated[bool, Meta(description="Make the logits of prompts available.")] = False
    gather_generation_logits: Annotated[bool, Meta(description="Make the logits of answers available.")] = False
    gemm_plugin: Annotated[
        Literal["auto", "float16", "bfloat16", "float32", "fp8", "nvfp4", "disable"] | None,
        Meta(description="GEMM plugin; empty: auto for unquantized 16-bit models, nvfp4 for NVFP4, else disable."),
    ] = None
    gemm_swiglu_plugin: Annotated[Literal["fp8", "disable"], Meta(description="Fused FP8 SwiGLU; Hopper only.")] = (
        "disable"
    )
    low_latency_gemm_plugin: Annotated[Literal["fp8", "disable"], Meta(description="FP8 GEMM for small batches.")] = (
        "disable"
    )
    low_latency_gemm_swiglu_plugin: Annotated[
        Literal["fp8", "disable"], Meta(description="Fused FP8 SwiGLU for small batches.")
    ] = "disable"
    gemm_allreduce_plugin: Annotated[
        Literal["float16", "bfloat16", "disable"], Meta(description="GEMM fused with the all-reduce behind it.")
    ] = "disable"
    moe_plugin: Annotated[PluginDtype, Meta(description="Plugin for experts.")] = "auto"
    context_fmha: Annotated[bool, Meta(description="Fused attention for prompts.")] = True
    use_paged_context_fmha: Annotated[
        bool, Meta(description="Fused attention over paged blocks; KV cache reuse and chunked context need it.")
    ] = True
    use_fp8_context_fmha: Annotated[
        bool | None, Meta(description="FP8 fused attention; empty: on where weights and KV cache are FP8.")
    ] = None
    multiple_profiles: Annotated[
        bool, Meta(description="Tune for several numbers of tokens; the build takes longer.")
    ] = False
    reduce_fusion: Annotated[bool, Meta(description="Fuse all-reduce and norm; tp_size > 1.")] = False
    user_buffer: Annotated[bool, Meta(description="Communicate without copies; needs reduce_fusion.")] = False
    norm_quant_fusion: Annotated[bool, Meta(description="Fuse norm and quantization; NVFP4 Llama only.")] = False
    use_fused_mlp: Annotated[bool, Meta(description="Compute gate and up in one GEMM.")] = True
    pp_reduce_scatter: Annotated[bool, Meta(description="Reduce-scatter between pipeline stages; Mixtral only.")] = (
        False
    )
    fast_build: Annotated[bool, Meta(description="Build faster, run slower; weights lie beside the engine.")] = False
    strip_plan: Annotated[
        bool, Meta(description="Leave weights out of the engine; it is refitted from the checkpoint.")
    ] = False
    weight_streaming: Annotated[
        bool, Meta(description="Keep a part of the weights in host memory; needs gemm_plugin disable.")
    ] = False
    gpu_weights_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the weights that a server keeps on the GPU, 0 to 1; needs weight_streaming.",
        ),
    ] = 1.0
    weight_sparsity: Annotated[bool, Meta(description="Use 2:4 sparse kernels; weights must be pruned so.")] = False


class Speculative(Section, frozen=True):
    """Speculative decoding."""

    mode: Annotated[
        Literal["none", "draft_target", "medusa", "eagle", "eagle3", "lookahead", "redrafter", "ngram", "mtp"],
        Meta(description="Where draft tokens come from."),
    ] = "none"
    max_draft_len: Annotated[
        Positive | None, Meta(description="Draft tokens of one step; empty: the draft model's own.")
    ] = None
    draft_model: Annotated[str | None, Meta(description="Folder of the draft model or heads.")] = None
    lookahead: Annotated[
        tuple[Positive, Positive, Positive], Meta(description="Window, n-gram and verification set sizes of lookahead.")
    ] = (4, 3, 4)
    choices: Annotated[
        tuple[tuple[Annotated[int, Meta(ge=0)], ...], ...],
        Meta(description="Tree of medusa or eagle as paths, e.g. [[0], [0, 0], [1]]; empty: TensorRT-LLM's own."),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse a tree where there is none."""
        if self.choices and self.mode not in ("medusa", "eagle"):
            raise ValueError(f"choices apply to medusa and eagle, not to '{self.mode}'")


class Hardware(Section, frozen=True):
    """The GPUs that will serve; what does not run or fit there is refused."""

    gpu: Annotated[str | None, Meta(description="Kind of GPU, e.g. h100, 'RTX 4090' or sm90; empty: not checked.")] = (
        None
    )
    memory_bytes: Annotated[Positive | None, Meta(description="Memory of one GPU; empty: that of the kind of GPU.")] = (
        None
    )
    count: Annotated[Positive | None, Meta(description="GPUs of one node; empty: as many as there are ranks.")] = None
    price_per_gpu_hour: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="For the cost of a million tokens; any currency.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a kind of GPU that there is not."""
        if self.gpu is not None:
            from trtbuild.gpus import find_gpu

            find_gpu(self.gpu)
