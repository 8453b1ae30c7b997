"""What of a deployment the LLM API's PyTorch backend cannot serve. A check is a function: it yields notes, and raises for what cannot be.

Sources: LLM API specification 2.10, 3.1, 3.2, 3.4. Formats against GPUs are checked with the conversion (`trtbuild.hardware`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtbuild.errors import UsageError, Way
from trtbuild.targets.base import Job
from trtbuild.trtllm.llm_arg_types import NEWEST
from trtbuild.trtllm.llm_args import LlmArgs, Setting
from trtbuild.trtllm.llm_settings import Facts, runs_two_models, settings
from trtbuild.trtllm.llm_support import (
    DROPPED_NEWEST,
    EXPERTS,
    FORMATS,
    LATENT,
    LATENT_CHUNKED,
    LATENT_REUSE,
    LISTED,
    LISTED_NEWEST,
    NEVER,
    SAME_FORMAT,
    SLOW_EXPERTS,
)
from trtbuild.trtllm.rules import check_rules
from trtbuild.trtllm.serving_rules import ADAPTERS
from trtbuild.trtllm.versions import Feature, with_feature

Check = Callable[[Job], Iterator[str]]


def facts_of(job: Job) -> Facts:
    """Return what the arguments of a job follow from."""
    return Facts(job.deployment, job.release, job.limits, job.kv_cache_quant_algo)


def release(job: Job) -> Iterator[str]:
    """Refuse releases without the LLM API's PyTorch backend."""
    if not job.release.has(Feature.LLM_API):
        newest = [each.name for each in with_feature(Feature.LLM_API)]
        raise UsageError(
            f"TensorRT-LLM {job.release} has no PyTorch backend that serves Hugging Face folders (target pytorch)",
            hint=f"use one of {', '.join(newest)}",
            ways=[Way("use --target tensorrt", {"target": "tensorrt"})],
        )
    if job.release.evidence == "inferred" and job.release.note:
        yield f"TensorRT-LLM {job.release}: {job.release.note}"


def weights(job: Job) -> Iterator[str]:
    """Refuse formats of weights that the loader does not have."""
    if job.quant_algo in NEVER:
        why, instead = NEVER[job.quant_algo]
        raise UsageError(
            f"weights of format {job.quant_algo} cannot be served by the PyTorch backend: {why}",
            hint=f"the nearest is {instead}",
            ways=[Way(f"{job.quant_algo} itself works with --target tensorrt", {"target": "tensorrt"})],
        )
    life = FORMATS.get(job.quant_algo)
    if life is None or life.state(job.release) == "absent":
        known = ", ".join(str(name) for name, each in FORMATS.items() if name and each.state(job.release) == "present")
        raise UsageError(
            f"TensorRT-LLM {job.release}'s PyTorch backend does not load weights of format {job.quant_algo}",
            hint=f"it loads {known}",
        )
    yield from ()


def kv_cache(job: Job) -> Iterator[str]:
    """Refuse KV caches the backend does not have, and say what FP8 means without scales."""
    algo = job.kv_cache_quant_algo
    if algo == "INT8":
        raise UsageError(
            "the PyTorch backend has no INT8 KV cache",
            ways=[
                Way("use --kv-cache fp8", {"quantization.kv_cache": "fp8"}),
                Way("use --target tensorrt", {"target": "tensorrt"}),
            ],
        )
    if algo == "FP8":
        yield "the FP8 KV cache works without calibrated scales: TensorRT-LLM takes 1.0 for those it does not read"
    if algo == "NVFP4" and job.gpu is not None and job.gpu.sm not in (100, 103):
        raise UsageError(
            f"an NVFP4 KV cache does not run on {job.gpu}", hint="it needs SM100 or SM103; use --kv-cache fp8"
        )


def heads(job: Job) -> Iterator[str]:
    """Refuse sizes that do not divide the model."""
    job.parallel.check(job.dims)
    if job.deployment.llm_api.attention_dp and job.parallel.tp_size == 1:
        raise UsageError(
            "llm_api.attention_dp is on and parallel.tp_size is 1",
            hint="attention is spread over the ranks of tp_size; use 2 or more",
        )
    yield from ()


def speculation(job: Job) -> Iterator[str]:
    """Refuse what does not go together with speculation."""
    if job.deployment.speculative.mode == "none":
        return
    if job.limits.max_beam_width > 1:
        raise UsageError(
            f"limits.max_beam_width={job.limits.max_beam_width} and speculative.mode={job.deployment.speculative.mode}: "
            "the PyTorch backend has no beam search with speculation",
            hint="use max_beam_width 1, or speculative.mode none",
        )
    if runs_two_models(job.deployment, job.release) and job.deployment.llm_api.overlap_scheduler:
        yield "the overlap scheduler is switched off: it cannot follow a draft model that runs in steps of its own"
    if job.deployment.speculative.mode == "mtp":
        yield "speculative.mode mtp needs a model with layers for multi-token prediction; TensorRT-LLM checks that when it loads"


