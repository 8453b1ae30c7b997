"""INT4 AWQ, W4A8 and SmoothQuant against NVIDIA's exporter: names, dtypes and shapes; and, fed with its own multipliers and scales, bytes.

Its search for AWQ is its own, so the numbers of a whole conversion cannot be equal; `quant/search` has tests that ours is no worse. SmoothQuant
has no search: multipliers and scales of a whole conversion are equal to 1e-6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors

from trtbuild.convert.encoding import Knowledge
from trtbuild.convert.execute import execute, run_sinks
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.convert.unified import UnifiedSink
from trtbuild.parallel import Parallel
from trtbuild.quant.codecs.int4 import unpack_rows
from trtbuild.quant.recipes import Recipe, Recipes, write_recipes
from trtbuild.source import SourceCheckpoint
from trtbuild.unified_layout import UnifiedLayout

Cli = Callable[..., tuple[int, str, str]]
FAMILIES = ("llama", "qwen2", "gpt2")
#: Golden -> what is asked for.
SCHEMES: dict[str, dict[str, Any]] = {
    "int4_awq_g64": {"quantization": "int4_awq", "group_size": 64},
    "int4_awq_g64_tp2": {"quantization": "int4_awq", "group_size": 64, "parallel": Parallel(2, vocab_embedding=True)},
    "w4a8_awq_g64": {"quantization": "w4a8_awq", "group_size": 64},
    "int8_sq": {"quantization": "int8_smoothquant"},
}
UNIFIED = ("int4_awq_g64", "w4a8_awq_g64", "int8_sq")
#: The exporter runs GPT-2's transposed layers (Conv1D) as linears, whose sums in float16 end in other last digits: of the last MLP, a few
#: channels have other ranges, and a few rows other scales. Family -> parts of names, and what their numbers may differ by.
OTHER_SUMS = {"gpt2": ((".1.mlp.", ".h.1.mlp."), 3e-3)}
#: The exporter finds the multipliers of gate and up apart in rank files; ours share one, as they must in unified folders.
OWN_MULTIPLIER = "mlp.gate"


def planned(family: str, variant: str, **more: Any) -> ConversionPlan:
    options = ConversionOptions(**SCHEMES[variant], allow_unverified=True, **more)
    return plan_conversion(OpenedSource(SourceCheckpoint.open(GOLDENS / family / "source")), options)


def golden(family: str, file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDENS / family / file).read_text())
    return loaded


def their_recipes(plan: ConversionPlan, tensors: dict[str, np.ndarray], folder: Path, *, codes: bool) -> Recipes:
    """Turn the exporter's rank file into recipes by Hugging Face module, rows as the source has them."""
    folder.mkdir()
    by_layer: dict[int, dict[str, Recipe]] = {}
    for slot in plan.layout.slots:
        if not slot.rule.quantizable:
            continue
        row, scales = 0, tensors[f"{slot.module}.weights_scaling_factor"]
        unpacked = unpack_rows(tensors[slot.target])
        for module in dict.fromkeys(part.module for part in slot.parts):
            rows = sum(part.shape[0] for part in slot.parts if part.module == module)
            span = slice(row, row + rows)
            by_layer.setdefault(slot.layer, {})[module] = Recipe(
                tensors[f"{slot.module}.prequant_scaling_factor"].astype(np.float32),
                scales[span],
                unpacked[span] if codes else None,
            )
            row += rows
    for layer, recipes in by_layer.items():
        write_recipes(folder, layer, recipes.items())
    return Recipes.open(folder)


