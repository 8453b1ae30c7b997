"""Texts of failed builds, as their reporters saw them, and the cause that is named for each."""

from __future__ import annotations

import pytest

from trtbuild.trtllm.build_failures import FAILURES, diagnose
from trtbuild.trtllm.build_log import BuildProgress

#: Line -> a word of the cause.
SEEN = [
    ("trtllm-build: error: unrecognized arguments: --gemm_allreduce_plugin disable", "option"),
    ("trtllm-build: error: argument --gemm_plugin: invalid choice: 'nvfp4'", "option"),
    ("OSError: [Errno 28] No space left on device: 'engine/rank0.engine'", "disk"),
    ("RuntimeError: No CUDA GPUs are available", "no GPU is visible"),
    ("ValueError: max_workers must be greater than 0", "no GPU is visible"),
    ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "driver"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no kernels for this GPU"),
    ("[TRT] [E] 6: The engine plan file is not compatible, expecting library version 9.2.0.4 got 9.2.0.5", "TensorRT"),
    ("ImportError: libnvinfer_plugin_tensorrt_llm.so: undefined symbol: _ZN8nvinfer1", "TensorRT"),
    ("[11/20/2025-23:57:20] [TRT] [E] 9: Networks with FP8 Q/DQ layers require hardware with FP8 support. Error Code 9", "FP8"),
    ("[11/07/2023-08:45:41] [TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)", "GPU ran out"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB", "GPU ran out"),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "host ran out"),
    ("RuntimeError: Required but not provided tensors:{'transformer.layers.0.attention.qkv.per_channel_scale'}", "lacks tensors"),
    ("RuntimeError: Provided tensor names are different from those expected by the engine.", "lacks tensors"),
    ("AssertionError: The value updated is not the same shape as the original. Updated: (10240,), original: (6400,)", "another shape"),
    ("ValueError: Weight shape is not divisible for block size", "does not divide"),
    ("AssertionError: Unsupported model architecture: FooForCausalLM", "no TensorRT class"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "cause"), SEEN)
def test_a_known_text_has_its_cause_and_a_remedy(line: str, cause: str) -> None:
    found = diagnose(1, ["[11/20/2025-23:56:51] [TRT-LLM] [I] Set dtype to float16.", line, "Aborted"])
    assert found is not None
    assert cause in found[0]
    assert found[1]


def test_every_known_failure_was_seen() -> None:
    assert [known.cause for known in FAILURES if not any(known.text.search(line) for line, _ in SEEN)] == []
    assert all(known.source for known in FAILURES)


def test_a_warning_about_a_skipped_tactic_is_no_cause() -> None:
    warning = (
        "[11/07/2023-08:45:41] [TRT] [W] Requested amount of GPU memory (33555480576 bytes) could not be allocated."
    )
    assert diagnose(1, [warning]) is None


@pytest.mark.parametrize("status", [-9, 137])
def test_the_kernel_s_kill_is_recognized_from_a_shell_too(status: int) -> None:
    found = diagnose(status, [])
    assert found is not None
    assert "no memory left" in found[0]


def test_a_lost_worker_counts_as_killed() -> None:
    found = diagnose(1, ["concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated"])
    assert found is not None
    assert "no memory left" in found[0]


def test_progress_is_read_from_the_lines_of_a_real_build() -> None:
    steps = BuildProgress()
    stamp = "[08/27/2025-08:22:30]"
    shown = [
        steps.feed(line)
        for line in (
            "[TensorRT-LLM] TensorRT-LLM version: 0.20.0",
            f"{stamp} [TRT-LLM] [W] Overriding paged_state to False",
            f"{stamp} [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0",
            f"{stamp} [TRT] [I] Engine generation completed in 5.37531 seconds.",
            f"{stamp} [TRT] [I] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 0 MiB, GPU 385 MiB",
            f"{stamp} [TRT-LLM] [I] Total time of building Unnamed Network 0: 01:00:08",
            f"{stamp} [TRT-LLM] [I] Build phase peak memory: 6978.95 MB, children: 12049.21 MB",
            f"{stamp} [TRT-LLM] [I] Serializing engine to /data/engine/rank3.engine...",
            f"{stamp} [TRT-LLM] [I] Engine serialized. Total time: 00:00:00",
            f"{stamp} [TRT-LLM] [I] Total time of building all engines: 00:00:11",
        )
    ]
    assert [line for line in shown if line] == [
        "TensorRT-LLM 0.20.0", "building network 1", "network 1 built in 3608 s", "rank 3: writing the engine"
    ]  # fmt: skip
    assert (steps.version, steps.build_seconds, steps.serialized) == ("0.20.0", [3608], [3])
    assert (steps.peak_host_bytes, steps.peak_gpu_bytes) == (int(6978.95 * 2**20), 385 * 2**20)
    assert steps.level_counts == {"W": 1, "E": 0}
