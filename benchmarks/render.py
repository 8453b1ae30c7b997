"""How long it takes to render a model repository and to check it: in this process, as commands, and beside NVIDIA's recipe.

    python benchmarks/render.py [--rounds 30] [--json]

CPU seconds, so that what else runs on the machine counts little; the median, the least and the most of the rounds, in which the rows take turns. Targets: rendering with its
check in less than 50 ms in process, either command in less than 0.4 s. `interpreter` is what starting Python alone takes. The recipe copies the five stock models and fills
each with one call of a program like `tools/fill_template.py` (Triton specification 1.7); it leaves placeholders behind and checks nothing, which the last line counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.unit.repo.stock_repository import (  # the stock models are written from the specification
    MANDATORY,
    write_stock,
)

from trtbuild.repo.context import RepoContext, build_context
from trtbuild.repo.lint import check
from trtbuild.repo.render import render
from trtbuild.spec import parse
from trtbuild.trtllm.versions import find_release

CHECKPOINT = {"architecture": "LlamaForCausalLM", "vocab_size": 128, "max_position_embeddings": 4096, "logits_dtype": "float16"}  # fmt: skip
ENGINE = {
    "version": "1.2.1",
    "build_config": {"max_batch_size": 16, "max_beam_width": 1, "max_seq_len": 4096, "plugin_config": {"use_paged_context_fmha": True}},
    "pretrained_config": {"logits_dtype": "float16", "mapping": {"tp_size": 1, "pp_size": 1, "world_size": 1}},
}  # fmt: skip
#: What tools/fill_template.py does: `safe_substitute` of key:value pairs, in place; it imports nothing else.
FILL = """
from argparse import ArgumentParser
from string import Template

parser = ArgumentParser()
parser.add_argument("-i", "--in_place", action="store_true")
parser.add_argument("file_path")
parser.add_argument("substitutions")
options = parser.parse_args()
with open(options.file_path) as file:
    text = file.read()
pairs = dict(pair.split(":", 1) for pair in options.substitutions.split(","))
with open(options.file_path, "w") as file:
    file.write(Template(text).safe_substitute(pairs))
"""
STOCK = "stock recipe: cp, five fill_template.py"
#: Most that a row may take, in CPU seconds.
TARGETS = {"render and lint, in process": 0.050, "trtbuild render": 0.4, "trtbuild lint": 0.4}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = measure(Path(name), options.rounds)
        left = {kind: placeholders(Path(name) / kind) for kind in ("filled", "kept")}
    rows = {
        row: {"median_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds), "target_s": TARGETS.get(row)}
        for row, seconds in measured.items()
    }  # fmt: skip
    if options.json:
        print(json.dumps({"rows": rows, "placeholders_left": left}, indent=2))
    else:
        print(f"{table(rows)}\n\nplaceholders left: {left['filled']} by the recipe, {left['kept']} by trtbuild")


def measure(root: Path, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of every row and round; the first round, which fills caches, is left out."""
    context = prepare(root)
    kept = root / "kept"
    render(context, kept)
    stock, fill = write_stock(root / "stock", find_release("1.2.1")), root / "fill_template.py"
    fill.write_text(FILL)
    python = [sys.executable, "-m", "trtbuild"]
    spec = ["render", str(root / "trtbuild.yaml"), "--checkpoint", str(root / "checkpoint"), "--engine", str(root / "engine")]  # fmt: skip
    rows: dict[str, Callable[[], float]] = {
        "render and lint, in process": lambda: in_process(lambda: render(context, root / "out"), root / "out"),
        "lint, in process": lambda: in_process(lambda: check(kept), root / "out"),
        "interpreter": lambda: command([sys.executable, "-c", "pass"]),
        "trtbuild render": lambda: command([*python, *spec, "-o", str(root / "out"), "-q"], root / "out"),
        "trtbuild lint": lambda: command([*python, "lint", str(kept), "-q"]),
        STOCK: lambda: recipe(stock, root / "filled", fill),
    }
    seconds: dict[str, list[float]] = {row: [] for row in rows}
    for index in range(rounds + 1):
        for row, run in rows.items():
            taken = run()
            if index:
                seconds[row].append(taken)
    return seconds


def recipe(stock: Path, output: Path, fill: Path) -> float:
    """Return the CPU seconds of NVIDIA's recipe; what it wrote stays until the next round."""
    shutil.rmtree(output, ignore_errors=True)
    values = {**MANDATORY, "engine_dir": "/models/engine", "tokenizer_dir": "/models/tokenizer"}
    pairs = ",".join(f"{key}:{value}" for key, value in values.items())
    calls = [["cp", "-r", str(stock), str(output)]]
    calls += [[sys.executable, str(fill), "-i", str(output / model.name / "config.pbtxt"), pairs] for model in sorted(stock.iterdir())]  # fmt: skip
    return sum(command(call) for call in calls)


def placeholders(repository: Path) -> int:
    """Return how many lines of a repository's configurations still hold a placeholder."""
    return sum("${" in line for file in repository.glob("*/config.pbtxt") for line in file.read_text().splitlines())


def prepare(root: Path) -> RepoContext:
    """Write what a deployment of target tensorrt names, and return its context."""
    tokenizer = root / "checkpoint" / "tokenizer"
    tokenizer.mkdir(parents=True)
    (root / "engine").mkdir()
    (root / "checkpoint" / "config.json").write_text(json.dumps(CHECKPOINT))
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (root / "engine" / "config.json").write_text(json.dumps(ENGINE))
    (root / "engine" / "rank0.engine").write_bytes(b"not read")
    data: dict[str, Any] = {
        "model": {"path": str(root / "checkpoint")},
        "target": "tensorrt",
        "tensorrt_llm": "1.2.1",
    }
    (root / "trtbuild.yaml").write_text(json.dumps(data))  # JSON is YAML
    return build_context(
        parse(data, origin="benchmark"), CHECKPOINT, checkpoint_dir=root / "checkpoint", tokenizer_dir=tokenizer, engine_dir=root / "engine"
    )  # fmt: skip


def in_process(work: Callable[[], object], output: Path) -> float:
    """Return the CPU seconds of a call; what it wrote is removed."""
    started = time.process_time()
    work()
    taken = time.process_time() - started
    shutil.rmtree(output, ignore_errors=True)
    return taken


def command(words: list[str], output: Path | None = None) -> float:
    """Return the CPU seconds of a command; what it wrote is removed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Without compiled modules on the disk every start compiles all of them, which no installation does.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**environment, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if output is not None:
        shutil.rmtree(output)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| CPU ms | median | least | most | target |", "|---|---:|---:|---:|---:|"]
    for row, each in rows.items():
        target = f"{each['target_s'] * 1e3:.0f}" if each["target_s"] else ""
        lines.append(
            f"| {row} | {each['median_s'] * 1e3:.1f} | {each['least_s'] * 1e3:.1f} | {each['most_s'] * 1e3:.1f} | {target} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
