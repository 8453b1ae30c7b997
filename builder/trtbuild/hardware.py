"""Which number format runs on which GPU, for each target: supported, impossible, or written down nowhere.

Knows schemes and KV caches by name. Does not know models: that a scheme has no experts is the business of `convert/fit.py`. Target
`reference` runs on the CPU and is never refused.

Sources: support matrix, 3.1 (table and notes) and 3.5; checkpoint specification 1.4.1 and 4.6 (what `trtllm-build` refuses on SM100 to 119).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from trtbuild.errors import UsageError, Way
from trtbuild.gpus import Gpu, find_gpu

State = Literal["supported", "impossible", "undocumented"]
#: Columns of the tables below: SM numbers that behave alike.
FAMILIES: dict[str, tuple[int, ...]] = {
    "Ampere": (80, 86), "Ada": (89,), "Hopper": (90,), "Blackwell": (100, 103), "RTX Blackwell": (120, 121),
}  # fmt: skip
#: TensorRT-LLM lists no older GPU; Volta was removed in 0.16.
OLDEST_SM = 80
#: SM number -> what its owner must know, whatever the format.
NOTES = {103: "SM103 needs the CUDA 13 build of TensorRT-LLM"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a format runs somewhere, and why not."""

    state: State
    why: str = ""


_YES = Verdict("supported")
_NO_FP8 = Verdict("impossible", "GPUs below SM89 have no FP8 matrix multiply")
_NO_FP4 = Verdict("impossible", "GPUs below SM100 have no FP4 matrix multiply")
_HOPPER_ROWS = Verdict("impossible", "FP8 with a scale per channel and token has kernels from SM90 on")
_HOPPER_BLOCKS = Verdict("impossible", "FP8 with block scales has kernels from SM90 on")
_BUILD_REFUSES = Verdict("impossible", "trtllm-build refuses it on SM100 to SM119")
_NO_W4A8 = Verdict("impossible", "4-bit weights with FP8 inputs have no kernels for SM120")
_NO_BLOCK_ENGINE = Verdict("impossible", "TensorRT engines have FP8 block scales for DeepSeek only")
_NO_UNIFIED = Verdict("impossible", "the PyTorch backend has no form of it that trtbuild writes")
_NO_INT8_KV = Verdict("impossible", "the PyTorch backend has no INT8 KV cache")
_BUILD_SILENT = Verdict("undocumented", "trtllm-build does not refuse it on SM120, and no document says that it works")
_ROWS_HOPPER_ONLY = Verdict("undocumented", "the documentation names Hopper only; there is code for newer GPUs")
_BLOCKS_120 = Verdict("undocumented", "the documentation lists no FP8 block scales for SM120; there is code for it")
_INT4_UP_TO_90 = Verdict(
    "undocumented", "the documentation lists 4-bit weights up to SM90; the kernels have newer branches"
)

Row = tuple[Verdict, Verdict, Verdict, Verdict, Verdict]
_EVERYWHERE: Row = (_YES,) * 5
_NOWHERE_IN_ENGINES: Row = (_NO_BLOCK_ENGINE,) * 5
_NOWHERE_UNIFIED: Row = (_NO_UNIFIED,) * 5
_FP8: Row = (_NO_FP8, _YES, _YES, _YES, _YES)
_NVFP4: Row = (_NO_FP4, _NO_FP4, _NO_FP4, _YES, _YES)
_ENGINE_INT: Row = (_YES, _YES, _YES, _BUILD_REFUSES, _BUILD_SILENT)
_UNIFIED_INT4: Row = (_YES, _YES, _YES, _INT4_UP_TO_90, _INT4_UP_TO_90)

