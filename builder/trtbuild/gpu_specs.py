"""What a kind of GPU has: memory, bandwidth, peak FLOPs, links. One row per variant; SM numbers stay in `gpus.py`.

Peaks are dense (no 2:4 sparsity) and in FLOPs per second; bandwidths in bytes per second. `links` is the sum of both directions, as
datasheets say it. `memory_bytes` is what CUDA reports as total, which is below the nominal size: ECC and the driver take a part.

Sources: the datasheet named in a row, by its title. `evidence` is about the memory: "known" rows were read in a published log
(named in the row), "inferred" ones are what CUDA is commonly seen to report and were not read in a document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trtbuild.gpus import GPUS, Gpu, find_gpu, refusal

Compute = Literal["fp16", "fp8", "int8", "fp4"]
_GIB = 2**30
_T = 10**12
_GB = 10**9


@dataclass(frozen=True)
class GpuSpec:
    """A variant of a GPU.

    Attributes:
        name: e.g. "H100 SXM".
        kind: its name in `gpus.GPUS`.
        words: what in a full product name tells it from other variants of the kind; the first row of a kind needs none.
        memory_bytes: that CUDA can use.
        bandwidth: of the memory, bytes/s.
        flops: dense peak per number format; a format that is missing is not computed in.
        nvlink: bytes/s, 0 without.
        pcie: bytes/s of the slot.
        source: datasheet.
        evidence: how sure the memory is.
    """

    name: str
    kind: str
    words: tuple[str, ...]
    memory_bytes: int
    bandwidth: int
    flops: dict[Compute, int]
    nvlink: int
    pcie: int
    source: str
    evidence: Literal["known", "inferred"]

    @property
    def sm(self) -> int:
        """Compute capability times ten."""
        return GPUS[self.kind]

    @property
    def link(self) -> int:
        """The faster way to another GPU of the node, bytes/s."""
        return self.nvlink or self.pcie


def _row(
    name: str, kind: str, words: str, gib: float, bandwidth: float, fp16: float, fp8: float, int8: float, fp4: float,
    nvlink: float, pcie: float, source: str, evidence: Literal["known", "inferred"] = "inferred",
) -> GpuSpec:  # fmt: skip
    peaks: dict[Compute, float] = {"fp16": fp16, "fp8": fp8, "int8": int8, "fp4": fp4}
    return GpuSpec(
        name, kind, tuple(words.split()), int(gib * _GIB), int(bandwidth * _GB),
        {key: int(value * _T) for key, value in peaks.items() if value}, int(nvlink * _GB), int(pcie * _GB), source, evidence,
    )  # fmt: skip


#: Name, kind, telling words, GiB usable, GB/s, dense TFLOPS in fp16, fp8, int8, fp4, NVLink GB/s, PCIe GB/s, source, evidence of the memory.
#: Of several variants of a kind the first is taken when a name does not tell.
SPECS: tuple[GpuSpec, ...] = (
    _row("A100 SXM 80GB", "a100", "sxm 80gb", 79.15, 2039, 312, 0, 624, 0, 600, 64, "NVIDIA A100 Tensor Core GPU datasheet"),
    _row("A100 SXM 40GB", "a100", "sxm 40gb", 39.39, 1555, 312, 0, 624, 0, 600, 64, "NVIDIA A100 Tensor Core GPU datasheet"),
    _row("A100 PCIe 80GB", "a100", "pcie 80gb", 79.15, 1935, 312, 0, 624, 0, 600, 64, "NVIDIA A100 Tensor Core GPU datasheet; NVLink is a bridge of two"),
    _row("A100 PCIe 40GB", "a100", "pcie 40gb", 39.39, 1555, 312, 0, 624, 0, 600, 64, "NVIDIA A100 Tensor Core GPU datasheet; NVLink is a bridge of two"),
    _row("A800 SXM", "a800", "sxm", 79.15, 2039, 312, 0, 624, 0, 400, 64, "NVIDIA A800 datasheet"),
    _row("A800 PCIe", "a800", "pcie", 79.15, 1935, 312, 0, 624, 0, 400, 64, "NVIDIA A800 datasheet; NVLink is a bridge of two"),
    _row("A30", "a30", "", 23.60, 933, 165, 0, 330, 0, 200, 64, "NVIDIA A30 datasheet; NVLink is a bridge of two"),
    _row("A10", "a10", "", 22.06, 600, 125, 0, 250, 0, 0, 64, "NVIDIA A10 datasheet"),
    _row("A10G", "a10g", "", 21.99, 600, 70, 0, 140, 0, 0, 64, "NVIDIA A10G product page"),
    _row("A40", "a40", "", 44.35, 696, 149.7, 0, 299.3, 0, 112.5, 64, "NVIDIA A40 datasheet; NVLink is a bridge of two"),
    _row("RTX A6000", "rtx_a6000", "", 47.40, 768, 154.8, 0, 309.7, 0, 112.5, 64, "NVIDIA Ampere GA102 GPU architecture paper, appendix C; NVLink is a bridge of two"),
    _row("RTX A5000", "rtx_a5000", "", 23.60, 768, 111.1, 0, 222.2, 0, 112.5, 64, "NVIDIA RTX A5000 datasheet, half of the figure with sparsity; NVLink is a bridge of two"),
    _row("RTX A4000", "rtx_a4000", "", 15.70, 448, 76.7, 0, 153.4, 0, 0, 64, "NVIDIA RTX A4000 datasheet, half of the figure with sparsity"),
    _row("RTX 3090", "rtx3090", "", 23.69, 936, 71, 0, 284, 0, 112.5, 64, "NVIDIA Ampere GA102 GPU architecture paper, appendix A; fp16 with fp32 accumulation; NVLink is a bridge of two"),
    _row("RTX 3080 10GB", "rtx3080", "10gb", 9.78, 760, 59.5, 0, 238, 0, 0, 64, "NVIDIA Ampere GA102 GPU architecture paper; fp16 with fp32 accumulation"),
    _row("L4", "l4", "", 22.03, 300, 121, 242.5, 242.5, 0, 0, 64, "NVIDIA L4 datasheet, half of the figures with sparsity"),
    _row("L40S", "l40s", "", 44.39, 864, 362, 733, 733, 0, 0, 64, "NVIDIA L40S datasheet"),
    _row("L40", "l40", "", 44.39, 864, 181, 362, 362, 0, 0, 64, "NVIDIA L40 datasheet"),
    _row("H100 SXM", "h100", "sxm hbm3", 79.10, 3350, 989.4, 1978.9, 1978.9, 0, 900, 128, "NVIDIA H100 Tensor Core GPU datasheet; memory: TensorRT-LLM's memory documentation", "known"),
    _row("H100 PCIe", "h100", "pcie", 79.11, 2000, 756, 1513, 1513, 0, 600, 128, "NVIDIA H100 Tensor Core GPU datasheet; NVLink is a bridge of two"),
    _row("H100 NVL", "h100", "nvl 94gb", 93.12, 3900, 835, 1671, 1671, 0, 600, 128, "NVIDIA H100 NVL datasheet"),
    _row("H800 SXM", "h800", "sxm", 79.10, 3350, 989.4, 1978.9, 1978.9, 0, 400, 128, "NVIDIA H800 datasheet"),
    _row("H800 PCIe", "h800", "pcie", 79.11, 2000, 756, 1513, 1513, 0, 400, 128, "NVIDIA H800 datasheet; NVLink is a bridge of two"),
    _row("H20", "h20", "", 95.00, 4000, 148, 296, 296, 0, 900, 128, "figures of system makers (inferred); NVIDIA publishes no datasheet"),
    _row("GH200 96GB", "gh200", "480gb", 94.50, 4000, 989.4, 1978.9, 1978.9, 0, 900, 128, "NVIDIA GH200 Grace Hopper Superchip datasheet; 480GB is the memory of the CPU"),
    _row("GH200 144GB", "gh200", "144gb", 139.80, 4900, 989.4, 1978.9, 1978.9, 0, 900, 128, "NVIDIA GH200 Grace Hopper Superchip datasheet"),
    _row("H200", "h200", "sxm", 139.81, 4800, 989.4, 1978.9, 1978.9, 0, 900, 128, "NVIDIA H200 Tensor Core GPU datasheet"),
    _row("H200 NVL", "h200", "nvl", 139.81, 4800, 835, 1671, 1671, 0, 900, 128, "NVIDIA H200 Tensor Core GPU datasheet, half of the figures with sparsity; NVLink is a bridge of two or four"),
    _row("B200", "b200", "", 178.35, 8000, 2250, 4500, 4500, 9000, 1800, 128, "NVIDIA DGX B200 datasheet, an eighth of the system, half of the figures with sparsity"),
    _row("B300", "b300", "", 267.0, 8000, 2250, 4500, 150, 13500, 1800, 256, "NVIDIA DGX B300 datasheet, an eighth of the system; fp4 as quoted dense (inferred)"),
    _row("GB200", "gb200", "", 184.0, 8000, 2500, 5000, 5000, 10000, 1800, 128, "NVIDIA GB200 NVL72 datasheet, a 72nd of the system, half of the figures with sparsity"),
    _row("GB300", "gb300", "", 276.0, 8000, 2500, 5000, 166, 15000, 1800, 256, "NVIDIA GB300 NVL72 datasheet, a 72nd of the system, half of the figures with sparsity; fp4 as quoted dense (inferred)"),
    _row("RTX 6000 Ada", "rtx_6000_ada", "", 47.37, 960, 364.2, 728.5, 728.5, 0, 0, 64, "NVIDIA RTX 6000 Ada Generation datasheet, half of the figures with sparsity"),
    _row("RTX 5000 Ada", "rtx_5000_ada", "", 31.50, 576, 261.1, 522.2, 522.2, 0, 0, 64, "NVIDIA RTX 5000 Ada Generation datasheet, half of the figures with sparsity"),
    _row("RTX PRO 6000 Blackwell", "rtx_pro_6000", "", 94.97, 1792, 503.8, 1007.6, 1007.6, 2015.2, 0, 128, "NVIDIA RTX Blackwell PRO GPU architecture paper (inferred where it gives AI TOPS only)"),
    _row("RTX PRO 6000 Blackwell Max-Q", "rtx_pro_6000", "max q", 94.97, 1792, 438.9, 877.9, 877.9, 1755.7, 0, 128, "NVIDIA RTX PRO 6000 Blackwell Max-Q datasheet (inferred: it gives AI TOPS only)"),
    _row("RTX PRO 5000 Blackwell", "rtx_pro_5000", "48gb", 47.40, 1344, 258, 516, 516, 1032, 0, 128, "NVIDIA RTX PRO 5000 Blackwell datasheet (inferred: it gives AI TOPS only)"),
    _row("RTX 4090", "rtx4090", "", 23.64, 1008, 165.2, 330.3, 660.6, 0, 0, 64, "NVIDIA Ada GPU architecture paper, appendix A; fp16 and fp8 with fp32 accumulation"),
    _row("RTX 4080", "rtx4080", "", 15.70, 716.8, 97.5, 194.9, 389.9, 0, 0, 64, "NVIDIA Ada GPU architecture paper, appendix A; fp16 and fp8 with fp32 accumulation"),
    _row("RTX 5090", "rtx5090", "", 31.84, 1792, 209.5, 419, 838, 1676, 0, 128, "NVIDIA RTX Blackwell GPU architecture paper; memory: NVIDIA/TensorRT-LLM#4275", "known"),
    _row("RTX 5080", "rtx5080", "", 15.47, 960, 112.6, 225.1, 450.2, 900.4, 0, 128, "NVIDIA RTX Blackwell GPU architecture paper; fp16 and fp8 with fp32 accumulation"),
)  # fmt: skip
_SPLIT = re.compile(r"[^a-z0-9]+")
_MEMORY = re.compile(r"(\d+)(gb|g)")
#: Words of product names that make another GPU of one, of which the plain row says nothing.
_OTHER = frozenset({"ti", "super", "laptop", "mobile", "max", "d"})


def find_spec(typed: str, error: type[Exception] = ValueError) -> GpuSpec | None:
    """Return the variant that a name means: "h100", "H100 NVL", "NVIDIA A100-SXM4-40GB"; None when only its SM number is known.

    Args:
        typed: what the user wrote.
        error: what to raise.

    Raises:
        error: the name is unknown (see `gpus.find_gpu`), or there is no such variant of it.
    """
    gpu: Gpu = find_gpu(typed, error)
    rows = [spec for spec in SPECS if spec.kind == gpu.name]
    words = {re.sub(r"^sxm\d$", "sxm", word) for word in _SPLIT.split(typed.lower())}
    rows = [spec for spec in rows if words & _OTHER <= set(spec.words)]
    if not rows:
        return None
    telling = words & {word for spec in rows for word in spec.words}
    sizes = {int(match[1]) for word in words if (match := _MEMORY.fullmatch(word))}
    of_form = [spec for spec in rows if telling - {f"{size}gb" for size in sizes} <= set(spec.words)]
    fitting = [spec for spec in of_form if all(_has(size, spec) for size in sizes)]
    if not fitting:  # a size is named: a form alone always fits, unless several are
        names = ", ".join(f"{spec.name} ({spec.memory_bytes / _GIB:.0f} GiB)" for spec in rows)
        asked = " or ".join(spec.name for spec in of_form) if len(of_form) < len(rows) else gpu.name
        what = f"{asked} with {min(sizes)} GB" if of_form else f"{gpu.name} of several forms at once"
        raise refusal(
            error,
            f"'{typed}' is no GPU that trtbuild knows: there is no {what}",
            f"there are {names}; for another one set hardware.memory_bytes beside hardware.gpu: {gpu.name}",
        )
    return fitting[0]


def _has(gigabytes: int, spec: GpuSpec) -> bool:
    """Say whether a size as products are called is that of a variant: what CUDA reports is at most a tenth below it."""
    return f"{gigabytes}gb" in spec.words or 0.9 * gigabytes * _GB <= spec.memory_bytes <= 1.08 * gigabytes * _GB
