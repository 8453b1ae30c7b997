"""Every scheme: cutting changes nothing, both layouts mean the same model, and the reference target computes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import GOLDENS, read_safetensors

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.names import GROUPED, QUANTIZATIONS
from trtbuild.quant.scheme import load_scheme
from trtbuild.reference.model import load_model

Cli = Callable[..., tuple[int, str, str]]
RANKED = [name for name in QUANTIZATIONS if load_scheme(name).ranks]
#: W4A8 wants multiples of 128 * tp, which the golden models are not at tp 2.
CUT = [name for name in RANKED if name != "w4a8_awq"]
#: Scheme -> how far logits may be from the source's, root mean square over that of the source's; tiny random models lose much.
LOSS = {
    "none": 1e-3, "int8_weight_only": 0.05, "fp8": 0.25, "fp8_per_channel_per_token": 0.25, "fp8_block": 0.25, "int8_smoothquant": 0.12,
    "int4_awq": 0.5, "int4_gptq": 0.4, "int4_rtn": 0.6, "w4a8_awq": 0.5, "int4_weight_only": 0.6, "nvfp4": 0.7,
}  # fmt: skip


def convert(cli: Cli, family: str, name: str, out: Path, *options: object) -> None:
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors", "--allow-unverified")
    group = ("--group-size", "64") if name in GROUPED else ()
    source = GOLDENS / family / "source"
    code, _, err = cli("convert", source, "-o", out, "--quantization", name, *group, *calibration, *options)
    assert code == 0, err


@pytest.mark.parametrize("name", CUT)
def test_what_several_ranks_hold_is_what_one_would(name: str, cli: Cli, tmp_path: Path) -> None:
    convert(cli, "qwen2", name, tmp_path / "one", "--target", "tensorrt")
    convert(cli, "qwen2", name, tmp_path / "four", "--target", "tensorrt", "--tp", "2", "--pp", "2")
    one, four = (open_checkpoint(tmp_path / folder) for folder in ("one", "four"))
    found = dict(four.hf_tensors())
    for tensor, values in one.hf_tensors():
        assert np.array_equal(values, found[tensor]), tensor
    ours, theirs = one.input_roundings(), four.input_roundings()
    assert {module: each.scale for module, each in ours.items()} == {
        module: each.scale for module, each in theirs.items()
    }
    for module, each in ours.items():
        assert (each.multiplier is None) == (theirs[module].multiplier is None)
        assert each.multiplier is None or np.array_equal(each.multiplier, theirs[module].multiplier), module


@pytest.mark.parametrize("name", [name for name in QUANTIZATIONS if load_scheme(name).unified])
def test_both_layouts_are_the_same_model_near_the_source(name: str, cli: Cli, tmp_path: Path) -> None:
    recorded = read_safetensors(GOLDENS / "llama" / "reference_logits.safetensors")
    layouts = ("tensorrt", "pytorch") if load_scheme(name).ranks else ("pytorch",)
    convert(cli, "llama", name, tmp_path / "out", *(word for target in layouts for word in ("--target", target)))
    logits = []
    for target in layouts:
        folder = tmp_path / "out" / target if len(layouts) > 1 else tmp_path / "out"
        model = load_model(open_checkpoint(folder))
        with torch.inference_mode():
            logits.append(model(input_ids=torch.tensor(recorded["input_ids"])).logits.numpy())
    size = np.sqrt(np.mean(recorded["logits"] ** 2))
    for found in logits:
        assert np.sqrt(np.mean((found - recorded["logits"]) ** 2)) / size < LOSS[name]
    if len(layouts) > 1:
        # FP8 is rounded twice in one of them and has other scales, and a folded multiplier is rounded with the norm.
        apart = 0.25 if name in ("fp8", "w4a8_awq") else 0.05 if name == "int4_awq" else 0.005
        assert np.sqrt(np.mean((logits[0] - logits[1]) ** 2)) / size < apart


@pytest.mark.parametrize("name", ["fp8", "int4_awq", "int4_gptq", "nvfp4"])
def test_experts_are_cut_and_put_together_again(name: str, cli: Cli, tmp_path: Path) -> None:
    target = "pytorch" if name == "nvfp4" else "tensorrt"
    cuts = () if target == "pytorch" else ("--tp", "2", "--ep", "2")
    convert(cli, "mixtral", name, tmp_path / "one", "--target", target)
    convert(cli, "mixtral", name, tmp_path / "two", "--target", target, *cuts)
    found = dict(open_checkpoint(tmp_path / "two").hf_tensors())
    source = read_safetensors(GOLDENS / "mixtral" / "source" / "model.safetensors")
    for tensor, values in open_checkpoint(tmp_path / "one").hf_tensors():
        assert np.array_equal(values, found[tensor]), tensor
        exact = source[tensor].astype(np.float32)
        assert np.abs(values.astype(np.float32) - exact).max() <= 0.5 * np.abs(exact).max(), tensor
    assert cli("verify", tmp_path / "two")[0] == 0
