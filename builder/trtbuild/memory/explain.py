"""Where every value of a plan comes from: its origin, and the formula in words with the numbers of this deployment.

A row stands for one printed value. Rows of a rank are those of the one that takes the most before the KV pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from trtbuild.limits import ResolvedLimits
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.fit import needed_bytes
from trtbuild.memory.roofline import BAND, DECODE_SHARE, LINK_SHARE, PREFILL_SHARE, active_parameters, speed
from trtbuild.spec import KvCache

if TYPE_CHECKING:
    from trtbuild.memory.host import HostNeeds
    from trtbuild.memory.latent import LatentSize

Unit = Literal["bytes", "tokens", "requests", "blocks", "seconds", "tokens/s", ""]
#: Limits -> what they count.
_UNITS: dict[str, Unit] = {"max_batch_size": "requests"}


def row(name: str, value: Any, unit: Unit, origin: str, formula: str) -> dict[str, Any]:
    """Return one row; a value of None is one that is not known."""
    return {"name": name, "value": value, "unit": unit, "origin": origin, "formula": formula}


def of_limits(limits: ResolvedLimits) -> list[dict[str, Any]]:
    """Return the limits and who decided them."""
    return [
        row(f"limits.{name}", value.value, _UNITS.get(name, "tokens"), value.origin, value.why)
        for name, value in limits.origins.items()
    ]


def of_estimate(it: Estimate) -> list[dict[str, Any]]:
    """Return every value that the estimate of a deployment for GPUs rests on."""
    # How large the KV pool really is depends on the GPU; its own rows say so.
    limits = [each for each in of_limits(it.limits) if each["name"] != "limits.kv_tokens"]
    return [*limits, *_lengths(it), *_gpu(it), *_cache(it), *_rank(it), *_pool(it), *_speed(it)]


def _lengths(it: Estimate) -> Iterator[dict[str, Any]]:
    for name, value in (("input_len", it.lengths.input_len), ("output_len", it.lengths.output_len)):
        yield row(name, value.value, "tokens", value.origin, value.why)


def _gpu(it: Estimate) -> Iterator[dict[str, Any]]:
    given = it.deployment.hardware.memory_bytes
    source = f"{it.spec.name}: {it.spec.source} ({it.spec.evidence})" if it.spec else "no GPU is named"
    yield row("gpu_memory_bytes", it.memory_bytes, "bytes", "user" if given else "default", "hardware.memory_bytes" if given else source)  # fmt: skip


def _cache(it: Estimate) -> Iterator[dict[str, Any]]:
    """Yield a row for the layers of each window of the rank, and one for a draft model's."""
    heads = max(1, -(-it.dims.num_kv_heads // it.parallel.tp_size))
    for group in it.worst.own_cache.groups:
        window = "full attention" if group.window is None else f"a window of {group.window:,} tokens"
        yield row(
            f"KV bytes per token, {window}", group.token_bytes, "bytes", "model",
            f"2 (keys and values) x {group.layers} layers of the rank x {heads} kv heads of the rank x head size {it.dims.head_dim} "
            f"x {it.element:g} bytes" + ("" if group.window is None else f"; of each sequence the last {group.window:,} tokens are kept"),
        )  # fmt: skip
    if it.draft is not None and it.draft.cache is not None:
        own = it.draft.cache.token_bytes
        yield row(
            "KV bytes per token, draft model", own, "bytes", "model", "its layers beside those with full attention"
        )


def _rank(it: Estimate) -> Iterator[dict[str, Any]]:
    rank = it.worst
    for line in rank.lines:
        yield row(line.name, line.nbytes, "bytes", line.origin, f"{line.formula} ({line.ground})")
    alike = "the fullest" if len(it.ranks) > 1 else "the only one"
    yield row("before the KV cache", rank.fixed_bytes, "bytes", "rule", f"the sum of the lines above, on rank {rank.rank.index}, {alike}")  # fmt: skip


def _pool(it: Estimate) -> Iterator[dict[str, Any]]:
    cache, number = it.deployment.kv_cache, it.ranks.index(it.worst)
    is_default = cache.free_gpu_memory_fraction == KvCache().free_gpu_memory_fraction
    if it.pool.free_bytes:
        yield row("free after engine load", it.pool.free_bytes[number], "bytes", "rule", "gpu_memory_bytes less what is taken before the KV cache")  # fmt: skip
    yield row(
        "kv_cache.free_gpu_memory_fraction", cache.free_gpu_memory_fraction, "", "default" if is_default else "user",
        "share of free memory after engine load" + (f", divided among {it.copies} copies" if it.copies > 1 else ""),
    )  # fmt: skip
    rule = f"{it.pool.limited_by}, in whole blocks of {it.limits.tokens_per_block} tokens"
    rule += ", the smallest number of all ranks" if len(it.ranks) > 1 else ""
    for window, blocks in it.pool.blocks.items():
        kind = "full attention" if window is None else f"window {window:,}"
        name = "KV pool blocks" if len(it.pool.blocks) == 1 else f"KV pool blocks, {kind}"
        shares = "" if len(it.pool.blocks) == 1 else "; the pools share the memory as one sequence of full length does"
        yield row(name, blocks, "blocks", "rule", rule + shares)
    yield row("KV pool", it.pool.pool_bytes[number] * it.copies, "bytes", "rule", "blocks x tokens of a block x bytes per token, summed over windows" + (f", x {it.copies} copies" if it.copies > 1 else ""))  # fmt: skip
    yield row("requests of full length", it.sequences(it.limits.max_seq_len), "requests", "rule", f"blocks / blocks of a sequence of {it.limits.max_seq_len:,} tokens" + (f" / {it.limits.max_beam_width} beams" if it.limits.max_beam_width > 1 else ""))  # fmt: skip
    if adapters := it.adapter_bytes(number):
        yield row("LoRA adapters", adapters, "bytes", "user", f"lora.device_cache_fraction {it.deployment.lora.device_cache_fraction:g} of what the KV pool leaves")  # fmt: skip
    if (reserve := it.reserve_bytes(number)) is not None:
        yield row("stays free", reserve, "bytes", "rule", "free after engine load less KV pool and adapters")
    yield row("smallest GPU", needed_bytes(it), "bytes", "rule", "before the KV cache, and one sequence of full length / free_gpu_memory_fraction")  # fmt: skip


def _speed(it: Estimate) -> Iterator[dict[str, Any]]:
    found = speed(it)
    if found is None or it.spec is None:
        return
    band = f"to a factor of {BAND:g}"
    active = f"{active_parameters(it):,} weights that a token is multiplied with"
    peak = f"{it.spec.flops[found.compute] / 1e12:,.0f} TFLOPS ({found.compute}) x tp {it.parallel.tp_size} x {PREFILL_SHARE:g}"
    reads = f"{it.spec.bandwidth / 1e12:g} TB/s x {DECODE_SHARE:g}"
    link = (
        f", and 2 all-reduces per layer at {it.spec.link / 1e9:g} GB/s / 2 x {LINK_SHARE:g}"
        if it.parallel.tp_size > 1
        else ""
    )
    yield row("TTFT", found.ttft_s, "seconds", "rule", f"the longer of 2 x {active} x {found.input_len:,} tokens / {peak}, and reading the weights at {reads}{link}; {band}")  # fmt: skip
    yield row(
        "ITL alone",
        found.itl_s,
        "seconds",
        "rule",
        f"weights of a rank and the KV cache of one request / {reads}{link}; {band}",
    )
    yield row("ITL in a full batch", found.itl_full_s, "seconds", "rule", f"weights of a rank and the KV cache of {found.requests:,} requests / {reads}{link}; {band}")  # fmt: skip
    yield row("throughput", found.tokens_per_s, "tokens/s", "rule", f"{found.requests:,} requests of {found.input_len:,} + {found.output_len:,} tokens at once, their prefills included; {band}")  # fmt: skip


def of_host(host: HostNeeds) -> list[dict[str, Any]]:
    """Return what is needed beside the GPUs."""
    words: Mapping[str, tuple[Any, Unit, str]] = {
        "disk": (host.disk_bytes, "bytes", "tensors of the checkpoint, recipes while it is made, and of an engine its weights once more"),
        "conversion": (host.conversion_s, "seconds", "bytes that are read / the rate of docs/performance.md" + ("; calibration not counted" if host.calibrates else "")),
        "memory of the conversion": (host.conversion_bytes, "bytes", "the interpreter, and the budget of --memory or what a small model takes at most" + (", torch, and one decoder layer in float32" if host.calibrates else "")),
        "memory of the server": (host.server_bytes, "bytes", host.server_words),
    }  # fmt: skip
    rows = [row(name, value, unit, "rule", f"{formula} (estimate)") for name, (value, unit, formula) in words.items()]
    if host.build_bytes:
        rows.append(
            row("memory of trtllm-build", host.build_bytes[1], "bytes", "rule", f"{host.build_words} (estimate)")
        )
    return rows


def of_latent(it: LatentSize) -> list[dict[str, Any]]:
    """Return the values of a model that is sized only."""
    ranks = f"tp {it.tp_size} x pp {it.pp_size}"
    rows = [
        row("weights", it.weight_bytes, "bytes", "model", f"all tensors / {ranks}, as if everything were cut evenly (estimate)"),
        row("KV bytes per token", it.kv_bytes_per_token, "bytes", "model", f"(kv_lora_rank + qk_rope_head_dim) x layers / pp {it.pp_size} x {it.element:g} bytes; every tp rank keeps all of it"),
        row("gpu_memory_bytes", it.memory_bytes, "bytes", "default" if it.memory_bytes else "rule", it.gpu_words),
    ]  # fmt: skip
    if it.pool_bytes is not None:
        rows.append(row("KV pool", it.pool_bytes, "bytes", "rule", f"{it.fraction:g} of what weights, CUDA context and Triton's pool leave; activations and buffers are not counted"))  # fmt: skip
    return rows
