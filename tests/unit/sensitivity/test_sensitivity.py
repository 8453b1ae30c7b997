"""Mixtures within a budget: the choice on plain numbers, and the measurement on a real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import GOLDENS, read_safetensors, write_safetensors

from trtbuild.errors import UsageError
from trtbuild.sensitivity.choose import Group, choose

Cli = Callable[..., tuple[int, str, str]]
Make = Callable[..., Path]
SOURCE = GOLDENS / "llama" / "source"
DATA = ("--calibration", GOLDENS / "llama" / "calibration_ids.safetensors", "--target", "tensorrt")
BITS = {"small": 4.0, "middle": 8.0, "large": 16.0}


def group(weights: int, small: float, middle: float) -> Group:
    return Group(0, ("x",), weights, BITS, {"small": small, "middle": middle, "large": 0.0})


ERRORS = st.floats(0, 1, width=32)
GROUPS = st.lists(st.builds(group, st.integers(1, 50), ERRORS, ERRORS), min_size=1, max_size=4)


@settings(deadline=None)
@given(GROUPS, st.floats(4, 20))
def test_the_budget_is_kept_and_more_of_it_is_never_worse(groups: list[Group], budget: float) -> None:
    choice = choose(groups, budget)
    total = sum(each.weights for each in groups)
    used = sum(BITS[name] * each.weights for each, name in zip(groups, choice.schemes, strict=True))
    assert used <= budget * total * (1 + 1e-9)
    assert choice.bits_per_weight == pytest.approx(used / total)
    assert choose(groups, 16).error == 0
    least = min(
        sum(each.errors[name] for each, name in zip(groups, names, strict=True))
        for names in product(BITS, repeat=len(groups))
        if sum(BITS[name] * each.weights for each, name in zip(groups, names, strict=True)) <= budget * total
    )
    assert choice.error >= least - 1e-9


def test_the_most_sensitive_linear_gets_the_bits() -> None:
    choice = choose([group(10, 0.1, 0.01), group(10, 0.9, 0.01), group(10, 0.2, 0.01)], 5.4)
    assert choice.schemes == ("small", "middle", "small")


def test_a_budget_below_the_smallest_scheme_is_an_error() -> None:
    with pytest.raises(UsageError, match="3 bits per weight are less than the smallest scheme takes"):
        choose([group(10, 0.1, 0.0)], 3)


def test_a_linear_with_outliers_is_found_and_the_mixture_can_be_built(cli: Cli, tmp_path: Path) -> None:
    tensors = read_safetensors(SOURCE / "model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    damaged = tensors[f"{name}.weight"].copy()
    damaged[:, ::64] *= 40  # one large weight in each group of inputs
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes((SOURCE / "config.json").read_bytes())
    write_safetensors(tmp_path / "model" / "model.safetensors", {**tensors, f"{name}.weight": damaged})
    mixed = tmp_path / "mixed.yaml"
    code, out, err = cli("sensitivity", tmp_path / "model", *DATA, "--bits-per-weight", "5", "-o", mixed, "--json")
    assert code == 0, err
    found = json.loads(out)
    groups = {tuple(each["modules"]): each for each in found["groups"]}
    assert len(groups) == 2 * 4
    assert max(groups.values(), key=lambda each: each["errors"]["int4_awq"])["modules"] == [name]
    assert groups[name,]["scheme"] != "int4_awq"
    assert found["bits_per_weight"] <= 5
    assert all(
        each["errors"]["none"] == 0 < each["errors"]["fp8"] < each["errors"]["int4_awq"] for each in groups.values()
    )
    quantization = yaml.safe_load(mixed.read_text())["quantization"]
    assert (quantization["scheme"], name in quantization["overrides"]) == ("int4_awq", True)
    code, _, err = cli("plan", mixed)
    assert code == 0, err
    assert cli("sensitivity", tmp_path / "model", *DATA, "--bits-per-weight", "5", "-o", mixed)[0] == 1, "not replaced"


def test_errors_are_those_of_the_outputs(cli: Cli) -> None:
    """By hand for one linear: q, k and v see the normalized embedding in layer 0."""
    code, out, err = cli(
        "sensitivity", SOURCE, *DATA, "--bits-per-weight", "9", "--schemes", "fp8_per_channel_per_token", "--json"
    )
    assert code == 0, err
    first = json.loads(out)["groups"][0]
    assert first["modules"] == [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    tensors = {
        name: tensor.astype(np.float64) for name, tensor in read_safetensors(SOURCE / "model.safetensors").items()
    }
    ids = read_safetensors(GOLDENS / "llama" / "calibration_ids.safetensors")["input_ids"].reshape(-1)
    hidden = tensors["model.embed_tokens.weight"][ids]
    epsilon = json.loads((SOURCE / "config.json").read_text())["rms_norm_eps"]
    inputs = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + epsilon)
    inputs *= tensors["model.layers.0.input_layernorm.weight"]
    error = energy = 0.0
    for module in first["modules"]:
        weight = tensors[f"{module}.weight"]
        scale = np.abs(weight).max(axis=1, keepdims=True) / 448
        import ml_dtypes

        rounded = (weight / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
        error += float(((inputs @ (rounded - weight).T) ** 2).sum())
        energy += float(((inputs @ weight.T) ** 2).sum())
    assert first["errors"]["fp8_per_channel_per_token"] == pytest.approx(error / energy, rel=1e-2)


@pytest.mark.parametrize("schemes", ["int5", "", "fp8,int9"])
def test_unknown_schemes_are_refused(schemes: str, cli: Cli) -> None:
    code, _, err = cli("sensitivity", SOURCE, *DATA, "--bits-per-weight", "5", "--schemes", schemes)
    assert (code, "--schemes" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--quantization", "fp8"), "--quantization: this command chooses"),
        (("--override", "*=nvfp4"), "--override: this command chooses"),
        (("--schemes", "int8_weight_only,none"), "made by the loader for all linears alike"),
    ],
)
def test_what_has_no_effect_is_refused_before_work(options: tuple[str, ...], problem: str, cli: Cli) -> None:
    code, _, err = cli("sensitivity", SOURCE, *DATA, "--bits-per-weight", "5", *options)
    assert (code, problem in err, "measuring" in err) == (2, True, False), err


def test_a_budget_that_is_no_number_is_refused(make_model: Make, cli: Cli) -> None:
    for budget in ("nan", "inf"):
        code, _, err = cli("sensitivity", make_model(name=budget), "--bits-per-weight", budget)
        assert (code, f"'{budget}' is no finite number in the range x>0" in err) == (2, True), err


def test_a_weight_that_is_not_finite_is_named(make_model: Make, tmp_path: Path, cli: Cli) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan

    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [1, 2, 3, 4]}\n')
    options = ("--bits-per-weight", "9", "--schemes", "fp8,none", "--calibration", ids, "-o", tmp_path / "out.yaml")
    code, _, err = cli("sensitivity", make_model(edit=edit), *options)
    assert (code, "tensor model.layers.1.mlp.up_proj.weight holds 1 values that are NaN" in err) == (1, True), err
    assert not (tmp_path / "out.yaml").exists()
