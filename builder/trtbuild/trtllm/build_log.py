"""What `trtllm-build` prints while it works: which rank is how far, how much memory it took.

Lines as TensorRT-LLM 0.18 to 1.2 print them (build logs in NVIDIA/TensorRT-LLM #2324 and #3654):

    [TensorRT-LLM] TensorRT-LLM version: 1.2.1
    [11/20/2025-23:56:51] [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0
    [11/20/2025-23:57:13] [TRT] [I] Engine generation completed in 15.4544 seconds.
    [11/20/2025-23:57:13] [TRT] [I] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 8 MiB, GPU 19386 MiB
    [11/20/2025-23:57:20] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:22
    [11/20/2025-23:57:20] [TRT-LLM] [I] Build phase peak memory: 40294.03 MB, children: 16.96 MB
    [11/20/2025-23:57:20] [TRT-LLM] [I] Serializing engine to engine/rank0.engine...
    [11/20/2025-23:57:39] [TRT-LLM] [I] Engine serialized. Total time: 00:00:19
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_MIB = 2**20


@dataclass(slots=True)
class BuildProgress:
    """How far a build is. With several workers the lines of the ranks mix; only the last step names its rank.

    Attributes:
        version: of TensorRT-LLM, as the log says it; empty until then.
        started, built: networks whose build began, ended.
        build_seconds: TensorRT's part of each, in the order they ended.
        serialized: ranks whose engine is being written or was.
        peak_host_bytes: of the largest process, its children not counted; None when it was not said.
        peak_gpu_bytes: of TensorRT's allocators; None when it was not said.
        level_counts: how many lines were warnings and errors.
    """

    version: str = ""
    started: int = 0
    built: int = 0
    build_seconds: list[int] = field(default_factory=list)
    serialized: list[int] = field(default_factory=list)
    peak_host_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    level_counts: dict[str, int] = field(default_factory=lambda: {"W": 0, "E": 0})

    def feed(self, line: str) -> str | None:
        """Take in a line; return a sentence about it when it is a step worth showing."""
        if (level := _LEVEL.search(line)) and level[1] in self.level_counts:
            self.level_counts[level[1]] += 1
        for pattern, step in _STEPS:
            if match := pattern.search(line):
                return step(self, match)
        return None


def is_trouble(line: str) -> bool:
    """Say whether a line may tell why a build failed: an error of the loggers, or what no logger wrote."""
    match = _LEVEL.search(line)
    return match is None or match[1] in "EF"


def _version(progress: BuildProgress, match: re.Match[str]) -> str | None:
    is_new = not progress.version
    progress.version = progress.version or match[1]
    return f"TensorRT-LLM {match[1]}" if is_new else None


def _started(progress: BuildProgress, _match: re.Match[str]) -> str:
    progress.started += 1
    return f"building network {progress.started}"


def _total(progress: BuildProgress, match: re.Match[str]) -> str:
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    progress.built += 1
    progress.build_seconds.append(seconds)
    return f"network {progress.built} built in {seconds} s"


def _host(progress: BuildProgress, match: re.Match[str]) -> None:
    progress.peak_host_bytes = max(progress.peak_host_bytes or 0, int(float(match[1]) * _MIB))


def _gpu(progress: BuildProgress, match: re.Match[str]) -> None:
    progress.peak_gpu_bytes = max(progress.peak_gpu_bytes or 0, int(match[1]) * _MIB)


def _serializing(progress: BuildProgress, match: re.Match[str]) -> str:
    progress.serialized.append(int(match[1]))
    return f"rank {match[1]}: writing the engine"


_LEVEL = re.compile(r"\[(?:TRT-LLM|TRT|TensorRT-LLM)\] ?\[(\w)[A-Z]*\]")
_STEPS: tuple[tuple[re.Pattern[str], Callable[[BuildProgress, re.Match[str]], str | None]], ...] = (
    (re.compile(r"TensorRT[- ]LLM version: (\S+)"), _version),
    (re.compile(r"Build TensorRT engine "), _started),
    (re.compile(r"Total time of building (?!all engines).+: (\d+):(\d\d):(\d\d)"), _total),
    (re.compile(r"Build phase peak memory: ([\d.]+) MB"), _host),
    (re.compile(r"Peak memory usage of TRT CPU/GPU memory allocators: CPU \d+ MiB, GPU (\d+) MiB"), _gpu),
    (re.compile(r"Serializing engine to .*rank(\d+)\.engine"), _serializing),
)
