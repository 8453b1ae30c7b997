"""The options of `trtllm-build`: which field of trtbuild.yaml each comes from, its kind, and which releases have it.

Sources: checkpoint specification 4.1, 4.2, 4.3 and 4.11. `known`: seen in source or logs of both ends of its span (commands/build.py of
0.18 to 1.0 and of 1.1 to 1.2, plugin/plugin.py of 1.1, build logs of 0.17.0.post1 and 0.20.0 in TensorRT-LLM #2810 and elsewhere);
`inferred`: of one end only. Options that not every release has are rows of `versions.FEATURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtbuild.errors import UsageError
from trtbuild.trtllm.build_settings import settings
from trtbuild.trtllm.versions import FEATURES, Evidence, Feature, Release, with_feature

if TYPE_CHECKING:
    from trtbuild.targets.base import Job

#: path, integer, choice and dtype are followed by a value, a switch by enable or disable, a list by several; a flag stands alone.
Kind = Literal["path", "int", "choice", "dtype", "switch", "flag", "list"]
#: What an option is that the caller decides: folders, workers.
CALLER = "caller"
#: What an option is that always has the same value.
FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of trtllm-build.

    Attributes:
        name: without the dashes.
        kind: how its value is written.
        place: the field it comes from, or CALLER, or FIXED.
        evidence: whether both ends of its span were seen.
        value: what a FIXED option is set to.
        needs: what a release must have; None: every release with engines has it.
        neutral: for options that some releases lack: the value that means the same as leaving it out.
    """

    name: str
    kind: Kind
    place: str
    evidence: Evidence = "known"
    value: str | bool | None = None
    needs: Feature | None = None
    neutral: str | bool | None = None

    def is_in(self, release: Release) -> bool:
        """Say whether a release has it."""
        return self.needs is None or release.has(self.needs)


#: In the order in which they are written.
OPTIONS: tuple[Option, ...] = (
    Option("checkpoint_dir", "path", CALLER),
    Option("output_dir", "path", CALLER),
    Option("max_batch_size", "int", "limits.max_batch_size"),
    Option("max_input_len", "int", "limits.max_input_len"),
    Option("max_seq_len", "int", "limits.max_seq_len"),
    Option("max_beam_width", "int", "limits.max_beam_width"),
    Option("max_num_tokens", "int", "limits.max_num_tokens"),
    Option("opt_num_tokens", "int", "limits.opt_num_tokens"),
    Option("kv_cache_type", "choice", FIXED, value="paged"),
    Option("tokens_per_block", "int", "kv_cache.tokens_per_block"),
    Option("remove_input_padding", "switch", FIXED, value=True),
    Option("gpt_attention_plugin", "dtype", FIXED, value="auto"),
    Option("nccl_plugin", "dtype", FIXED, value="auto"),
    Option("gemm_plugin", "dtype", "engine.gemm_plugin"),
    Option("gemm_swiglu_plugin", "choice", "engine.gemm_swiglu_plugin"),
    Option("low_latency_gemm_plugin", "choice", "engine.low_latency_gemm_plugin"),
    Option("low_latency_gemm_swiglu_plugin", "choice", "engine.low_latency_gemm_swiglu_plugin"),
    Option("gemm_allreduce_plugin", "choice", "engine.gemm_allreduce_plugin", "inferred", needs=Feature.GEMM_ALLREDUCE, neutral="disable"),
    Option("moe_plugin", "dtype", "engine.moe_plugin"),
    Option("context_fmha", "switch", "engine.context_fmha"),
    Option("use_paged_context_fmha", "switch", "engine.use_paged_context_fmha"),
    Option("use_fp8_context_fmha", "switch", "engine.use_fp8_context_fmha"),
    Option("multiple_profiles", "switch", "engine.multiple_profiles"),
    Option("norm_quant_fusion", "switch", "engine.norm_quant_fusion", "inferred", needs=Feature.NORM_QUANT_FUSION, neutral=False),
    Option("reduce_fusion", "switch", "engine.reduce_fusion"),
    Option("user_buffer", "switch", "engine.user_buffer"),
    Option("use_fused_mlp", "switch", "engine.use_fused_mlp"),
    Option("pp_reduce_scatter", "switch", "engine.pp_reduce_scatter", "inferred"),
    Option("logits_dtype", "choice", "engine.logits_dtype"),
    Option("gather_context_logits", "flag", "engine.gather_context_logits"),
    Option("gather_generation_logits", "flag", "engine.gather_generation_logits"),
    Option("strip_plan", "flag", "engine.strip_plan"),
    Option("weight_sparsity", "flag", "engine.weight_sparsity"),
    Option("weight_streaming", "flag", "engine.weight_streaming"),
    Option("fast_build", "flag", "engine.fast_build"),
    Option("lora_plugin", "dtype", FIXED, value="disable"),
    Option("lora_dir", "list", "lora.adapters"),
    Option("lora_ckpt_source", "choice", FIXED),
    Option("lora_target_modules", "list", "lora.target_modules"),
    Option("max_lora_rank", "int", "lora.max_rank"),
    Option("speculative_decoding_mode", "choice", "speculative.mode", "inferred"),
    Option("max_draft_len", "int", "speculative.max_draft_len"),
    Option("profiling_verbosity", "choice", "engine.profiling_verbosity"),
    Option("monitor_memory", "flag", "engine.monitor_memory", "inferred"),
    Option("input_timing_cache", "path", CALLER),
    Option("output_timing_cache", "path", CALLER),
    Option("workers", "int", CALLER),
    Option("log_level", "choice", "engine.log_level"),
)  # fmt: skip
#: Fields of the same sections that trtllm-build has no option for -> who reads them.
ELSEWHERE: dict[str, str] = {
    "engine.workers": "becomes --workers, at most the number of visible GPUs",
    "engine.timing_cache": "becomes --input_timing_cache when it exists; what --output_timing_cache wrote is copied there",
    "engine.stall_timeout_s": "whoever watches the build",
    "engine.gpu_weights_percent": "the server: gpu_weights_percent",
    "speculative.draft_model": "the draft model is a deployment of its own; `trtbuild render --draft` serves both",
    "speculative.choices": "the server: medusa_choices or eagle_choices",
    "speculative.lookahead": "the server, and max_draft_len when it is empty",
    "lora.device_cache_fraction": "the server: lora_cache_gpu_memory_fraction",
    "lora.host_cache_bytes": "the server: lora_cache_host_memory_bytes",
}
#: Beside the engine when trtbuild.yaml names no other place.
TIMING_CACHE = "timing.cache"


