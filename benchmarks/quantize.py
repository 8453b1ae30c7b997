"""Compare quantization with NVIDIA ModelOpt on the same calibration tokens, in one run: time, memory, and what the written files are worth.

    python benchmarks/quantize.py [MODEL] [--ids FILE.safetensors] [--modelopt PYTHON] [--rounds 3] [--schemes fp8,int4_awq] [--json]

FILE holds `input_ids` [samples, tokens] to calibrate on and `heldout_ids` [windows, tokens] to evaluate. The contestants take turns, in a
new order each round, each in a process of its own; ModelOpt runs under the interpreter that `--modelopt` names. Both start from the same
Hugging Face folder, calibrate in float32, and end with a complete folder on disk. ModelOpt is given all samples as one batch and no head,
its fastest way here: its search rounds every weight anew for each batch.

Seconds are counted from after the imports to the finished folder, reading of the model included; peak memory is that above what the
imports took. Perplexity is that of the folder *as written*: one reader for both sides decodes its codes and scales, the model runs in
float32, and inputs of linears are rounded as the format says (E4M3 with the stored scale, INT8 with the stored scale or per token).
Each held-out window predicts all of its tokens but the first. The reader knows ModelOpt's layout and nothing of trtbuild; a scheme that
has no such layout is read from rank files by the reference target.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.console import print_json, print_text
from trtbuild.demo.smollm import shared_model
from trtbuild.names import QUANTIZATIONS

#: Tokens of a window of the built-in texts.
WINDOW = 256
#: Ends every contestant: wall and CPU seconds since the imports, and peak memory above theirs, as one line of JSON.
_REPORT = """
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
base, start, cpu = peak(), time.perf_counter(), time.process_time()
def report():
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "peak_bytes": peak() - base}))
"""
OURS = (
    """
import json, sys, time
import torch, transformers
from transformers import AutoModelForCausalLM
from trtbuild.cli.edge import run
"""
    + _REPORT
    + """
code = run(sys.argv[1:])
if code:
    sys.exit(code)
report()
"""
)
MODELOPT = (
    """
import copy, json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint
"""
    + _REPORT
    + """
source, ids, out, name, group_size, algorithm = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
rows = load_file(ids)["input_ids"]
config = copy.deepcopy(getattr(mtq, name))
if algorithm:
    config["algorithm"] = json.loads(algorithm)
for rule in config["quant_cfg"]:
    if group_size and rule["quantizer_name"] == "*weight_quantizer":
        rule["cfg"]["block_sizes"][-1] = int(group_size)
def calibrate(model):
    model.base_model(rows)
with torch.inference_mode():
    mtq.quantize(model, config, calibrate)
    export_hf_checkpoint(model, export_dir=out)
report()
"""
)
#: Reads a unified folder (or runs a plain one) and prints the perplexity of the held-out windows.
PERPLEXITY = """
import json, math, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

def signed_nibbles(packed):
    low, high = packed & 15, packed >> 4
    codes = torch.stack([low, high], dim=1).reshape(-1, packed.shape[1]).to(torch.int8)
    return torch.where(codes > 7, codes - 16, codes).float()

