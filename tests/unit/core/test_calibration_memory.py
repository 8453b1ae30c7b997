"""Peak memory of a calibration: no more than the budget and one decoder layer in float32, whatever a search wants to keep."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.quant.calibrate.memory import least_memory_bytes
from trtbuild.source import SourceCheckpoint

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
HIDDEN, INNER, KV = 512, 6144, 128
#: One matrix of the widest input's second moments has 144 MiB in float32, more than the layer, and more than half of the budget.
MODEL: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
}
LAYER = 4 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * INNER)
#: Memory counts above the interpreter with everything imported that a calibration needs, and used once.
PROBE = """
import sys
import torch, transformers
import transformers.models.llama.modeling_llama
from trtbuild.cli.edge import run

def of(field):
    return int(open("/proc/self/status").read().partition(field + ":")[2].split()[0]) * 1024

small = torch.eye(256)
torch.linalg.cholesky_ex(small @ small)
before = of("VmRSS")
code = run(sys.argv[1:])
print(of("VmHWM") - before, file=sys.stderr)
sys.exit(code)
"""


def planned(folder: Path, scheme: str, **sizes: Any) -> ConversionPlan:
    options = ConversionOptions(quantization=scheme, group_size=64, **sizes)
    return plan_conversion(OpenedSource(SourceCheckpoint.open(folder)), options)


@pytest.mark.parametrize("options", [("int4_gptq", "--act-order"), ("int4_awq",)], ids=" ".join)
def test_the_peak_is_within_the_least_budget_and_one_layer(
    options: tuple[str, ...], make_model: Make, tmp_path: Path
) -> None:
    folder = make_model(**MODEL)
    ids = tmp_path / "ids.jsonl"
    rows = ([(7 * token + row) % 128 for token in range(128)] for row in range(8))
    ids.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    scheme, *more = options
    command = ["convert", folder, "-o", tmp_path / "out", "--quantization", scheme, "--group-size", 64, *more]
    least, _ = least_memory_bytes(planned(folder, scheme))
    command += ["--calibration", ids, "--memory", least, "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, command)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stderr.split()[-1])
    assert 4 * INNER**2 < peak <= least + LAYER


def test_the_least_budget_is_what_does_not_fit_beside_the_layer(make_model: Make) -> None:
    plan = planned(make_model(**MODEL), "int4_gptq")
    norms = 4 * 2 * HIDDEN
    least, module = least_memory_bytes(plan)
    assert (least, module) == (
        2**26 + 32 * HIDDEN * INNER + 4 * INNER**2 + HIDDEN * INNER - LAYER - norms,
        "model.layers.0.mlp.down_proj",
    )
    assert least_memory_bytes(planned(make_model(name="other", **MODEL), "fp8"))[0] == 0


def test_a_budget_that_a_search_cannot_keep_is_refused(make_model: Make, tmp_path: Path, cli: Cli) -> None:
    folder, ids = make_model(**MODEL), tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [1, 2, 3]}\n')
    least = -(-least_memory_bytes(planned(folder, "int4_gptq"))[0] >> 20)
    options = ("--quantization", "int4_gptq", "--group-size", "64", "--calibration", ids)
    code, _, err = cli("convert", folder, "-o", tmp_path / "out", *options, "--memory", f"{least - 1}MiB")
    assert (code, "is too small to calibrate int4_gptq: model.layers.0.mlp.down_proj" in err) == (2, True), err
    assert f"--memory {least}MiB is the least" in err
    assert not (tmp_path / "out").exists()
