"""Measure what planning a 70B model costs: CPU seconds, wall seconds and memory of `trtbuild plan`, beside AIConfigurator where it is installed.

    python benchmarks/plan.py [--rounds 5] [--aiconfigurator PYTHON] [--json]

The model is Llama-3-70B's shape as sparse files: real headers, 141 GB that take no disk. The contestants take turns, in another order each
round, each in a process of its own. `trtbuild plan` sizes every rank for four H100 and checks the fit. AIConfigurator runs under the
interpreter that `--aiconfigurator` names and is asked the nearest question that its stable interface answers: what the same model costs per
step on four H100 (`EngineHandle.compile` and `run_static`, aiconfigurator-core 0.12). It reads no weight headers, so what it says of memory
is not the same; only the cost of asking is compared.

CPU seconds are user and system time of the process from its start to its end; memory is its peak resident size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trtbuild.console import print_json, print_text

HIDDEN, INNER, LAYERS, VOCAB, KV = 8192, 28672, 80, 128256, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
FILES = 30
#: What others published for AIConfigurator's whole command line, with other load on the machine; not measured here.
PUBLISHED = "published for AIConfigurator's command line on a loaded 2-core machine: 13 to 20 s, 223 MB"
AICONFIGURATOR = """
import sys
from aiconfigurator_core.sdk import EngineHandle
handle = EngineHandle.compile(sys.argv[1], "h100_sxm", "trtllm", tp_size=4)
handle.run_static(batch_size=1, isl=1024, osl=128)
handle.run_static(batch_size=64, isl=1024, osl=128)
"""


def shapes() -> Iterator[tuple[str, list[int]]]:
    """Yield the name and shape of every tensor."""
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV), ("o", HIDDEN)):
            yield f"{prefix}.self_attn.{name}_proj.weight", [rows, HIDDEN]
        yield f"{prefix}.mlp.gate_proj.weight", [INNER, HIDDEN]
        yield f"{prefix}.mlp.up_proj.weight", [INNER, HIDDEN]
        yield f"{prefix}.mlp.down_proj.weight", [HIDDEN, INNER]
        yield f"{prefix}.input_layernorm.weight", [HIDDEN]
        yield f"{prefix}.post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def write_model(folder: Path) -> None:
    """Write the model as sparse files."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    entries, weight_map = list(shapes()), {}
    for number in range(FILES):
        header, position = {}, 0
        for name, shape in entries[number::FILES]:
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
            position += size
            weight_map[name] = f"model-{number:05}.safetensors"
        encoded = json.dumps(header).encode()
        with (folder / f"model-{number:05}.safetensors").open("wb") as handle:
            handle.write(struct.pack("<Q", len(encoded)) + encoded)
            handle.truncate(8 + len(encoded) + position)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def measure(command: Sequence[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a command and return its CPU seconds, wall seconds and peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"{' '.join(command[:3])} failed with {process.returncode}:\n{complaint.decode()[-2000:]}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall_s, "peak_bytes": usage.ru_maxrss * 1024}


def contestants(model: Path, aiconfigurator: str | None) -> dict[str, list[str]]:
    """Return name -> command."""
    plan = [sys.executable, "-m", "trtbuild", "plan", str(model), "--target", "tensorrt", "--gpu", "h100", "--json"]
    found = {"trtbuild plan": [*plan, "--tp", "4"]}
    if aiconfigurator:
        found["aiconfigurator-core"] = [aiconfigurator, "-c", AICONFIGURATOR, str(model)]
    return found


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--aiconfigurator", metavar="PYTHON", help="interpreter with aiconfigurator-core")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        environment.update(OMP_NUM_THREADS="1", PYTHONPYCACHEPREFIX=cache)
        model = Path(folder)
        write_model(model)
        commands = contestants(model, options.aiconfigurator)
        for command in commands.values():
            measure(command, environment)  # files and bytecode into the caches
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(options.rounds):
            names = list(commands) if number % 2 == 0 else list(reversed(commands))
            for name in names:
                runs[name].append(measure(commands[name], environment))
    result = {name: summary(found) for name, found in runs.items()}
    if options.json:
        print_json({"rounds": options.rounds, "contestants": result, "published": PUBLISHED})
        return
    print_text(f"{'':24}{'CPU s':>8}{'range':>16}{'wall s':>9}{'peak MB':>9}")
    for name, row in result.items():
        print_text(
            f"{name:24}{row['cpu_s']:8.2f}{row['least_cpu_s']:10.2f}-{row['most_cpu_s']:.2f}{row['wall_s']:9.2f}{row['peak_bytes'] / 1e6:9.0f}"
        )
    print_text(PUBLISHED)


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians and the range of CPU seconds."""
    cpu = [run["cpu_s"] for run in runs]
    return {
        **{key: statistics.median(run[key] for run in runs) for key in ("cpu_s", "wall_s", "peak_bytes")},
        "least_cpu_s": min(cpu),
        "most_cpu_s": max(cpu),
    }


if __name__ == "__main__":
    main()