def experts(job: Job) -> Iterator[str]:
    """Refuse formats without kernels for experts, and kernels that do not have the format."""
    chosen, algo = job.deployment.llm_api.moe_backend, SAME_FORMAT.get(job.quant_algo, job.quant_algo)
    if not job.dims.num_experts:
        if chosen is not None:
            raise UsageError(
                f"llm_api.moe_backend={chosen}, and {job.dims.architecture} has no experts",
                hint="leave moe_backend empty",
            )
        return
    if algo == "W4A16_AWQ":
        raise UsageError(
            "the PyTorch backend has no kernels for experts with 4-bit weights and 16-bit inputs (W4A16_AWQ)",
            ways=[
                Way("use fp8 (SM89 and later)", {"quantization.scheme": "fp8"}),
                Way("w4a8_awq (SM89, SM90)", {"quantization.scheme": "w4a8_awq"}),
                Way("nvfp4 (SM100 and later)", {"quantization.scheme": "nvfp4"}),
                Way("int4_awq itself works with --target tensorrt", {"target": "tensorrt"}),
            ],
        )
    if algo == "MIXED_PRECISION" or chosen == SLOW_EXPERTS:
        return
    having = {
        name: sms[algo] for name, sms in EXPERTS.items() if algo in sms and (job.gpu is None or job.gpu.sm in sms[algo])
    }
    where = f" on {job.gpu}" if job.gpu is not None else ""
    backend = chosen if chosen not in (None, "AUTO") else "CUTLASS"
    if backend in having:
        return
    text = f"experts of format {algo or 'bfloat16'}{where}: {backend} has no kernels in 1.2-era source; these have: {', '.join(having) or 'none'}"
    if chosen in EXPERTS and having and NEWEST.state(job.release) == "absent":
        raise UsageError(f"llm_api.moe_backend={chosen}: {text}", hint=f"use llm_api.moe_backend {next(iter(having))}")
    yield f"unverified: {text}"


def graphs(job: Job) -> Iterator[str]:
    """Refuse sizes of CUDA graphs that contradict each other or the batch (1.6)."""
    given = {item.path: item.value for item in settings(facts_of(job)) if item.path[0] == "cuda_graph_config"}
    sizes, most = given.get(("cuda_graph_config", "batch_sizes")), given.get(("cuda_graph_config", "max_batch_size"))
    if sizes is not None:
        if not sizes or min(sizes) < 1 or sorted(set(sizes)) != sizes:
            raise UsageError(
                f"llm_api.extra.cuda_graph_config.batch_sizes={sizes} are not rising numbers from 1 on",
                hint="e.g. [1, 2, 4, 8]",
            )
        if most is not None and (most != max(sizes) or not job.release.has(Feature.CLEAR_GRAPH_SIZES)):
            raise UsageError(
                f"llm_api.extra.cuda_graph_config sets batch_sizes={sizes} and max_batch_size={most}",
                hint="they must agree, and in 1.0 not be given together: leave max_batch_size out",
            )
    largest = max(sizes) if sizes else most
    if largest is not None and largest > job.limits.max_batch_size:
        yield f"CUDA graphs up to {largest} requests are captured, and limits.max_batch_size={job.limits.max_batch_size}: the larger ones are never used"
    if largest is not None and largest < job.limits.max_batch_size:
        yield f"batches of more than {largest} requests run without CUDA graphs (limits.max_batch_size={job.limits.max_batch_size})"


def architecture(job: Job) -> Iterator[str]:
    """Say which architectures are not listed for the release."""
    name, is_newest = job.dims.architecture, NEWEST.state(job.release) == "present"
    if is_newest and name in DROPPED_NEWEST:
        raise UsageError(f"TensorRT-LLM {job.release} no longer has {name}", hint="use release 1.2.1")
    if name not in LISTED | (LISTED_NEWEST if is_newest else frozenset()):
        yield (
            f"unverified: {name} is not among the architectures that are documented for the PyTorch backend of {'mid 2026' if is_newest else '1.2'}; "
            "a server without it refuses to start"
        )


def latent_attention(job: Job) -> Iterator[str]:
    """Refuse what multi-head latent attention has no kernels for (3.4)."""
    if job.dims.architecture not in LATENT:
        return
    wanted = {
        "scheduling.chunked_context": (job.deployment.scheduling.chunked_context, LATENT_CHUNKED, "chunked prefill"),
        "kv_cache.enable_block_reuse": (job.deployment.kv_cache.enable_block_reuse, LATENT_REUSE, "reuse of KV blocks"),
    }
    for field, (is_on, sms, what) in wanted.items():
        if is_on and job.gpu is None:
            yield f"{what} of {job.dims.architecture} needs {', '.join(f'SM{sm}' for sm in sorted(sms))} ({field}); hardware.gpu is not said"
        elif is_on and job.gpu is not None and job.gpu.sm not in sms:
            raise UsageError(
                f"{what} of {job.dims.architecture} does not run on {job.gpu}",
                hint=f"set {field}: false; it needs {', '.join(f'SM{sm}' for sm in sorted(sms))}",
            )


def limits(job: Job) -> Iterator[str]:
    """Say which limits the LLM API has no argument for."""
    if job.deployment.limits.max_input_len is not None:
        yield (
            f"limits.max_input_len={job.deployment.limits.max_input_len} is not enforced: the PyTorch backend takes prompts up to "
            f"max_seq_len={job.limits.max_seq_len}"
        )


def adapters(job: Job) -> Iterator[str]:
    """Refuse LoRA adapters that are damaged, or larger than is reserved for."""
    check_rules(job, ADAPTERS)
    yield from ()


def arguments(job: Job) -> Iterator[str]:
    """Refuse arguments that the release does not have, and name those that are doubtful."""
    made: list[Setting] = settings(facts_of(job))
    args = LlmArgs(job.release)
    args.build(made)
    yield from args.notes(made)


#: In this order: what is most basic first.
CHECKS: tuple[Check, ...] = (
    release, weights, kv_cache, heads, experts, speculation, latent_attention, limits, adapters, arguments, graphs, architecture,
)  # fmt: skip