#: Scheme -> target -> a verdict for each family. int4_gptq and int4_rtn are written in the form of AWQ, so they run where AWQ does.
SCHEMES: dict[str, dict[str, Row]] = {
    "none": {"tensorrt": _EVERYWHERE, "pytorch": _EVERYWHERE},
    "fp8": {"tensorrt": _FP8, "pytorch": _FP8},
    "fp8_per_channel_per_token": {
        "tensorrt": (_NO_FP8, _HOPPER_ROWS, _YES, _BUILD_REFUSES, _BUILD_SILENT),
        "pytorch": (_NO_FP8, _HOPPER_ROWS, _YES, _ROWS_HOPPER_ONLY, _ROWS_HOPPER_ONLY),
    },
    "fp8_block": {
        "tensorrt": _NOWHERE_IN_ENGINES,
        "pytorch": (_NO_FP8, _HOPPER_BLOCKS, _YES, _YES, _BLOCKS_120),
    },
    "int4_awq": {"tensorrt": _ENGINE_INT, "pytorch": _UNIFIED_INT4},
    "int4_gptq": {"tensorrt": _ENGINE_INT, "pytorch": _UNIFIED_INT4},
    "int4_rtn": {"tensorrt": _ENGINE_INT, "pytorch": _UNIFIED_INT4},
    "w4a8_awq": {
        "tensorrt": (_NO_FP8, _YES, _YES, _BUILD_REFUSES, _NO_W4A8),
        "pytorch": (_NO_FP8, _YES, _YES, _INT4_UP_TO_90, _NO_W4A8),
    },
    "int8_smoothquant": {"tensorrt": _ENGINE_INT, "pytorch": _NOWHERE_UNIFIED},
    "int8_weight_only": {"tensorrt": _ENGINE_INT, "pytorch": _NOWHERE_UNIFIED},
    "int4_weight_only": {"tensorrt": _ENGINE_INT, "pytorch": _NOWHERE_UNIFIED},
    "nvfp4": {"tensorrt": _NVFP4, "pytorch": _NVFP4},
}
#: KV cache dtype -> target -> a verdict for each family. FP8 is storage only, so Ampere has it.
KV_CACHES: dict[str, dict[str, Row]] = {
    "auto": {"tensorrt": _EVERYWHERE, "pytorch": _EVERYWHERE},
    "fp8": {"tensorrt": _EVERYWHERE, "pytorch": _EVERYWHERE},
    "int8": {"tensorrt": _ENGINE_INT, "pytorch": (_NO_INT8_KV,) * 5},
}
#: Scheme -> what to take instead, the nearest first: the same number of bits and kind of number before others, plain weights last.
NEAREST: dict[str, tuple[str, ...]] = {
    "none": (),
    "fp8": ("int4_awq", "none"),
    "fp8_per_channel_per_token": ("fp8", "int4_awq", "none"),
    "fp8_block": ("fp8_per_channel_per_token", "fp8", "int4_awq", "none"),
    "int4_awq": ("nvfp4", "fp8", "none"),
    "int4_gptq": ("nvfp4", "fp8", "none"),
    "int4_rtn": ("nvfp4", "fp8", "none"),
    "w4a8_awq": ("int4_awq", "nvfp4", "fp8", "none"),
    "int8_smoothquant": ("fp8", "int4_awq", "none"),
    "int8_weight_only": ("fp8_per_channel_per_token", "fp8", "int4_awq", "none"),
    "int4_weight_only": ("int4_awq", "nvfp4", "fp8", "none"),
    "nvfp4": ("fp8", "int4_awq", "none"),
}
NEAREST_KV: dict[str, tuple[str, ...]] = {"auto": (), "fp8": ("auto",), "int8": ("fp8", "auto")}


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two choices: what it is called, its option, its key in trtbuild.yaml, its tables."""

    word: str
    option: str
    place: str
    table: dict[str, dict[str, Row]]
    nearest: dict[str, tuple[str, ...]]


SCHEME = Kind("quantization", "--quantization", "quantization.scheme", SCHEMES, NEAREST)
KV_CACHE = Kind("KV cache", "--kv-cache", "quantization.kv_cache", KV_CACHES, NEAREST_KV)


def verdict(kind: Kind, name: str, *, target: str, sm: int) -> Verdict:
    """Return whether a format runs on an SM of the families for a target; for `reference` it always does."""
    row = kind.table[name].get(target, _EVERYWHERE)
    return next(cell for cell, numbers in zip(row, FAMILIES.values(), strict=True) if sm in numbers)


def nearest(kind: Kind, name: str, *, target: str, sm: int) -> Iterator[Way]:
    """Yield the formats that are documented to run there, the nearest first."""
    for other in kind.nearest[name]:
        if verdict(kind, other, target=target, sm=sm).state == "supported":
            yield Way(f"the nearest that does is {kind.option} {other}", {kind.place: other}, "format")


def require_listed(gpu: Gpu, *, hint: str = "", ways: Iterable[Way] = ()) -> None:
    """Return when TensorRT-LLM runs on a GPU.

    Args:
        gpu: that will serve.
        hint, ways: what helps otherwise.

    Raises:
        UsageError: it is older than all that TensorRT-LLM lists.
    """
    if gpu.sm < OLDEST_SM:
        raise UsageError(
            f"TensorRT-LLM does not run on {gpu}: it lists no GPU below SM{OLDEST_SM} (Volta was removed in 0.16)",
            hint=hint,
            ways=ways,
        )


def check_hardware(gpu: str | None, *, target: str, schemes: Iterable[str], kv_cache: str) -> list[str]:
    """Return warnings about formats that are not documented for a GPU.

    Args:
        gpu: a name of `gpus.GPUS` or an SM number; None checks nothing.
        target: "reference" runs on the CPU, so nothing is checked for it.
        schemes: what the weights will be.
        kv_cache: dtype of the KV cache.

    Raises:
        UsageError: a format cannot run there, with the nearest that can; or TensorRT-LLM has no such GPU.
    """
    if gpu is None or target == "reference":
        return []
    found = find_gpu(gpu, UsageError)
    require_listed(found, ways=[Way("--target reference runs on the CPU", {"target": "reference"})])
    notes = [note for scheme in dict.fromkeys(schemes) for note in _check(SCHEME, scheme, found, target)]
    notes += _check(KV_CACHE, kv_cache, found, target)
    return notes + ([NOTES[found.sm]] if found.sm in NOTES else [])


def _check(kind: Kind, name: str, gpu: Gpu, target: str) -> Iterator[str]:
    cell = verdict(kind, name, target=target, sm=gpu.sm)
    if cell.state == "impossible":
        raise UsageError(
            f"{kind.word} '{name}' does not run on {gpu} with target {target}: {cell.why}",
            ways=[*nearest(kind, name, target=target, sm=gpu.sm), *_elsewhere(kind, name, gpu)],
        )
    if cell.state == "undocumented":
        yield f"unverified: {kind.word} {name} on {gpu} with target {target}: {cell.why}"


def _elsewhere(kind: Kind, name: str, gpu: Gpu) -> Iterator[Way]:
    """Yield the targets whose software takes a format on this GPU."""
    for target in kind.table[name]:
        if verdict(kind, name, target=target, sm=gpu.sm).state == "supported":
            yield Way(f"{name} itself works with --target {target}", {"target": target}, "target")