def decode(codes, scales):
    scale = scales["weight_scale"].float()
    if codes.dtype == torch.uint8:
        codes = signed_nibbles(codes)
        return codes * scale.repeat_interleave(codes.shape[1] // scale.shape[1], dim=1)
    return codes.float() * (scale[:, None] if scale.dim() == 1 else scale)

def e4m3(x, scale):
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

def int8(x, scale):
    return (x / scale).round().clamp(-127, 127) * scale

def per_token(x, limit):
    return (x.abs().amax(-1, keepdim=True) / limit).clamp_min(1e-12)

def round_input(algorithm, scales):
    smooth, static = scales.get("pre_quant_scale"), scales.get("input_scale")
    def hook(_module, arguments):
        x = arguments[0]
        if smooth is not None:
            x = x * smooth.float()
        if algorithm.startswith("FP8"):
            x = e4m3(x, per_token(x, 448) if static is None else static.float())
        elif algorithm.startswith("W8A8"):
            x = int8(x, per_token(x, 127) if static is None else static.float())
        return (x,)
    return hook

def load(folder):
    if "architecture" in json.loads((folder / "config.json").read_text()):
        from trtbuild.checkpoint_kinds import open_checkpoint
        from trtbuild.reference.model import load_model
        return load_model(open_checkpoint(folder))
    config = AutoConfig.from_pretrained(folder)
    algorithm = None
    if (folder / "hf_quant_config.json").is_file():
        algorithm = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]["quant_algo"]
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    state = dict(tensors)
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        module = name.removesuffix(".weight_scale")
        kinds = ("weight_scale", "input_scale", "pre_quant_scale")
        scales = {kind: state.pop(f"{module}.{kind}") for kind in kinds if f"{module}.{kind}" in state}
        state[f"{module}.weight"] = decode(state[f"{module}.weight"], scales)
        model.get_submodule(module).register_forward_pre_hook(round_input(algorithm, scales))
    missing, surplus = model.load_state_dict({name: each.float() for name, each in state.items()}, strict=False)
    if surplus or set(missing) - {"lm_head.weight"}:
        sys.exit(f"{folder}: {missing} are missing, {surplus} have no place")
    model.tie_weights()
    return model

folder, ids = map(Path, sys.argv[1:])
windows = load_file(ids)["heldout_ids"]
model = load(folder)
loss = 0.0
with torch.inference_mode():
    for row in windows:
        logits = model(row[None]).logits[0, :-1]
        loss += float(torch.nn.functional.cross_entropy(logits.double(), row[1:], reduction="sum"))
print(math.exp(loss / (windows.shape[0] * (windows.shape[1] - 1))))
"""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How both sides are asked for a scheme.

    Attributes:
        options: of `trtbuild convert`.
        config: name of ModelOpt's configuration, None where it has none.
        group_size: of INT4, 0 elsewhere.
        algorithm: replaces the configuration's, as JSON.
    """

    options: tuple[str, ...]
    config: str | None
    group_size: int = 0
    algorithm: str = ""


SCHEMES: dict[str, Scheme] = {
    "fp8": Scheme(("--target", "pytorch"), "FP8_DEFAULT_CFG"),
    "int4_awq": Scheme(("--target", "pytorch", "--group-size", "64"), "INT4_AWQ_CFG", 64),
    "int8_smoothquant": Scheme(
        ("--target", "pytorch", "--allow-unverified"),
        "INT8_SMOOTHQUANT_CFG",
        algorithm='{"method": "smoothquant", "alpha": 0.5}',
    ),
    "int4_gptq": Scheme(("--target", "pytorch", "--group-size", "64"), None),
}


@dataclass
class Result:
    """One contestant on one scheme; every list has an entry per round.

    Attributes:
        seconds: from after the imports to the finished folder.
        cpu_s: processor seconds of all threads in that time; less shaken by what else runs on the machine.
        peak_bytes: largest resident memory above that of the imports.
        perplexity: of the folder as written.
        written_bytes: of its safetensors files.
    """

    name: str
    scheme: str
    command: tuple[str, ...]
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    written_bytes: int = 0


def contestants(options: argparse.Namespace, out: Path) -> list[Result]:
    """Return who takes part; ours only where this version has the scheme."""
    found = []
    for name in options.schemes.split(","):
        scheme = SCHEMES[name]
        if QUANTIZATIONS[name] is not None:
            arguments = ["convert", options.model, "-o", out, "--quantization", name, "--calibration", options.ids]
            arguments += ["--dtype", "float32", "--quiet", *scheme.options]
            found.append(Result("trtbuild", name, (sys.executable, "-c", OURS, *map(str, arguments))))
        if scheme.config and options.modelopt:
            given = (options.model, options.ids, out, scheme.config, scheme.group_size or "", scheme.algorithm)
            found.append(Result("ModelOpt", name, (options.modelopt, "-c", MODELOPT, *map(str, given))))
    return found


def run(command: Sequence[str]) -> str:
    """Run a process and return the last line it printed."""
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"a contestant failed:\n{finished.stderr[-3000:]}")
    return finished.stdout.rstrip().rpartition("\n")[2]


