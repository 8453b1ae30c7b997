"""The parameters of `tensorrt_llm`'s config.pbtxt that TensorRT-LLM's C++ backend reads, by release.

Source: Triton specification 1.8 (what is read, how text becomes a value, what holds instead), 1.7 (placeholders of the stock template) and
3.3 (when a parameter came). Nearly every read is wrapped so that a failure is a warning in the log and the default: `on_failure` says
where it is not. The backend reads no key that is not listed here; it passes over others without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtbuild.trtllm.versions import Evidence, Release, Span

#: How the backend turns the text into a value: bool is one of `BOOLEANS`; int, uint and size are the digits in front (stoi, stoul, stoull);
#: float is stof; ints is a list with commas; devices are lists with ";" between instances; trees are lists of lists, "{0,0},{0,1}".
Kind = Literal["bool", "int", "uint", "size", "float", "word", "path", "text", "ints", "devices", "trees"]
#: What becomes of a value that is missing, unfilled, empty or wrong. `default`: a warning in the server's log, and the default holds.
#: `refused`: the model does not load. `passed`: the text is handed on as it is. `ignored`: the key has no effect whatever it says.
Outcome = Literal["default", "refused", "passed", "ignored"]
#: The only spellings of a boolean.
BOOLEANS = {"True": True, "true": True, "TRUE": True, "1": True, "False": False, "false": False, "FALSE": False, "0": False}  # fmt: skip
SOURCE = "Triton specification 1.8"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of `parameters`.

    Attributes:
        name: the key.
        kind: what its text must be.
        default: what holds when nothing usable is given, in words where it is no value; "" for "not set".
        allowed: the words that are allowed; empty when any is.
        lowest: smallest number allowed, None when there is none.
        highest: largest number allowed; a share of 1.0 and more is refused where `highest_excluded`.
        highest_excluded: whether `highest` itself is too large.
        since: first release that reads it; None for one before the oldest that trtbuild knows.
        until: first release that no longer reads it.
        evidence: whether the span was read in source or concluded.
        key_required_since: first release that does not load without the key, whatever its value; None when it may be left out.
        on_failure: what becomes of a value that is unfilled or wrong.
        placeholder: name of the stock template's placeholder, where it is not the key.
        renamed_to: the key that took its place.
        note: what else there is to know.
    """

    name: str
    kind: Kind
    default: str = ""
    allowed: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    highest_excluded: bool = False
    since: str | None = None
    until: str | None = None
    evidence: Evidence = "known"
    key_required_since: str | None = None
    on_failure: Outcome = "default"
    placeholder: str = ""
    renamed_to: str = ""
    note: str = ""

    @property
    def span(self) -> Span:
        """The releases that read it."""
        return Span(self.since, self.until, self.evidence, SOURCE)

    def is_read_by(self, release: Release) -> bool:
        """Say whether a release reads it with an effect."""
        return self.on_failure != "ignored" and release.within(self.span)

    def is_key_required_by(self, release: Release) -> bool:
        """Say whether a release refuses to load without the key."""
        return self.key_required_since is not None and release.within(
            Span(self.key_required_since, self.until, self.evidence, SOURCE)
        )


_MODES = ("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle")
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
_P = Parameter

