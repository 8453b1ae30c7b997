"""trtbuild.yaml: one file that describes a deployment.

Knows the fields, their defaults and their bounds. Does not know models: whether tp_size fits the heads is the
business of `parallel.py`, whether a scheme exists that of `names.py`.
"""

from __future__ import annotations

from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.names import GROUPED, QUANTIZATIONS, TARGETS, SmoothQuantMode

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
#: What SmoothQuant's authors recommend.
_ALPHA = 0.5
#: The field of a JSONL record that is read unless another is named.
_FIELD = "text"


class Section(BaseModel):
    """A part of trtbuild.yaml: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)


class Model(Section):
    """Where the model comes from."""

    path: str = Field(description="Hugging Face folder; a relative path is relative to trtbuild.yaml.")
    revision: str | None = Field(None, description="Hub commit the folder was downloaded from; recorded in manifests.")
    merge_lora: str | None = Field(
        None, description="LoRA adapter folder (PEFT) whose weights are added to the model's before anything else."
    )
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        "auto", description="dtype of unquantized tensors; auto keeps the source's (float32 becomes float16)."
    )


class Calibration(Section):
    """What is fed through the model to find activation ranges."""

    file: str | None = Field(None, description="Text, JSONL or safetensors (input_ids); empty: the built-in texts.")
    field: Annotated[str, Field(min_length=1)] = Field(
        _FIELD, description="Key of JSONL records that holds a text, a chat (role and content) or token ids."
    )
    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Samples are shuffled with this seed before max_samples are taken; empty: in their order."
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field("float32", description="dtype of the calibration forward.")
    feed: Literal["auto", "original", "quantized"] = Field(
        "auto", description="Which layer's outputs the next layer is calibrated on; auto is what suits the scheme."
    )
    max_samples: Positive | None = Field(None, description="At most this many samples are used; empty: 64.")
    max_length_tokens: Positive | None = Field(
        None, description="Longer samples are cut to this many tokens; empty: 512."
    )

    @model_validator(mode="after")
    def _field_needs_records(self) -> Calibration:
        if self.field != _FIELD and (self.file is None or Path(self.file).suffix != ".jsonl"):
            raise ValueError(
                f"field '{self.field}' applies to the records of a JSONL file, not to {self.file or 'the built-in texts'}"
            )
        return self


class Quantization(Section):
    """Number formats of weights, activations and KV cache."""

    scheme: str = Field("none", description=f"One of: {', '.join(QUANTIZATIONS)}.")
    kv_cache: Literal["auto", "fp8", "int8"] = Field("auto", description="KV cache dtype; auto is the model's dtype.")
    group_size: Literal[64, 128] | None = Field(
        None, description="Inputs that share an INT4 scale; empty: 128 where the model allows it, else 64."
    )
    smoothquant_alpha: Annotated[float, Field(ge=0, le=1)] = Field(
        _ALPHA, description="int8_smoothquant: how much of the range moves from inputs to weights."
    )
    smoothquant_mode: SmoothQuantMode = Field(
        "per_channel", description="int8_smoothquant: what has a scale; all but per_channel are for target tensorrt."
    )
    act_order: bool = Field(False, description="int4_gptq: round the columns of large inputs first.")
    exclude: tuple[str, ...] = Field(
        (),
        description="Patterns of Hugging Face modules that stay unquantized, e.g. '*.down_proj' or 'model.layers.1.*'.",
    )
    overrides: dict[str, str] = Field(
        {},
        description="Pattern of Hugging Face modules -> scheme of their own; the first that matches counts, after exclude.",
    )
    allow_unverified: bool = Field(
        False, description="Write layouts that no loader is known to take, or only doubtfully."
    )
    dequantize: bool = Field(
        False, description="Read a model that is quantized already as plain weights, with the error they have."
    )
    calibration: Calibration = Calibration()

    @model_validator(mode="after")
    def _known_overrides(self) -> Quantization:
        for pattern, name in self.overrides.items():
            _require_scheme(name, f" for {pattern}")
        return self

    @model_validator(mode="after")
    def _options_need_their_scheme(self) -> Quantization:
        used = {self.scheme, *self.overrides.values()}
        if self.act_order and "int4_gptq" not in used:
            raise ValueError(f"act_order applies to int4_gptq, not to '{self.scheme}'")
        chosen = {"alpha": self.smoothquant_alpha != _ALPHA, "mode": self.smoothquant_mode != "per_channel"}
        for key in (key for key, is_chosen in chosen.items() if is_chosen and "int8_smoothquant" not in used):
            raise ValueError(f"smoothquant_{key} applies to int8_smoothquant, not to '{self.scheme}'")
        return self

    @model_validator(mode="after")
    def _group_size_needs_groups(self) -> Quantization:
        if self.group_size is not None and not {self.scheme, *self.overrides.values()} & set(GROUPED):
            raise ValueError(
                f"group_size: scheme '{self.scheme}' has no groups of a chosen size; it applies to {', '.join(GROUPED)}"
            )
        return self

    @model_validator(mode="after")
    def _known_scheme(self) -> Quantization:
        _require_scheme(self.scheme)
        return self


def _require_scheme(name: str, where: str = "") -> None:
    if name not in QUANTIZATIONS:
        near = get_close_matches(name, QUANTIZATIONS, n=1)
        raise ValueError(
            f"unknown scheme '{name}'{where}"
            + (f", did you mean '{near[0]}'?" if near else f"; known: {', '.join(QUANTIZATIONS)}")
        )


class ParallelSection(Section):
    """How the model is cut over GPUs (ranks)."""

    tp_size: Positive = Field(1, description="Tensor parallel size.")
    pp_size: Positive = Field(1, description="Pipeline parallel size.")
    ep_size: Positive = Field(1, description="Expert parallel size (models with experts only).")
    embedding: Literal["replicated", "vocab", "hidden"] = Field(
        "replicated",
        description="Keep the embedding whole on every rank, or cut it over the vocabulary or the hidden size.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_context_parallelism(cls, data: Any) -> Any:
        if isinstance(data, dict) and "cp_size" in data:
            raise ValueError("context parallelism (cp_size) is not supported; use tp_size, pp_size or ep_size")
        return data


class Limits(Section):
    """What one server accepts at most."""

    max_batch_size: Positive | None = Field(
        None, description="Requests in one batch; empty: 256, or 16 for the target reference."
    )
    max_input_len: Positive | None = Field(
        None, description="Prompt of one request, tokens; empty: what max_seq_len and max_num_tokens leave."
    )
    max_seq_len: Positive | None = Field(None, description="Prompt plus answer, tokens; empty: the model's positions.")
    max_num_tokens: Positive | None = Field(
        None,
        description="Tokens processed in one step, over all requests; empty: 8192, or 512 for the target reference.",
    )
    opt_num_tokens: Positive | None = Field(
        None, description="Tokens per step that engine kernels are tuned for; empty: max_batch_size x max_beam_width."
    )
    max_beam_width: Positive = Field(1, description="Beams of one request.")


class KvCache(Section):
    """The paged KV cache."""

    tokens_per_block: Annotated[int, Field(ge=4)] = Field(32, description="Tokens in one block of the paged cache.")
    max_tokens: Positive | None = Field(
        None,
        description="Size of the pool in tokens; empty: what free_gpu_memory_fraction gives, "
        "for the target reference max_batch_size x max_seq_len, at most 16384.",
    )
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9,
        description="Share of the GPU memory that is free after the model was loaded; if max_tokens is given, the smaller counts.",
    )
    enable_block_reuse: bool = Field(True, description="Keep blocks of finished requests for prompts that begin alike.")
    host_cache_bytes: Annotated[int, Field(ge=0)] = Field(0, description="Host memory that blocks are moved to, bytes.")
    max_attention_window: tuple[Positive, ...] = Field(
        (), description="Attention window of each layer in tokens, repeated over the layers; empty: the model's."
    )


class Scheduling(Section):
    """How requests share the GPU; in-flight batching is always on."""

    policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = Field(
        "guaranteed_no_evict", description="Whether a running request can be paused for lack of KV cache blocks."
    )
    chunked_context: bool = Field(True, description="Process long prompts in pieces of max_num_tokens.")


#: A plugin's dtype; auto is the model's.
PluginDtype = Literal["auto", "float16", "bfloat16", "float32", "disable"]


class Engine(Section):
    """How `trtllm-build` builds (target tensorrt)."""

    workers: Positive | None = Field(None, description="Ranks built at a time; empty: one per visible GPU.")
    timing_cache: str | None = Field(
        None, description="Timing cache that is read when it exists, and written; empty: one beside the engine."
    )
    profiling_verbosity: Literal["layer_names_only", "detailed", "none"] = Field(
        "layer_names_only", description="What the engine tells a profiler."
    )
    log_level: Literal["error", "warning", "info", "verbose", "debug"] = Field("info", description="Of trtllm-build.")
    stall_timeout_s: Positive = Field(1800, description="A build that prints nothing for so many seconds is stopped.")
    monitor_memory: bool = Field(False, description="Print TensorRT's allocations; needs TensorRT 10.6.")
    logits_dtype: Literal["float16", "float32"] | None = Field(
        None, description="dtype of logits; empty: the checkpoint's."
    )
    gather_context_logits: bool = Field(False, description="Make the logits of prompts available.")
    gather_generation_logits: bool = Field(False, description="Make the logits of answers available.")
    gemm_plugin: Literal["auto", "float16", "bfloat16", "float32", "fp8", "nvfp4", "disable"] | None = Field(
        None, description="GEMM plugin; empty: auto for unquantized 16-bit models, nvfp4 for NVFP4, else disable."
    )
    gemm_swiglu_plugin: Literal["fp8", "disable"] = Field("disable", description="Fused FP8 SwiGLU; Hopper only.")
    low_latency_gemm_plugin: Literal["fp8", "disable"] = Field("disable", description="FP8 GEMM for small batches.")
    low_latency_gemm_swiglu_plugin: Literal["fp8", "disable"] = Field(
        "disable", description="Fused FP8 SwiGLU for small batches."
    )
    gemm_allreduce_plugin: Literal["float16", "bfloat16", "disable"] = Field(
        "disable", description="GEMM fused with the all-reduce behind it."
    )
    moe_plugin: PluginDtype = Field("auto", description="Plugin for experts.")
    context_fmha: bool = Field(True, description="Fused attention for prompts.")
    use_paged_context_fmha: bool = Field(
        True, description="Fused attention over paged blocks; KV cache reuse and chunked context need it."
    )
    use_fp8_context_fmha: bool | None = Field(
        None, description="FP8 fused attention; empty: on where weights and KV cache are FP8."
    )
    multiple_profiles: bool = Field(False, description="Tune for several numbers of tokens; the build takes longer.")
    reduce_fusion: bool = Field(False, description="Fuse all-reduce and norm; tp_size > 1.")
    user_buffer: bool = Field(False, description="Communicate without copies; needs reduce_fusion.")
    norm_quant_fusion: bool = Field(False, description="Fuse norm and quantization; NVFP4 Llama only.")
    use_fused_mlp: bool = Field(True, description="Compute gate and up in one GEMM.")
    pp_reduce_scatter: bool = Field(False, description="Reduce-scatter between pipeline stages; Mixtral only.")
    fast_build: bool = Field(False, description="Build faster, run slower; weights lie beside the engine.")
    strip_plan: bool = Field(False, description="Leave weights out of the engine; it is refitted from the checkpoint.")
    weight_streaming: bool = Field(
        False, description="Keep a part of the weights in host memory; needs gemm_plugin disable."
    )
    gpu_weights_percent: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Share of the weights that a server keeps on the GPU, 0 to 1; needs weight_streaming."
    )
    weight_sparsity: bool = Field(False, description="Use 2:4 sparse kernels; weights must be pruned so.")


class LlmApi(Section):
    """How the LLM API serves (target pytorch)."""

    attn_backend: Literal["TRTLLM", "FLASHINFER", "VANILLA"] = Field("TRTLLM", description="Attention kernels.")
    moe_backend: str | None = Field(None, description="Kernels for experts, e.g. CUTLASS; empty: TensorRT-LLM chooses.")
    cuda_graphs: bool = Field(True, description="Capture decoding in CUDA graphs.")
    cuda_graph_padding: bool = Field(True, description="Pad batches to the next captured size.")
    overlap_scheduler: bool = Field(True, description="Schedule the next step while this one runs.")
    attention_dp: bool = Field(False, description="Attention data parallel over the tensor parallel ranks.")
    stream_interval: Positive = Field(1, description="Tokens between two messages of a stream.")
    guided_decoding: Literal["xgrammar", "llguidance"] | None = Field(
        None, description="Backend for grammars and JSON."
    )
    extra: dict[str, Any] = Field(
        {}, description="Any other argument of the LLM API by its own name; checked against the version's table."
    )


class Speculative(Section):
    """Speculative decoding."""

    mode: Literal["none", "draft_target", "medusa", "eagle", "eagle3", "lookahead", "redrafter", "ngram", "mtp"] = (
        Field("none", description="Where draft tokens come from.")
    )
    max_draft_len: Positive | None = Field(None, description="Draft tokens of one step; empty: the draft model's own.")
    draft_model: str | None = Field(None, description="Folder of the draft model or heads.")
    lookahead: tuple[Positive, Positive, Positive] = Field(
        (4, 3, 4), description="Window, n-gram and verification set sizes of lookahead."
    )
    choices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] = Field(
        (), description="Tree of medusa or eagle as paths, e.g. [[0], [0, 0], [1]]; empty: TensorRT-LLM's own."
    )

    @model_validator(mode="after")
    def _choices_need_a_tree(self) -> Speculative:
        if self.choices and self.mode not in ("medusa", "eagle"):
            raise ValueError(f"choices apply to medusa and eagle, not to '{self.mode}'")
        return self


class Lora(Section):
    """LoRA adapters that are applied while serving; to add one to the weights see model.merge_lora."""

    adapters: tuple[str, ...] = Field((), description="PEFT folders; the first says which modules are adapted.")
    max_rank: Positive = Field(64, description="Largest rank of any adapter.")
    target_modules: tuple[str, ...] = Field(
        (), description="TensorRT-LLM's module names, e.g. attn_qkv; empty: the first adapter's."
    )
    device_cache_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="Share of free GPU memory for adapters."
    )
    host_cache_bytes: Annotated[int, Field(ge=0)] = Field(2**30, description="Host memory for adapters, bytes.")


class Serving(Section):
    """The Triton server and the text side of the deployment."""

    address: str = Field("127.0.0.1", description="Address the server binds.")
    http_port: Port = Field(8000, description="HTTP port; 0 picks a free one.")
    grpc_port: Port = Field(8001, description="gRPC port; 0 picks a free one.")
    metrics_port: Port = Field(8002, description="Metrics port; 0 picks a free one.")
    streaming: bool = Field(True, description="Decoupled models: answers can be streamed token by token.")
    preprocessing_instances: Positive = Field(1, description="Instances of preprocessing.")
    bls_instances: Positive = Field(2, description="Instances of tensorrt_llm_bls; each serves one request at a time.")
    chat_template: bool | Literal["messages"] = Field(
        False,
        description="Apply the chat template: true takes text_input for one user message, messages for a JSON list of messages.",
    )
    system_prompt: str | None = Field(None, description="System message put before it; needs chat_template.")
    add_special_tokens: bool = Field(True, description="Add BOS and the like to prompts that are not templated.")
    skip_special_tokens: bool = Field(True, description="Leave special tokens out of the answer.")
    stop_words: tuple[str, ...] = Field((), description="Words that end every answer, besides the request's own.")
    max_queue_size: Annotated[int, Field(ge=0)] = Field(0, description="Requests waiting at most; 0 is unlimited.")
    max_queue_delay_us: Annotated[int, Field(ge=0)] = Field(0, description="How long a batch may wait, microseconds.")
    queue_timeout_us: Annotated[int, Field(ge=0)] = Field(
        0, description="How long a request may wait, microseconds; 0 is for ever."
    )
    queue_timeout_action: Literal["reject", "delay"] = Field(
        "reject",
        description="What becomes of a request that waited for longer: an error, or its turn after all others.",
    )
    allow_timeout_override: bool = Field(
        False, description="Requests may shorten queue_timeout_us by their own timeout."
    )
    priority_levels: Annotated[int, Field(ge=0)] = Field(0, description="Levels of priority, 1 first; 0 is none.")
    default_priority_level: Annotated[int, Field(ge=0)] = Field(
        0, description="Level of requests that name none; empty or 0 is the last."
    )
    mode: Literal["leader", "orchestrator"] = Field(
        "leader", description="MPI processes of an engine: one per GPU, or one server that starts or is given workers."
    )
    gpu_device_ids: str | None = Field(
        None, description="GPUs of each instance of an engine, e.g. 0,1;2,3 for two; empty: TensorRT-LLM chooses."
    )
    participant_ids: str | None = Field(
        None, description="MPI ranks of the workers of each instance, e.g. 1;2; empty: the server starts them."
    )
    guided_decoding: Literal["xgrammar"] | None = Field(
        None, description="Grammars and JSON for engines; from 0.19 on."
    )
    xgrammar_tokenizer_info: str | None = Field(
        None, description="File with the tokenizer as XGrammar needs it: encoded_vocab, tokenizer_str, stop_token_ids."
    )

    @model_validator(mode="after")
    def _priorities(self) -> Serving:
        if self.default_priority_level > self.priority_levels:
            raise ValueError(
                f"default_priority_level={self.default_priority_level} exceeds priority_levels={self.priority_levels}"
            )
        return self

    @model_validator(mode="after")
    def _guided_decoding_needs_its_file(self) -> Serving:
        if (self.guided_decoding is None) != (self.xgrammar_tokenizer_info is None):
            raise ValueError("guided_decoding and xgrammar_tokenizer_info need each other")
        return self

    @model_validator(mode="after")
    def _system_prompt_needs_template(self) -> Serving:
        if self.system_prompt is not None and not self.chat_template:
            raise ValueError("system_prompt needs chat_template: true or messages")
        return self


class Hardware(Section):
    """The GPUs that will serve; what does not run or fit there is refused."""

    gpu: str | None = Field(None, description="Kind of GPU, e.g. h100, 'RTX 4090' or sm90; empty: not checked.")
    memory_bytes: Positive | None = Field(None, description="Memory of one GPU; empty: that of the kind of GPU.")
    count: Positive | None = Field(None, description="GPUs of one node; empty: as many as there are ranks.")
    price_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="For the cost of a million tokens; any currency."
    )

    @model_validator(mode="after")
    def _known_gpu(self) -> Hardware:
        if self.gpu is not None:
            from trtbuild.gpus import find_gpu

            find_gpu(self.gpu)
        return self


#: Finite: a limit of infinity would look like a gate and let everything through.
Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Distance = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Accuracy(Section):
    """Limits that a quantized checkpoint must keep, or nothing is built; without any it is not evaluated."""

    max_perplexity_ratio: Ratio | None = Field(
        None, description="Perplexity over that of the source, or the source's over it, at most."
    )
    max_mean_kl: Distance | None = Field(
        None, description="Mean KL divergence of the next token's distribution from the source's, nats, at most."
    )
    max_p99_kl: Distance | None = Field(None, description="99th percentile of the KL divergence, nats, at most.")
    min_top1_agreement: Share | None = Field(
        None, description="Share of tokens for which both find the same token most likely, at least."
    )
    max_layer_error: Distance | None = Field(
        None, description="Error of any layer's output, relative to what the layer adds to its input (RMS), at most."
    )
    file: str | None = Field(
        None, description="Held-out text, JSONL or safetensors (input_ids); empty: built-in texts in many languages."
    )
    max_samples: Positive = Field(32, description="At most this many samples are used.")
    max_length_tokens: Positive = Field(512, description="Longer samples are cut to this many tokens.")


class Deployment(Section):
    """The whole of trtbuild.yaml."""

    model: Model
    target: str = Field("reference", description=f"One of: {', '.join(TARGETS)}.")
    tensorrt_llm: str | None = Field(
        None,
        description="TensorRT-LLM release that will build and serve, e.g. 1.2.1 or 1.2; empty: the newest stable one that can.",
    )
    quantization: Quantization = Quantization()
    parallel: ParallelSection = ParallelSection()
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    scheduling: Scheduling = Scheduling()
    engine: Engine = Engine()
    llm_api: LlmApi = LlmApi()
    speculative: Speculative = Speculative()
    lora: Lora = Lora()
    serving: Serving = Serving()
    hardware: Hardware = Hardware()
    accuracy: Accuracy = Accuracy()

    @model_validator(mode="after")
    def _known_target(self) -> Deployment:
        require_target(self.target, ValueError)
        return self


def require_target(name: str, error: type[Exception] = UsageError) -> None:
    """Raise `error` unless there is such a target."""
    if name not in TARGETS:
        near = get_close_matches(name, TARGETS, n=1)
        raise error(
            f"unknown target '{name}'" + (f", did you mean '{near[0]}'?" if near else f"; known: {', '.join(TARGETS)}")
        )


def load(path: Path) -> Deployment:
    """Read and validate a trtbuild.yaml; `model.path` comes back absolute, and so do the files of samples.

    Raises:
        TrtbuildError: the file cannot be read.
        UsageError: it is not YAML, or a key or value is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrtbuildError(f"cannot read {path}: {error}", hint="name a trtbuild.yaml or a model folder") from error
    from trtbuild.yaml_text import parse_yaml  # a model folder needs no YAML

    data = parse_yaml(text, origin=str(path))
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}, not a mapping of sections", hint="see `trtbuild schema`")
    return parse(_with_absolute_paths(data, path.resolve().parent), origin=str(path))


