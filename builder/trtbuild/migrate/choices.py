"""Formats and modes that target pytorch does not have, and what is put in their place until somebody decides otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.gpus import Gpu
from trtbuild.hardware import KV_CACHE, SCHEME, Kind, verdict
from trtbuild.migrate.row import Row
from trtbuild.migrate.tables import SCHEMES
from trtbuild.trtllm.llm_speculative import ENGINE_ONLY

#: SM numbers that are asked when the GPU is not said.
_ANY = (90, 89, 80, 100, 120)


def scheme_row(old: str, scheme: str, gpu: Gpu | None) -> Row:
    """Return what becomes of a scheme."""
    new = _nearest(SCHEME, scheme, gpu)
    if new == scheme:
        return Row("taken", old, scheme, "quantization.scheme", scheme)
    note = (
        f"target pytorch does not serve {scheme}{f' on {gpu}' if gpu else ''}; the nearest is {new}, others: "
        f"{', '.join(name for name in SCHEME.nearest[scheme] if name != new)}. Quantize the original model again and evaluate it"
    )
    return Row("decide", old, scheme, "quantization.scheme", new, note)


def algo_row(old: str, algo: str, gpu: Gpu | None) -> Row:
    """Return what becomes of the format of an engine's weights."""
    if algo not in SCHEMES:
        return Row(
            "decide",
            old,
            algo,
            note="trtbuild has no such scheme: choose quantization.scheme and quantize the original model",
        )
    row = scheme_row(old, SCHEMES[algo], gpu)
    if algo == "W4A16_GPTQ" and row.verdict == "taken":
        note = "the PyTorch backend loads no GPTQ files; trtbuild's int4_gptq writes its codes in the form of AWQ. Quantize the original model"
        return Row("decide", old, algo, row.new, row.new_value, note)
    return Row(row.verdict, old, algo, row.new, row.new_value, row.note)


def kv_cache_row(old: str, value: str, gpu: Gpu | None) -> Row:
    """Return what becomes of the KV cache's format."""
    name = value.lower()
    if name not in KV_CACHE.table:
        return Row("decide", old, value, note="trtbuild has no such KV cache: choose quantization.kv_cache")
    new = _nearest(KV_CACHE, name, gpu)
    if new == name:
        return Row("taken", old, value, "quantization.kv_cache", new)
    return Row(
        "decide",
        old,
        value,
        "quantization.kv_cache",
        new,
        f"target pytorch has no {name} KV cache; the nearest is {new}",
    )


def mode_rows(old: str, mode: str) -> Iterator[Row]:
    """Yield what becomes of a mode of speculation."""
    if mode in ENGINE_ONLY:
        why, instead = ENGINE_ONLY[mode]
        yield Row("decide", old, mode, note=f"{why}; the nearest is speculative.mode {instead}")
    else:
        yield Row(
            "decide",
            old,
            mode,
            note=f"set speculative.mode {mode}, max_draft_len and draft_model: the folder of the draft model",
        )


def _nearest(kind: Kind, name: str, gpu: Gpu | None) -> str:
    """Return the nearest format that target pytorch serves on the GPU, or on any when none is said."""
    sms = (gpu.sm,) if gpu is not None else _ANY
    usable = [
        each
        for each in (name, *kind.nearest[name])
        if any(verdict(kind, each, target="pytorch", sm=sm).state != "impossible" for sm in sms)
    ]
    return usable[0]
