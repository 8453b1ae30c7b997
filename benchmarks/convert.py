"""Compare conversion with copying and with other tools, in one run.

    python benchmarks/convert.py [--gb 2] [--rounds 5] [--folder DIR] [--llm-compressor PYTHON] [--flat] [--json]

A Llama-shaped bfloat16 model of random weights is made once. The contestants take turns, in a new order each round, each in a process of
its own; a round starts with the output folder empty and the source in the page cache. Shown are medians and the range over the rounds:
GB of source per second of wall time, CPU seconds, and peak memory above that of an interpreter which has imported the same libraries.

Rows: `sequential copy` reads, hashes (SHA-256), writes and syncs the same bytes in one thread: the ceiling of a converter that writes
digests. `safetensors` loads and saves shard by shard. `trtbuild bf16` re-shards to tp 4; `trtbuild fp8` quantizes to one rank, ranges of
inputs given (calibration is not part of the comparison); `trtbuild int4` rounds groups of 128 to the nearest INT4. `naive fp8` is the
obvious loop with torch. `llm-compressor` is `model_free_ptq` with FP8_DYNAMIC and with W4A16 on the CPU, run by the interpreter that
`--llm-compressor` names, since its dependencies differ.
`--flat` converts models of twice the depth and twice the width as well and shows their peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.table import Table

from trtbuild.console import print_json, stdout_console

SHARD_BYTES = 10**9
LARGE_SHARD_BYTES = 4 * 10**9

COPY = """
import hashlib, os, sys
from pathlib import Path
source, out = map(Path, sys.argv[1:3])
out.mkdir()
for file in sorted(source.glob("*.safetensors")):
    digest, buffer = hashlib.sha256(), bytearray(16 << 20)
    with file.open("rb", buffering=0) as read, (out / file.name).open("wb", buffering=0) as write:
        while count := read.readinto(buffer):
            view = memoryview(buffer)[:count]
            digest.update(view)
            write.write(view)
        os.fsync(write.fileno())
"""
SAFETENSORS = """
import os, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
source, out = map(Path, sys.argv[1:3])
out.mkdir()
for file in sorted(source.glob("*.safetensors")):
    save_file(load_file(file), out / file.name)
    with (out / file.name).open("rb") as written:
        os.fsync(written.fileno())
"""
NAIVE_FP8 = """
import os, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
source, out = map(Path, sys.argv[1:3])
out.mkdir()
for file in sorted(source.glob("*.safetensors")):
    result = {}
    for name, tensor in load_file(file).items():
        if name.endswith("_proj.weight"):
            weight = tensor.float()
            scale = weight.abs().max() / 448
            result[name] = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            result[name + "_scale"] = scale
        else:
            result[name] = tensor
    save_file(result, out / file.name)
    with (out / file.name).open("rb") as written:
        os.fsync(written.fileno())
"""
TRTBUILD_BF16 = """
import sys
from trtbuild.cli.edge import run
sys.exit(run(["convert", sys.argv[1], "-o", sys.argv[2], "--tp", "4", "--quiet"]))
"""
TRTBUILD_FP8 = """
import os, sys
from pathlib import Path
from trtbuild.convert.execute import execute
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, plan_conversion
from trtbuild.output import staged_folder
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint
source, out = map(Path, sys.argv[1:3])
plan = plan_conversion(OpenedSource(SourceCheckpoint.open(source)), ConversionOptions(quantization="fp8"))
modules = [part.module for slot in plan.layout.slots if slot.rule.quantizable for part in slot.parts]
stats = CalibrationStats(dict.fromkeys(modules, 8.0), (), (), 1, 1, "")
with staged_folder(out) as stage:
    execute(plan, stage, stats=stats, advance=lambda count: None)