def perplexity(folder: Path, ids: Path) -> float:
    """Return the perplexity of a folder, from a process of its own."""
    return float(run((sys.executable, "-c", PERPLEXITY, str(folder), str(ids))))


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights and configuration."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors" or path.name in ("config.json", "hf_quant_config.json"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def contest(results: list[Result], ids: Path, out: Path, rounds: int) -> None:
    """Let the contestants take turns; a folder of the same bytes as an earlier one is not evaluated again."""
    known: dict[str, float] = {}
    for number in range(rounds):
        shift = number % len(results)
        for result in results[shift:] + results[:shift]:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            measured = json.loads(run(result.command))
            result.seconds.append(measured["seconds"])
            result.cpu_s.append(measured["cpu_s"])
            result.peak_bytes.append(measured["peak_bytes"])
            digest = digest_of(out)
            if digest not in known:
                known[digest] = perplexity(out, ids)
            result.perplexity.append(known[digest])
            print(
                f"{result.scheme} {result.name}: {measured['seconds']:.1f} s, perplexity {known[digest]:.4f}",
                file=sys.stderr,
                flush=True,
            )
            result.written_bytes = sum(file.stat().st_size for file in out.rglob("*.safetensors"))
            shutil.rmtree(out, ignore_errors=True)


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median, and the range where the rounds differ."""
    low, middle, high = (format(each, form) for each in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def table(results: list[Result], source: float, machine: str) -> str:
    """Return the results as Markdown."""
    lines = [
        "| scheme | made by | seconds | CPU s | peak MiB above imports | written MiB | perplexity | of the source's |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for each in sorted(results, key=lambda result: list(SCHEMES).index(result.scheme)):
        cells = (
            each.scheme,
            each.name,
            _spread(each.seconds, ".1f"),
            _spread(each.cpu_s, ".1f"),
            _spread([peak / 2**20 for peak in each.peak_bytes], ".0f"),
            f"{each.written_bytes / 2**20:.0f}",
            _spread(each.perplexity, ".4f"),
            f"{statistics.median(each.perplexity) / source:.4f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    rounds = max(len(each.seconds) for each in results)
    return "\n".join([*lines, "", f"Source in float32: {source:.4f}. Median and range of {rounds} rounds. {machine}."])


def built_in_ids(model: Path, file: Path) -> Path:
    """Write windows of 256 tokens of trtbuild's calibration and held-out texts; return the file."""
    import numpy as np
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    from trtbuild.evaluate.texts import TEXTS as HELD_OUT
    from trtbuild.quant.calibrate.texts import TEXTS

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    ids = {}
    for name, texts in (("input_ids", TEXTS), ("heldout_ids", HELD_OUT)):
        tokens = [token for text in texts for token in tokenizer(text)["input_ids"]]
        whole = len(tokens) // WINDOW * WINDOW
        ids[name] = np.array(tokens[:whole], np.int64).reshape(-1, WINDOW)
    save_file(ids, file)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="Hugging Face folder; default: the model of the demo")
    parser.add_argument(
        "--ids", type=Path, help="safetensors with input_ids and heldout_ids; default: of built-in texts"
    )
    parser.add_argument("--modelopt", metavar="PYTHON", help="an interpreter that has nvidia-modelopt")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "trtbuild-quantize"))
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    unknown = set(options.schemes.split(",")) - set(SCHEMES)
    if unknown:
        parser.error(f"unknown schemes {', '.join(sorted(unknown))}; known: {', '.join(SCHEMES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    options.model = options.model or shared_model()
    options.ids = options.ids or built_in_ids(options.model, options.folder / "ids.safetensors")
    out = options.folder / "out"
    results = contestants(options, out)
    if not results:
        parser.error("nobody takes part: this version has none of these schemes, and there is no --modelopt")
    source = perplexity(options.model, options.ids)
    contest(results, options.ids, out, options.rounds)
    machine: dict[str, Any] = {"cpu": _cpu(), "cpus": os.cpu_count(), "python": platform.python_version()}
    if options.as_json:
        rows = [{key: value for key, value in asdict(each).items() if key != "command"} for each in results]
        print_json({"machine": machine, "source_perplexity": source, "results": rows})
        return
    print_text(table(results, source, f"{machine['cpu']}, {machine['cpus']} CPUs, Python {machine['python']}"))


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
