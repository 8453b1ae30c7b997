"""Hints name what works: for this model, target, release and GPU, found by the checks of `plan` itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.errors import UsageError, Way

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
QUANTIZED = Path(__file__).parents[2] / "goldens" / "llama" / "hf"


def test_of_each_kind_the_first_way_that_works_is_named() -> None:
    ways = [
        Way("a", {"x": 1}, "k"),
        Way("b", {"x": 2}, "k"),
        Way("c", {"x": 3}, "k"),
        Way("d", {"x": 4}),
        Way("e", {"x": 5}),
    ]
    error = UsageError("no", hint="or z", ways=ways)
    assert error.hint == "a; d; e; or z"
    assert error.keeping(lambda way: way.settings["x"] not in (1, 4)).hint == "b; e; or z"
    assert error.keeping(lambda _: False).hint == "or z"
    assert UsageError("no", ways=ways).keeping(lambda _: False).hint


@pytest.mark.parametrize("verb", [("plan",), ("build", "-o", "OUT"), ("convert", "--dry-run")])
@pytest.mark.parametrize(
    ("folder", "target", "there", "absent"),
    [
        ("int8_sq", "tensorrt", ["--dequantize", "unquantized model"], ["--target pytorch", "keep it"]),
        ("int8_sq", "pytorch", ["--dequantize"], ["--target tensorrt"]),
        ("fp8_pc_pt", "tensorrt", ["copy the folder with --target pytorch", "--dequantize"], ["keep it"]),
        ("fp8_kvfp8", "tensorrt", ["keep it with --quantization fp8", "--target pytorch"], []),
    ],
)
def test_a_quantized_folder_is_not_sent_to_a_target_that_refuses_it(
    cli: Cli, tmp_path: Path, verb: tuple[str, ...], folder: str, target: str, there: list[str], absent: list[str]
) -> None:
    arguments = [str(tmp_path / "out") if word == "OUT" else word for word in verb[1:]]
    code, _, err = cli(verb[0], QUANTIZED / folder, "--target", target, *arguments)
    assert code == 2
    for part in there:
        assert part in err
    for part in absent:
        assert part not in err


@pytest.mark.parametrize(
    ("scheme", "gpu", "target"),
    [
        ("fp8", "a100", "tensorrt"),
        ("nvfp4", "h100", "pytorch"),
        ("int4_awq", "b200", "tensorrt"),
        ("int8_smoothquant", "h100", "pytorch"),
        ("int8_weight_only", "b200", "tensorrt"),
        ("fp8_block", "h100", "tensorrt"),
        ("w4a8_awq", "rtx5090", "pytorch"),
    ],
)
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4}])
def test_the_nearest_format_is_one_that_this_model_takes(
    make_model: Make, cli: Cli, tmp_path: Path, scheme: str, gpu: str, target: str, sizes: dict[str, int]
) -> None:
    folder = make_model(**sizes)
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [1, 2, 3]}\n')

    def plan(*options: str) -> tuple[int, str, str]:
        return cli("plan", folder, "--gpu", gpu, "--calibration", ids, "--calibration-field", "input_ids", *options)

    code, _, err = plan("--quantization", scheme, "--target", target)
    assert code == 2
    (near,) = re.findall(r"nearest that does is --quantization (\w+)", err)
    assert plan("--quantization", near, "--target", target)[0] == 0
    for other in re.findall(r"itself works with --target (\w+)", err):
        assert plan("--quantization", scheme, "--target", other)[0] == 0


@pytest.mark.parametrize("name", ["fp8_block", "fp8_pc_pt", "nvfp4", "int4_awq_g64", "w4a8_awq_g64", "fp8_kvfp8"])
def test_a_copy_is_planned_and_told_as_a_copy(cli: Cli, tmp_path: Path, name: str) -> None:
    """One decision, one text: what the folder holds is copied, nothing is dequantized, calibrated or read twice."""
    source = QUANTIZED / name
    held = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    code, out, err = cli("plan", source, "--target", "pytorch")
    assert code == 0, err
    for part in ("dequantized", "calibrates", "reads", "conversion to", "without effect"):
        assert part not in out
    assert out.count("copied as it is") == 1
    assert "copies " in out
    plan = json.loads(cli("plan", source, "--target", "pytorch", "--json")[1])
    assert plan["conversion"]["is_copy"] is True
    assert plan["conversion"]["calibration_needed"] is False
    assert plan["host"]["conversion_s_excludes_calibration"] is False
    assert plan["host"]["conversion_memory_bytes"] < 2**28
    assert {plan["disk_bytes"], plan["host"]["disk_bytes"], plan["conversion"]["read_bytes"]} == {held}
    code, _, err = cli("build", source, "--target", "pytorch", "-o", tmp_path / "out")
    assert code == 0, err
    assert (tmp_path / "out" / "checkpoint" / "model.safetensors").stat().st_size == held


def test_the_memory_of_a_copy_is_that_of_its_own_groups(cli: Cli) -> None:
    plan = json.loads(cli("plan", QUANTIZED / "int4_awq_g64", "--target", "pytorch", "--json")[1])
    (rank,) = plan["memory"]["ranks"]
    scales = next(line["bytes"] for line in rank["lines"] if line["name"] == "scales")
    config = json.loads((QUANTIZED / "int4_awq_g64" / "config.json").read_text())
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    kv = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    weights = layers * (2 * hidden * hidden + 2 * kv * hidden + 3 * inner * hidden)
    assert scales >= 2 * weights // 64
    assert scales < 1.5 * 2 * weights // 64, "scales of the groups, and of inputs"