def parse(data: dict[str, Any], *, origin: str) -> Deployment:
    """Validate a plain dictionary.

    Raises:
        UsageError: a key is unknown (the nearest known one is named) or a value is not allowed.
    """
    try:
        return Deployment.model_validate(data)
    except ValidationError as error:
        raise UsageError(
            f"{origin}: " + "; ".join(_explain(item) for item in error.errors()), hint="see `trtbuild schema`"
        ) from error


def _explain(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _keys_at(item["loc"][:-1])
        near = get_close_matches(str(item["loc"][-1]), known, n=1)
        return f"unknown key '{where}'" + (
            f", did you mean '{near[0]}'?" if near else f"; known here: {', '.join(known)}"
        )
    if item["type"] == "missing":
        return f"'{where}' is missing"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} = {item['input']!r}: {message[0].lower()}{message[1:]}"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    model: Any = Deployment
    for part in location:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


#: Fields that hold paths, which are relative to trtbuild.yaml.
_PATHS = (
    ("model", "path"), ("model", "merge_lora"), ("quantization", "calibration", "file"), ("accuracy", "file"),
    ("engine", "timing_cache"), ("speculative", "draft_model"), ("lora", "adapters"), ("serving", "xgrammar_tokenizer_info"),
)  # fmt: skip


def _with_absolute_paths(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return the file's data with every path absolute; what is not a path where one should be is left for the validation."""

    def absolute(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [absolute(item) for item in value]
        return str(base / Path(value).expanduser()) if isinstance(value, str) else value

    data = deepcopy(data)
    for *sections, key in _PATHS:
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(key) is not None:
            node[key] = absolute(node[key])
    return data
