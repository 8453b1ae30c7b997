"""Why a build failed, told from what `trtllm-build` printed and how it ended: a table of texts, causes and remedies.

Sources: #N are issues of NVIDIA/TensorRT-LLM, TRT of NVIDIA/TensorRT; EB, QZ, VC and SH are field reports; numbers are sections of the
checkpoint specification. The first row that fits counts, so the more special ones come first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from trtbuild.trtllm.build_log import is_trouble


@dataclass(frozen=True, slots=True)
class Known:
    """A failure that is known.

    Attributes:
        text: what the builder prints.
        cause: what it means.
        remedy: what to do.
        source: where it was seen.
    """

    text: re.Pattern[str]
    cause: str
    remedy: str
    source: str


def _known(text: str, cause: str, remedy: str, source: str) -> Known:
    return Known(re.compile(text, re.IGNORECASE), cause, remedy, source)


FAILURES: tuple[Known, ...] = (
    _known(
        r"unrecognized arguments|invalid choice|expected one argument|the following arguments are required",
        "it does not know an option of this release: it belongs to another one",
        "compare `trtllm-build --help` with docs/engines.md; set tensorrt_llm to the release that is installed, or use its container",
        "4.11",
    ),
    _known(
        r"No space left on device|Errno 28\b|Disk quota exceeded",
        "the disk is full",
        "free some space: engines take about as much as the checkpoint",
        "errno 28",
    ),
    _known(
        r"no CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver|libcuda\.so|NVML.*not found|"
        r"max_workers must be greater than 0|modulo by zero",
        "no GPU is visible to it",
        "start the container with --gpus all; look at CUDA_VISIBLE_DEVICES and nvidia-smi",
        "4.8: with zero GPUs the command fails",
    ),
    _known(
        r"CUDA driver version is insufficient|forward compatibility was attempted|unsupported display driver|system has unsupported|"
        r"cudaErrorInsufficientDriver|CUDA error: system not yet initialized",
        "the NVIDIA driver is too old for the CUDA of this release",
        "update the driver to what docs/engines.md lists for the release, or use an older release",
        "VC01; Triton specification 3.1",
    ),
    _known(
        r"no kernel image is available|unsupported SM|SM version .* not supported|not compiled for this GPU",
        "this build of TensorRT-LLM has no kernels for this GPU",
        "use a release that supports it, see docs/gpus.md",
        "VC04",
    ),
    _known(
        r"library version \S+ got|serialization (assertion|version)|undefined symbol|libnvinfer\S*: cannot open|"
        r"ImportError: .*tensorrt",
        "TensorRT and TensorRT-LLM do not belong together",
        "use NVIDIA's container of the release, and install nothing of TensorRT on top of it",
        "VC01; triton-inference-server/tensorrtllm_backend #194",
    ),
    _known(
        r"FP8.{0,60}(not supported|unsupported|requires|only supported)|fp8.{0,40}compute capability|Error Code 9|"
        r"Networks? with FP8|e4m3.{0,40}(not supported|unsupported)",
        "the GPU has no FP8",
        "set hardware.gpu so that trtbuild refuses it earlier; use int4_awq or no quantization",
        "EB18; #1428",
    ),
    _known(
        r"out ?of ?memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|insufficient memory on requested|"
        r"could not be allocated",
        "the GPU ran out of memory",
        "lower limits.max_num_tokens or limits.max_batch_size, build on an empty GPU, or raise parallel.tp_size; engine.workers: 1 does not help here",
        "EB06; #2139, #401",
    ),
    _known(
        r"std::bad_alloc|MemoryError|Cannot allocate memory",
        "the host ran out of memory",
        "set engine.workers: 1: each worker holds two to three times the file of its rank",
        "6.3; #2093, #102",
    ),
    _known(
        r"Required but not provided|Provided tensor names are different|KeyError: '(transformer|lm_head)\.",
        "the checkpoint lacks tensors that this release expects, or has others",
        "convert with the trtbuild that names this release; `trtbuild verify` compares checkpoint and source",
        "QZ23; #1104, #1109",
    ),
    _known(
        r"not divisible|must be a multiple|group[_ ]size",
        "a dimension does not divide: groups of INT4 scales must not straddle ranks",
        "use quantization.group_size: 64, or a smaller parallel.tp_size",
        "QZ06; #648, #811",
    ),
    _known(
        r"not the same shape|shape mismatch|shapes? .{0,40}(do(es)? not match|mismatch|incompatible)|size mismatch",
        "a tensor of the checkpoint has another shape than this release expects",
        "convert again with the same parallel section; `trtbuild verify` checks every shape",
        "LD15, LD16; #5912, #561",
    ),
    _known(
        r"Unsupported model architecture|is not supported in TensorRT[- ]LLM|KeyError: '\w+ForCausalLM'",
        "this release has no TensorRT class for the architecture",
        "use a later release, or --target pytorch",
        "VC09",
    ),
)  # fmt: skip
#: Signal -> what it usually means here.
SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "it was killed from outside, as the kernel does when the host (or the container) has no memory left",
        "give it more memory, or set engine.workers: 1: each worker holds two to three times the file of its rank",
    ),
    signal.SIGSEGV: (
        "it crashed in native code",
        "look for limits beyond the model's (#2089), and for a TensorRT that does not belong to the release",
    ),
    signal.SIGABRT: ("native code gave up; the reason is above in the log", "read the last lines of the log"),
    signal.SIGBUS: (
        "shared memory ran out",
        "start the container with --ipc=host or --shm-size=1g",
    ),
}
#: A worker that the OOM killer took shows in the parent as this (concurrent.futures).
_LOST_WORKER = re.compile(r"BrokenProcessPool|A process in the process pool was terminated abruptly")


def diagnose(status: int, lines: Iterable[str]) -> tuple[str, str] | None:
    """Return cause and remedy of a failed build, None when nothing of it is known.

    Args:
        status: as `subprocess` gives it; negative for a signal.
        lines: of stdout and stderr.
    """
    telling = [line for line in lines if is_trouble(line)]
    number = -status if status < 0 else status - 128
    for known in FAILURES:
        if any(known.text.search(line) for line in telling):
            return known.cause, known.remedy
    if number in SIGNALS:
        return SIGNALS[number]
    if any(_LOST_WORKER.search(line) for line in telling):
        return SIGNALS[signal.SIGKILL]
    return None
