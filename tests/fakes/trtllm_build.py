#!/usr/bin/env python3
"""Stands in for trtllm-build: takes its options, prints like it, writes what it writes, and fails on demand.

FAKE_TRTLLM_BUILD says how it behaves (see MODES); FAKE_TRTLLM_VERSION is the release it claims to be, 1.2.1 by default;
FAKE_TRTLLM_RECORD is a file that gets its arguments; FAKE_TRTLLM_CHANGE is JSON that is merged into build_config.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = os.environ.get("FAKE_TRTLLM_BUILD", "")
VERSION = os.environ.get("FAKE_TRTLLM_VERSION", "1.2.1")
VALUES = [
    "checkpoint_dir",
    "output_dir",
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_beam_width",
    "max_num_tokens",
    "opt_num_tokens",
    "kv_cache_type",
    "input_timing_cache",
    "output_timing_cache",
    "profiling_verbosity",
    "workers",
    "log_level",
    "logits_dtype",
    "lora_ckpt_source",
    "max_lora_rank",
    "speculative_decoding_mode",
    "max_draft_len",
]
FLAGS = [
    "strip_plan",
    "weight_sparsity",
    "weight_streaming",
    "fast_build",
    "monitor_memory",
    "gather_context_logits",
    "gather_generation_logits",
]
LISTS = ["lora_dir", "lora_target_modules"]
PLUGINS = [
    "gpt_attention_plugin",
    "nccl_plugin",
    "gemm_plugin",
    "gemm_swiglu_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "gemm_allreduce_plugin",
    "moe_plugin",
    "lora_plugin",
]
SWITCHES = [
    "remove_input_padding",
    "context_fmha",
    "use_paged_context_fmha",
    "use_fp8_context_fmha",
    "multiple_profiles",
    "norm_quant_fusion",
    "reduce_fusion",
    "user_buffer",
    "use_fused_mlp",
    "pp_reduce_scatter",
]
if VERSION.startswith(("0.17", "0.18")):
    PLUGINS.remove("gemm_allreduce_plugin")
    SWITCHES.remove("norm_quant_fusion")


def log(text: str, source: str = "TRT-LLM", level: str = "I") -> None:
    """Print a line in the builder's form."""
    sys.stdout.write(f"[11/20/2025-23:56:51] [{source}] [{level}] {text}\n")
    sys.stdout.flush()


def options() -> argparse.Namespace:
    """Read the options, as strictly as the builder."""
    parser = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
    for name in VALUES:
        parser.add_argument(f"--{name}")
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in LISTS:
        parser.add_argument(f"--{name}", nargs="+")
    for name in PLUGINS:
        parser.add_argument(f"--{name}", choices=["auto", "float16", "float32", "bfloat16", "fp8", "nvfp4", "disable"])
    for name in SWITCHES:
        parser.add_argument(f"--{name}", choices=["enable", "disable"])
    parser.add_argument("--tokens_per_block", type=int)
    if MODE == "unknown_argument":
        sys.argv.append("--no_such_option")
    return parser.parse_args()


def config(given: argparse.Namespace) -> dict[str, object]:
    """Return config.json as rank 0 writes it."""
    pretrained = json.loads((Path(given.checkpoint_dir) / "config.json").read_text())
    numbers = (
        "max_batch_size",
        "max_input_len",
        "max_seq_len",
        "max_beam_width",
        "max_num_tokens",
        "opt_num_tokens",
        "max_draft_len",
    )
    build: dict[str, object] = {name: int(value) for name in numbers if (value := getattr(given, name)) is not None}
    plugins: dict[str, object] = {"tokens_per_block": given.tokens_per_block, "paged_kv_cache": True}
    plugins |= {name: None if getattr(given, name) in (None, "disable") else getattr(given, name) for name in PLUGINS}
    plugins |= {name: getattr(given, name) == "enable" for name in SWITCHES}
    build |= {
        "kv_cache_type": str(given.kv_cache_type).upper(),
        "gather_context_logits": given.gather_context_logits,
        "gather_generation_logits": given.gather_generation_logits,
        "weight_sparsity": given.weight_sparsity,
        "weight_streaming": given.weight_streaming,
        "use_strip_plan": given.strip_plan,
        "plugin_config": plugins,
        "lora_config": {"lora_target_modules": given.lora_target_modules, "max_lora_rank": int(given.max_lora_rank)} if given.max_lora_rank else {},
        **json.loads(os.environ.get("FAKE_TRTLLM_CHANGE", "{}")),
    }  # fmt: skip
    return {"version": VERSION, "pretrained_config": pretrained, "build_config": build}


def build_rank(given: argparse.Namespace, rank: int) -> None:
    """Print and write what a rank takes."""
    out = Path(given.output_dir)
    log("Build TensorRT engine Unnamed Network 0")
    log("Engine generation completed in 1.5 seconds.", "TRT")
    log("[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 8 MiB, GPU 2048 MiB", "TRT")
    log("Total time of building Unnamed Network 0: 00:01:02")
    if rank == 0:
        Path(given.output_timing_cache).write_bytes(b"cache of this build")
        log(f"Timing cache serialized to {given.output_timing_cache}")
    log("Build phase peak memory: 1024.50 MB, children: 16.96 MB")
    log(f"Serializing engine to {out}/rank{rank}.engine...")
    (out / f"rank{rank}.engine").write_bytes(b"engine of rank %d" % rank)
    if given.fast_build:
        (out / f"rank{rank}_managed_weights.safetensors").write_bytes(b"weights of rank %d" % rank)
    if rank == 0:
        (out / "config.json").write_text(json.dumps(config(given)))
    log("Engine serialized. Total time: 00:00:00")


def fail(*lines: str) -> None:
    """End as Python does after an exception: a traceback of more than 20 lines, the given ones last; stdout goes on for a while."""
    sys.stderr.write("".join(f"  frame {number}\n" for number in range(40)) + "\n".join(lines) + "\n")
    sys.stderr.flush()
    for number in range(25):
        log(f"released buffer {number}")
    sys.exit(1)


def hang() -> None:
    """Start a worker, as the builder does, and wait for it for ever."""
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    log(f"worker {worker.pid} of {os.getpid()}")
    time.sleep(600)


MODES = {
    "crash": lambda: fail("RuntimeError: something nobody has seen"),
    "gpu_oom": lambda: (
        log("[virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)", "TRT", "E"),
        fail("AssertionError: Engine building failed, please check error log."),
    ),
    "say": lambda: fail(os.environ["FAKE_TRTLLM_TEXT"]),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": hang,
    "environment": lambda: sys.stdout.write("\n".join(f"{key}={value}" for key, value in os.environ.items()) + "\n"),
}  # fmt: skip


def main() -> None:
    """Do what the builder does."""
    given = options()
    if record := os.environ.get("FAKE_TRTLLM_RECORD"):
        Path(record).write_text(json.dumps(sys.argv[1:]))
    world_size = json.loads((Path(given.checkpoint_dir) / "config.json").read_text())["mapping"]["world_size"]
    if MODE != "no_version":
        sys.stdout.write(f"[TensorRT-LLM] TensorRT-LLM version: {VERSION}\n")
        sys.stdout.flush()
    log("Overriding paged_state to False", level="W")
    if MODE in MODES:
        MODES[MODE]()
    for rank in range({"empty": 0, "partial": 1}.get(MODE, world_size)):
        build_rank(given, rank)
    if MODE == "hollow":
        (Path(given.output_dir) / f"rank{world_size - 1}.engine").write_bytes(b"")
    log("Total time of building all engines: 00:02:04")


if __name__ == "__main__":
    main()