@pytest.mark.parametrize("variant", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rank_files_have_the_exporters_tensors(family: str, variant: str) -> None:
    plan = planned(family, variant)
    theirs = golden(family, "golden.json")[variant]
    for rank, tensors in zip(plan.layout.parallel.ranks(), theirs["ranks"], strict=True):
        ours = {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in plan.layout.tensors(rank)}
        names = {"float16": "F16", "float32": "F32", "int8": "I8"}
        assert ours == {name: (names[entry["dtype"]], entry["shape"]) for name, entry in tensors.items()}
    config = plan.config()
    assert config["vocab_size"] == theirs["config"]["vocab_size"]
    block = {key: value for key, value in theirs["config"]["quantization"].items() if key != "exclude_modules"}
    assert {key: config["quantization"].get(key) for key in block} == block


@pytest.mark.parametrize("variant", UNIFIED)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_folder_has_the_exporters_tensors(family: str, variant: str) -> None:
    unified = UnifiedLayout.of(planned(family, variant, layouts=("unified",)).layout)
    names = {"float16": "F16", "float32": "F32", "int8": "I8", "uint8": "U8"}
    theirs = golden(family, "unified.json")[variant]["tensors"]
    ours = {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in unified.files["model.safetensors"]}
    assert ours == {name: (names[entry["dtype"]], entry["shape"]) for name, entry in theirs.items()}


@pytest.mark.parametrize("variant", ["int4_awq_g64", "int4_awq_g64_tp2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_its_codes_and_scales_give_its_files(family: str, variant: str, tmp_path: Path) -> None:
    tensors = read_safetensors(GOLDENS / family / "trtllm" / "int4_awq_g64" / "rank0.safetensors")
    plan = planned(family, variant)
    recipes = their_recipes(planned(family, "int4_awq_g64"), tensors, tmp_path / "recipes", codes=True)
    (tmp_path / "out").mkdir()
    execute(plan, tmp_path / "out", stats=None, recipes=recipes, advance=lambda _: None)
    for index, expected in enumerate(golden(family, "golden.json")[variant]["ranks"]):
        found = read_safetensors(tmp_path / "out" / f"rank{index}.safetensors")
        for name, entry in expected.items():
            if name.endswith(f"{OWN_MULTIPLIER}.prequant_scaling_factor"):
                continue
            if "sha256" in entry:
                assert hashlib.sha256(found[name].tobytes()).hexdigest() == entry["sha256"], name
            else:
                assert found[name].astype(np.float32).reshape(-1).tolist() == entry["values"], name


@pytest.mark.parametrize("family", FAMILIES)
def test_its_multipliers_and_scales_give_nearly_its_codes(family: str, tmp_path: Path) -> None:
    """It divides by a multiplier that it does not store, and rounds the quotient to float16 in between: one code in a thousand differs by one."""
    tensors = read_safetensors(GOLDENS / family / "trtllm" / "int4_awq_g64" / "rank0.safetensors")
    plan = planned(family, "int4_awq_g64")
    recipes = their_recipes(plan, tensors, tmp_path / "recipes", codes=False)
    (tmp_path / "out").mkdir()
    execute(plan, tmp_path / "out", stats=None, recipes=recipes, advance=lambda _: None)
    found = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    for slot in plan.layout.slots:
        if slot.rule.quantizable and not slot.module.endswith(OWN_MULTIPLIER):
            ours, theirs = unpack_rows(found[slot.target]), unpack_rows(tensors[slot.target])
            assert (ours == theirs).mean() > 0.999, slot.target
            assert np.abs(ours - theirs).max() <= 1, slot.target


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_multipliers_are_folded_into_norms_as_it_does(family: str, tmp_path: Path) -> None:
    theirs = read_safetensors(GOLDENS / family / "hf" / "int4_awq_g64" / "model.safetensors")
    source = read_safetensors(GOLDENS / family / "source" / "model.safetensors")
    plan = planned(family, "int4_awq_g64", layouts=("unified",))
    unified = UnifiedLayout.of(plan.layout)
    (tmp_path / "recipes").mkdir()
    by_layer: dict[int, dict[str, Recipe]] = {0: {}, 1: {}}
    for weight in unified.weights:
        if weight.form is None:
            continue
        multiplier = theirs.get(f"{weight.part.module}.pre_quant_scale")
        if weight.folded_into:
            norms = (each[weight.folded_into].astype(np.float32) for each in (theirs, source))
            multiplier = np.divide(*norms)
        assert multiplier is not None
        layer = int(weight.part.module.split(".")[2])
        by_layer[layer][weight.part.module] = Recipe(
            multiplier.astype(np.float32), theirs[f"{weight.part.module}.weight_scale"]
        )
    for layer, recipes in by_layer.items():
        write_recipes(tmp_path / "recipes", layer, recipes.items())
    (tmp_path / "out").mkdir()
    knowledge = Knowledge(plan, None, Recipes.open(tmp_path / "recipes"))
    with UnifiedSink(knowledge, unified, tmp_path / "out") as sink:
        run_sinks(plan, [sink], advance=lambda _: None)
        sink.finish()
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    for name, tensor in theirs.items():
        if tensor.dtype == np.uint8:
            assert (unpack_rows(found[name]) == unpack_rows(tensor)).mean() > 0.998, name
        else:
            assert found[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("target", ["tensorrt", "pytorch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_smoothquant_has_its_multipliers_and_scales(family: str, target: str, cli: Cli, tmp_path: Path) -> None:
    """Its codes are of weights divided by a multiplier that it does not store and rounded to float16: one in a hundred differs by one."""
    options = ("--quantization", "int8_smoothquant", "--smoothquant-alpha", "1.0", "--allow-unverified")
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors", "--calibration-dtype", "float16")
    code, _, err = cli(
        "convert", GOLDENS / family / "source", "-o", tmp_path / "out", "--target", target, *options, *calibration
    )
    assert code == 0, err
    if target == "tensorrt":
        expected, file = golden(family, "golden.json")["int8_sq"]["ranks"][0], "rank0.safetensors"
    else:
        expected, file = golden(family, "unified.json")["int8_sq"]["tensors"], "model.safetensors"
    found = read_safetensors(tmp_path / "out" / file)
    names, loose = OTHER_SUMS.get(family, ((), 0.0))
    compared = 0
    for name, entry in expected.items():
        if "values" in entry:
            tolerance = loose if any(part in name for part in names) else 1e-6
            ours = found[name].astype(np.float32).reshape(-1)
            np.testing.assert_allclose(ours, np.array(entry["values"], np.float32), rtol=tolerance, err_msg=name)
            compared += 1
        elif entry["dtype"] != "int8":
            assert hashlib.sha256(found[name].tobytes()).hexdigest() == entry["sha256"], name
    assert compared == 3 * sum(entry["dtype"] == "int8" for entry in expected.values())


def test_smoothquant_codes_are_nearest_to_weights_divided_by_the_stored_multiplier(cli: Cli, tmp_path: Path) -> None:
    source = GOLDENS / "llama" / "source"
    calibration = ("--calibration", GOLDENS / "llama" / "calibration_ids.safetensors")
    code, _, err = cli("convert", source, "-o", tmp_path / "out", "--quantization", "int8_smoothquant", *calibration)
    assert code == 0, err
    weights, found = (
        read_safetensors(source / "model.safetensors"),
        read_safetensors(tmp_path / "out" / "rank0.safetensors"),
    )
    for layer in range(2):
        exact = weights[f"model.layers.{layer}.mlp.down_proj.weight"].astype(np.float64)
        module = f"transformer.layers.{layer}.mlp.proj"
        smoothed = exact / found[f"{module}.prequant_scaling_factor"].astype(np.float64)
        scales = found[f"{module}.weights_scaling_factor"].astype(np.float64)[:, None]
        assert (np.abs(found[f"{module}.weight"] * scales - smoothed) <= scales / 2 * (1 + 1e-5)).all()