"""
TRTBUILD_INT4 = """
import sys
from trtbuild.cli.edge import run
options = ["--target", "tensorrt", "--quantization", "int4_rtn", "--group-size", "128", "--quiet"]
sys.exit(run(["convert", sys.argv[1], "-o", sys.argv[2], *options]))
"""
_LLM_COMPRESSOR = """
import sys
from llmcompressor import model_free_ptq
model_free_ptq(sys.argv[1], sys.argv[2], scheme="{scheme}", ignore=["lm_head", "re:.*embed_tokens.*"], max_workers=2, device="cpu")
"""
LLM_COMPRESSOR_FP8 = _LLM_COMPRESSOR.format(scheme="FP8_DYNAMIC")
LLM_COMPRESSOR_INT4 = _LLM_COMPRESSOR.format(scheme="W4A16")
#: What each contestant imports before it begins, to tell its own memory from that of its libraries.
IMPORTS = {
    COPY: "import hashlib",
    SAFETENSORS: "import safetensors.torch",
    NAIVE_FP8: "import safetensors.torch",
    TRTBUILD_BF16: "import trtbuild.convert.folder, trtbuild.convert.execute",
    TRTBUILD_FP8: "import trtbuild.convert.folder, trtbuild.convert.execute",
    TRTBUILD_INT4: "import trtbuild.convert.folder, trtbuild.convert.execute",
    LLM_COMPRESSOR_FP8: "import llmcompressor",
    LLM_COMPRESSOR_INT4: "import llmcompressor",
}


@dataclass
class Result:
    """One contestant; every list has an entry per round.

    Attributes:
        gb_per_s: source bytes over wall seconds.
        cpu_s: user and system time.
        peak_bytes: largest resident memory above that of the imports.
    """

    name: str
    code: str
    python: str
    gb_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    base_bytes: int = 0


def config(*, hidden: int, layers: int) -> dict[str, Any]:
    """Return config.json of a Llama-shaped model."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": hidden * 7 // 2,
        "num_hidden_layers": layers, "num_attention_heads": hidden // 128, "num_key_value_heads": hidden // 512, "vocab_size": 32000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def shapes(settings: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor."""
    hidden, inner, kv = settings["hidden_size"], settings["intermediate_size"], settings["num_key_value_heads"] * 128
    yield "model.embed_tokens.weight", (settings["vocab_size"], hidden)
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (rows, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (settings["vocab_size"], hidden)


def make_model(folder: Path, settings: dict[str, Any], shard_bytes: int) -> int:
    """Write a model of random weights unless it is there, and return its bytes."""
    listed = [(name, shape, 2 * int(np.prod(shape))) for name, shape in shapes(settings)]
    total = sum(size for _, _, size in listed)
    if (folder / "config.json").is_file():
        return total
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[list[tuple[str, tuple[int, ...], int]]] = [[]]
    for entry in listed:
        if sum(size for _, _, size in shards[-1]) + entry[2] > shard_bytes and shards[-1]:
            shards.append([])
        shards[-1].append(entry)
    generator = np.random.default_rng(0)
    noise = (generator.standard_normal(1 << 25, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, position = {}, 0
        for key, shape, size in shard:
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
            position += size
            weight_map[key] = name
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(encoded)) + encoded)
            for _, _, size in shard:
                left = size // 2
                while left:
                    start = int(generator.integers(0, len(noise) // 2))
                    piece = noise[start : start + left]
                    file.write(piece.tobytes())
                    left -= len(piece)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(settings))
    return total


#: Runs a contestant and prints its own peak memory; what `wait4` tells would count that of this process too.
PEAK = """
import sys
code = sys.argv.pop(1)
try:
    exec(compile(code, "contestant", "exec"), {"__name__": "contestant"})
except SystemExit as stop:
    if stop.code:
        raise
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""


def measure(python: str, code: str, *arguments: Path) -> tuple[float, float, int]:
    """Run code in a process of its own and return wall seconds, CPU seconds and peak resident bytes."""
    start, before = time.perf_counter(), _children_cpu_s()
    process = subprocess.Popen(
        [python, "-c", PEAK, code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    output, errors = process.communicate()
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"a contestant failed:\n{errors[-2000:]}")
    return wall, _children_cpu_s() - before, int(output.split()[-1]) * 1024


def _children_cpu_s() -> float:
    """Return user and system time of all processes that were waited for."""
    return os.times().children_user + os.times().children_system


def contest(results: list[Result], source: Path, nbytes: int, out: Path, rounds: int) -> None:
    """Let the contestants take turns."""
    for result in results:
        result.base_bytes = measure(result.python, IMPORTS[result.code])[2]
    for number in range(rounds):
        shift = number % len(results)
        for result in results[shift:] + results[:shift]:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            wall, cpu, peak = measure(result.python, result.code, source, out)
            result.gb_per_s.append(nbytes / wall / 1e9)
            result.cpu_s.append(cpu)
            result.peak_bytes.append(peak - result.base_bytes)
            shutil.rmtree(out, ignore_errors=True)


def ratio(results: list[Result], name: str, against: str) -> list[float]:
    """Return one contestant's speed over another's, round by round."""
    by_name = {result.name: result.gb_per_s for result in results}
    return [mine / other for mine, other in zip(by_name[name], by_name[against], strict=True)]


def show(results: list[Result], title: str) -> None:
    """Print medians and ranges."""
    table = Table(title=title)
    for column in ("", "GB/s", "range", "CPU s", "peak MiB"):
        table.add_column(column, justify="left" if not column else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{statistics.median(result.gb_per_s):.3f}",
            f"{min(result.gb_per_s):.3f}-{max(result.gb_per_s):.3f}",
            f"{statistics.median(result.cpu_s):.1f}",
            f"{max(result.peak_bytes) >> 20}",
        )
    console = stdout_console()
    console.print(table)
    names = [result.name for result in results]
    pairs = [("trtbuild bf16", "sequential copy"), ("trtbuild bf16", "safetensors"), ("trtbuild fp8", "naive fp8")]
    pairs += [("trtbuild fp8", "llm-compressor fp8"), ("trtbuild int4", "llm-compressor int4")]
    for mine, other in pairs:
        if mine in names and other in names:
            found = ratio(results, mine, other)
            console.print(
                f"{mine} / {other}: {statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})", soft_wrap=True
            )


def flat(folder: Path, out: Path, hidden: int, layers: int) -> list[dict[str, Any]]:
    """Return the peak memory for a model, and for twice its depth and width, in shards of up to 4 GB."""
    rows = []
    base = measure(sys.executable, IMPORTS[TRTBUILD_BF16])[2]
    for name, wide, deep in (
        ("as it is", hidden, layers),
        ("twice as deep", hidden, 2 * layers),
        ("twice as wide", 2 * hidden, layers),
    ):
        settings = config(hidden=wide, layers=deep)
        nbytes = make_model(folder / f"flat-{wide}-{deep}", settings, LARGE_SHARD_BYTES)
        for scheme, code in (("bf16", TRTBUILD_BF16), ("fp8", TRTBUILD_FP8), ("int4", TRTBUILD_INT4)):
            shutil.rmtree(out, ignore_errors=True)
            _, _, peak = measure(sys.executable, code, folder / f"flat-{wide}-{deep}", out)
            rows.append({"model": name, "scheme": scheme, "gb": nbytes / 1e9, "peak_mib": (peak - base) / 2**20})
        shutil.rmtree(out, ignore_errors=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="size of the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "trtbuild-bench"), help="for model and outputs"
    )
    parser.add_argument("--llm-compressor", metavar="PYTHON", help="an interpreter that has llm-compressor")
    parser.add_argument("--flat", action="store_true", help="measure the memory of larger models too")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    hidden = 2048
    per_layer = sum(
        2 * int(np.prod(shape)) for name, shape in shapes(config(hidden=hidden, layers=1)) if ".layers." in name
    )
    layers = max(round((options.gb * 1e9 - 4 * 32000 * hidden) / per_layer), 1)
    source, out = options.folder / f"model-{layers}", options.folder / "out"
    nbytes = make_model(source, config(hidden=hidden, layers=layers), SHARD_BYTES)
    results = [
        Result("sequential copy", COPY, sys.executable),
        Result("safetensors", SAFETENSORS, sys.executable),
        Result("trtbuild bf16", TRTBUILD_BF16, sys.executable),
        Result("naive fp8", NAIVE_FP8, sys.executable),
        Result("trtbuild fp8", TRTBUILD_FP8, sys.executable),
        Result("trtbuild int4", TRTBUILD_INT4, sys.executable),
    ]
    if options.llm_compressor:
        results.append(Result("llm-compressor fp8", LLM_COMPRESSOR_FP8, options.llm_compressor))
        results.append(Result("llm-compressor int4", LLM_COMPRESSOR_INT4, options.llm_compressor))
    contest(results, source, nbytes, out, options.rounds)
    memory = flat(options.folder, out, hidden, layers) if options.flat else []
    if options.as_json:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
        kept = [
            {key: value for key, value in asdict(result).items() if key not in ("code", "python")} for result in results
        ]
        print_json({"source_bytes": nbytes, "machine": machine, "results": kept, "memory": memory})
        return
    show(
        results, f"{nbytes / 1e9:.2f} GB of source, {options.rounds} rounds, {os.cpu_count()} CPUs, in {options.folder}"
    )
    for row in memory:
        stdout_console().print(f"{row['scheme']} {row['model']} ({row['gb']:.2f} GB): {row['peak_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