def requested(job: Job) -> dict[str, Any]:
    """Return option -> value of everything that a deployment decides; None and empty where the option is left out.

    Raises:
        UsageError: the release has no option for a field that is set; the message names the releases that do.
        TrtbuildError: an adapter cannot be read.
    """
    derived = settings(job)
    values = {}
    for option in OPTIONS:
        if option.place == CALLER:
            continue
        plain = option.value if option.place == FIXED else _field(job, option.place)
        value = derived.get(option.name, plain)
        if option.is_in(job.release):
            values[option.name] = value
        elif value != option.neutral:
            raise _unavailable(option, job.release, value)
    return values


def arguments(
    job: Job,
    checkpoint: Path,
    output: Path,
    *,
    workers: int = 1,
    input_timing_cache: Path | None = None,
) -> list[str]:
    """Return the arguments of trtllm-build, without the program.

    Args:
        job: the resolved deployment.
        checkpoint: folder of the rank files.
        output: folder to write; the timing cache goes there too.
        workers: ranks built at a time.
        input_timing_cache: a timing cache to begin with.

    Raises:
        UsageError, TrtbuildError: see `requested`.
    """
    values: Mapping[str, Any] = {
        **requested(job),
        "checkpoint_dir": checkpoint,
        "output_dir": output,
        "input_timing_cache": input_timing_cache,
        "output_timing_cache": output / TIMING_CACHE,
        "workers": workers,
    }
    written: list[str] = []
    for option in OPTIONS:
        value = values.get(option.name)
        if value is not None:
            written += _WRITE[option.kind](f"--{option.name}", value)
    return written


def _field(job: Job, place: str) -> Any:
    section, _, name = place.partition(".")
    return getattr(getattr(job.deployment, section), name)


def _one(option: str, value: Any) -> list[str]:
    return [option, str(value)]


_WRITE: dict[Kind, Callable[[str, Any], list[str]]] = {
    "path": _one,
    "int": _one,
    "choice": _one,
    "dtype": _one,
    "switch": lambda option, value: [option, "enable" if value else "disable"],
    "flag": lambda option, value: [option] if value else [],
    "list": lambda option, value: [option, *map(str, value)] if value else [],
}


def _unavailable(option: Option, release: Release, value: Any) -> UsageError:
    assert option.needs is not None
    able = [each.name for each in with_feature(option.needs) if each.has(Feature.ENGINE)]
    return UsageError(
        f"{option.place}={value} needs trtllm-build --{option.name}, which TensorRT-LLM {release} does not have "
        f"({FEATURES[option.needs].evidence})",
        hint=f"set tensorrt_llm to one of {', '.join(able)}, or leave {option.place} at its default",
    )