BACKEND_PARAMETERS: tuple[Parameter, ...] = (
    _P("gpt_model_type", "word", allowed=("V1", "v1", "inflight_batching", "inflight_fused_batching"), key_required_since="0.5.0",
       on_failure="refused", placeholder="batching_strategy", note="case counts; V1 and v1 are static batching, deprecated in mid-2025"),
    _P("gpt_model_path", "path", placeholder="engine_dir", note="without it: 'Both encoder and decoder model paths are empty'"),
    _P("encoder_model_path", "path", since="0.11.0", placeholder="encoder_engine_dir"),
    _P("max_beam_width", "int", "1", lowest=1, since="0.7.1"),
    _P("batch_scheduler_policy", "word", "guaranteed_no_evict", ("guaranteed_no_evict", "max_utilization"), since="0.5.0"),
    _P("max_tokens_in_paged_kv_cache", "int", lowest=1, since="0.5.0", note="the smaller of this and the share of memory holds"),
    _P("kv_cache_free_gpu_mem_fraction", "float", "0.9", lowest=0, highest=1, highest_excluded=True, since="0.5.0"),
    _P("cross_kv_cache_fraction", "float", lowest=0, highest=1, since="0.14.0", note="set on a decoder-only engine, an assertion fails"),
    _P("kv_cache_host_memory_bytes", "size", "0", lowest=0, since="0.10.0"),
    _P("kv_cache_onboard_blocks", "bool", "true", since="0.10.0"),
    _P("max_attention_window_size", "ints", lowest=1, since="0.7.1", note="one value, or one for each layer, repeated"),
    _P("sink_token_length", "int", lowest=0, since="0.10.0"),
    _P("enable_kv_cache_reuse", "bool", "true", since="0.7.1", note="the default was false in early releases; needs paged-context attention"),
    _P("enable_chunked_context", "bool", "false", since="0.8.0", note="needs paged-context attention"),
    _P("normalize_log_probs", "bool", "true", since="0.8.0"),
    _P("gpu_device_ids", "devices", since="0.8.0", note="several instances since 0.12; a wrong later entry cuts the list short without a word"),
    _P("participant_ids", "devices", since="0.13.0", note="required in orchestrator mode without spawning"),
    _P("num_nodes", "int", "1", lowest=1, since="0.19.0"),
    _P("executor_worker_path", "path", _WORKER, since="0.10.0", note="written as it is in the stock template"),
    _P("exclude_input_in_output", "bool", "false", since="0.7.1", note="answers that are not streamed only"),
    _P("cancellation_check_period_ms", "int", "100", lowest=1, since="0.10.0"),
    _P("stats_check_period_ms", "int", "100", lowest=1, since="0.10.0"),
    _P("iter_stats_max_iterations", "int", "1000", lowest=0, since="0.10.0"),
    _P("request_stats_max_iterations", "int", "0", lowest=0, since="0.10.0"),
    _P("recv_poll_period_ms", "int", "0", lowest=0, since="0.10.0", evidence="inferred", note="not in the stock template"),
    _P("decoding_mode", "word", "top_k_top_p, or beam_search for more than one beam", _MODES, since="0.9.0"),
    _P("medusa_choices", "trees", "mc_sim_7b_63", since="0.9.0"),
    _P("eagle_choices", "trees", "mc_sim_7b_63", since="0.16.0"),
    _P("lookahead_window_size", "uint", lowest=1, since="0.19.0", note="all three, when decoding_mode is lookahead"),
    _P("lookahead_ngram_size", "uint", lowest=1, since="0.19.0", note="all three, when decoding_mode is lookahead"),
    _P("lookahead_verification_set_size", "uint", lowest=1, since="0.19.0", note="all three, when decoding_mode is lookahead"),
    _P("speculative_decoding_fast_logits", "bool", "false", since="0.15.0", note="in orchestrator mode without spawning only"),
    _P("gpu_weights_percent", "float", "1.0", lowest=0, highest=1, since="0.10.0", note="of engines built with weight streaming"),
    _P("multi_block_mode", "bool", "true", since="0.12.0"),
    _P("enable_context_fmha_fp32_acc", "bool", "false", since="0.12.0"),
    _P("cuda_graph_mode", "bool", "false", since="0.15.0"),
    _P("cuda_graph_cache_size", "int", "0", lowest=0, since="0.15.0"),
    _P("lora_cache_max_adapter_size", "int", "64", lowest=1, since="0.9.0"),
    _P("lora_cache_optimal_adapter_size", "int", "8", lowest=1, since="0.9.0"),
    _P("lora_cache_gpu_memory_fraction", "float", "0.05", lowest=0, highest=1, since="0.9.0"),
    _P("lora_cache_host_memory_bytes", "size", "1073741824", lowest=0, since="0.9.0"),
    _P("lora_prefetch_dir", "path", since="0.19.0", on_failure="passed"),
    _P("tokenizer_dir", "path", since="0.19.0", key_required_since="0.19.0", note="for guided decoding of the Python variant"),
    _P("guided_decoding_backend", "word", "", ("xgrammar",), since="0.19.0", key_required_since="0.19.0",
       note="another word is refused once the info path is set"),
    _P("xgrammar_tokenizer_info_path", "path", since="0.19.0", key_required_since="0.19.0"),
    # Keys that a file may have and that do nothing.
    _P("FORCE_CPU_ONLY_INPUT_TENSORS", "text", on_failure="passed", note="means something to the Python variant only"),
    _P("enable_trt_overlap", "bool", on_failure="ignored", since="0.9.0", note="the Python variant refuses true"),
    _P("worker_path", "path", since="0.9.0", until="0.10.0", renamed_to="executor_worker_path",
       note="ignored later; the Python variant refuses it in orchestrator mode"),
    _P("max_num_sequences", "int", since="0.5.0", until="0.8.0"),
)  # fmt: skip

_BY_NAME = {parameter.name: parameter for parameter in BACKEND_PARAMETERS}
#: Keys whose placeholder in the stock template is written out: they have a fixed value there, or are not in it.
WITHOUT_PLACEHOLDER = frozenset(["executor_worker_path", "recv_poll_period_ms", "FORCE_CPU_ONLY_INPUT_TENSORS", "enable_trt_overlap"])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Renaming:
    """A parameter of one of the Python models beside the core that has another name since a release (Triton specification 3.3)."""

    model: str
    old: str
    new: str
    since: str
    evidence: Evidence = "known"


RENAMINGS = (
    Renaming("preprocessing", "visual_model_path", "multimodal_model_path", "0.19.0"),
    Renaming("tensorrt_llm", "worker_path", "executor_worker_path", "0.10.0"),
)


def find_parameter(name: str) -> Parameter | None:
    """Return a parameter by its key, None when no release of the backend ever read one of that name."""
    return _BY_NAME.get(name)


def parameters_of(release: Release) -> tuple[Parameter, ...]:
    """Return the parameters that a release reads with an effect."""
    return tuple(parameter for parameter in BACKEND_PARAMETERS if parameter.is_read_by(release))


def nearest(name: str, known: Sequence[str] | None = None) -> str | None:
    """Return the known key that a name is likely a misspelling of, None when none is near."""
    near = difflib.get_close_matches(name, known if known is not None else tuple(_BY_NAME), n=1, cutoff=0.7)
    return near[0] if near else None


def stock_placeholders(release: Release) -> tuple[str, ...]:
    """Return the placeholders in the parameters of the stock template of `tensorrt_llm`, all in quotes."""
    return tuple(
        parameter.placeholder or parameter.name
        for parameter in parameters_of(release)
        if parameter.name not in WITHOUT_PLACEHOLDER
    )
