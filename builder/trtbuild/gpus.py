"""GPU names a user may type, and the SM number (compute capability times ten) of each. Knows nothing about number formats.

Sources: support matrix, 3.5; NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from trtbuild.errors import TrtbuildError

#: Name -> SM number. Spelling, vendor words, memory size and form factor are free: see `find_gpu`.
GPUS: dict[str, int] = {
    "v100": 70, "t4": 75,
    "a100": 80, "a800": 80, "a30": 80,
    "a2": 86, "a10": 86, "a10g": 86, "a16": 86, "a40": 86, "rtx_a4000": 86, "rtx_a5000": 86, "rtx_a6000": 86,
    "rtx3060": 86, "rtx3070": 86, "rtx3080": 86, "rtx3090": 86,
    "l4": 89, "l40": 89, "l40s": 89, "l20": 89, "rtx_4000_ada": 89, "rtx_5000_ada": 89, "rtx_6000_ada": 89,
    "rtx4060": 89, "rtx4070": 89, "rtx4080": 89, "rtx4090": 89,
    "h100": 90, "h200": 90, "h20": 90, "h800": 90, "gh200": 90,
    "b200": 100, "gb200": 100,
    "b300": 103, "gb300": 103,
    "rtx_pro_4000": 120, "rtx_pro_5000": 120, "rtx_pro_6000": 120,
    "rtx5060": 120, "rtx5070": 120, "rtx5080": 120, "rtx5090": 120,
    "gb10": 121, "dgx_spark": 121,
}  # fmt: skip
#: Words of full product names that do not change the SM number.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|gpu|pcie|nvl|sxm\d?|hbm\d\w*|\d+gb?|ti|super|laptop|mobile|d|blackwell|workstation|server|max|q|edition|generation"
)
_SM = re.compile(r"(?:sm|compute)?(\d{2,3})[af]?")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        name: as in the table, or sm90.
        sm: compute capability times ten.
    """

    name: str
    sm: int

    def __str__(self) -> str:
        return self.name if self.name.startswith("sm") else f"{self.name} (SM{self.sm})"


def find_gpu(typed: str, error: type[Exception] = ValueError) -> Gpu:
    """Return the GPU that a name means: "h100", "RTX 4090", "NVIDIA A100-SXM4-80GB", or an SM number: "sm90", "sm_90a".

    Args:
        typed: what the user wrote.
        error: what to raise.

    Raises:
        error: the name is unknown; the nearest is named.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", typed.lower()) if word and not _NOISE.fullmatch(word)]
    squashed = "".join(words)
    by_key = {name.replace("_", ""): name for name in GPUS}
    if squashed in by_key:
        return Gpu(by_key[squashed], GPUS[by_key[squashed]])
    if (number := _SM.fullmatch(squashed)) and int(number[1]) in GPUS.values():
        return Gpu(f"sm{number[1]}", int(number[1]))
    near = get_close_matches(squashed, by_key, n=1)
    sms = ", ".join(f"sm{sm}" for sm in sorted(set(GPUS.values())))
    advice = "spelling, vendor and memory size are free" if near else f"known: {', '.join(GPUS)}"
    raise refusal(
        error,
        f"unknown GPU '{typed}'" + (f", did you mean '{by_key[near[0]]}'?" if near else ""),
        f"{advice}; an SM number will do too ({sms}), with hardware.memory_bytes for the memory",
    )


def refusal(error: type[Exception], message: str, hint: str) -> Exception:
    """Return an error that has a hint of its own where its kind has one, else both in one line."""
    return (
        error(message, hint=hint)
        if issubclass(error, TrtbuildError)
        else error(f"{message}; {hint}".replace("?;", "?"))
    )
