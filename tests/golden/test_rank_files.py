"""Rank files against those of NVIDIA's exporter (nvidia-modelopt 0.47.0): tensors to the byte, scales to 1e-6, config fields.

Where the two differ on purpose, the difference is listed here with its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import GOLDENS, read_safetensors

FAMILIES = ("llama", "qwen2", "gpt2", "mixtral")
VARIANTS: dict[str, tuple[str, ...]] = {
    "fp16": (),
    "fp16_tp2": ("--tp", "2"),
    "fp16_pp2": ("--pp", "2"),
    "fp8_kvfp8": ("--quantization", "fp8", "--kv-cache", "fp8"),
    "fp8_kvfp8_tp2": ("--quantization", "fp8", "--kv-cache", "fp8", "--tp", "2"),
    "fp8": ("--quantization", "fp8"),
    "fp8_tp2": ("--quantization", "fp8", "--tp", "2"),
    "nvfp4": ("--quantization", "nvfp4"),
}
#: The exporter could not write an FP8 KV cache for mixtral, and its FP8 was exported alone for no other family.
CASES = [
    (family, variant)
    for family in FAMILIES
    for variant in VARIANTS
    if variant.startswith("fp16") or (family == "mixtral") == (variant in ("fp8", "fp8_tp2"))
]
#: Fields of the exporter's config.json that ours does not share, and why.
DIFFERENT = {
    "producer": "names the tool",
    "logits_dtype": "float32 is what NVIDIA's converters and the loader default to; safer for accuracy",
    "rank": "an accident of the exporter; ignored by the loader",
    "decoder": "the exporter's own bookkeeping",
    "rmsnorm": "the exporter's own bookkeeping",
    "lm_head_bias": "the exporter's own bookkeeping",
    "bias": "not read by these classes; attn_bias and mlp_bias are",
    "rotary_pct": "1.0 is the default",
    "share_embedding_table": "legacy",
    "residual_mlp": "Qwen's class has no such field",
}


#: The same for one family: where exporter and loader disagree, the loader's rule (the specification) is followed.
DIFFERENT_IN = {
    "gpt2": {
        "position_embedding_type": "the exporter writes rope_gpt_neox; GPT-2 has learned positions",
        "hidden_act": "the loader maps gelu_new and gelu to the same function; ours keeps the source's name",
    }
}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return {family: json.loads((GOLDENS / family / "golden.json").read_text()) for family in FAMILIES}


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_rank_files_equal_the_exporters(
    family: str, variant: str, golden: dict[str, Any], cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors", "--calibration-dtype", "float16")
    options = (*VARIANTS[variant], "--embedding", "vocab", *calibration)
    code, _, err = cli("convert", GOLDENS / family / "source", "-o", tmp_path / "out", *options)
    assert code == 0, err
    expected = golden[family][variant]
    assert len(list((tmp_path / "out").glob("rank*.safetensors"))) == len(expected["ranks"])
    for index, tensors in enumerate(expected["ranks"]):
        found = read_safetensors(tmp_path / "out" / f"rank{index}.safetensors")
        assert sorted(found) == sorted(tensors)
        for name, entry in tensors.items():
            tensor = found[name]
            assert (tensor.dtype.name, list(tensor.shape)) == (entry["dtype"], entry["shape"]), name
            if "values" in entry:
                assert tensor.reshape(-1).tolist() == pytest.approx(entry["values"], rel=1e-6), name
            else:
                assert hashlib.sha256(tensor.tobytes()).hexdigest() == entry["sha256"], name


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_config_fields_equal_the_exporters(
    family: str, variant: str, golden: dict[str, Any], cli: Callable[..., tuple[int, str, str]]
) -> None:
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors")
    code, out, err = cli(
        "convert",
        GOLDENS / family / "source",
        *VARIANTS[variant],
        "--embedding",
        "vocab",
        *calibration,
        "--dry-run",
        "--json",
    )
    assert code == 0, err
    ours, theirs = json.loads(out)["config"], golden[family][variant]["config"]
    ours["quantization"].pop(
        "exclude_modules", None
    )  # ours lists all six patterns the loader needs, theirs lm_head alone
    theirs["quantization"].pop("exclude_modules", None)
    shared = {key: value for key, value in theirs.items() if key not in DIFFERENT | DIFFERENT_IN.get(family, {})}
    assert {key: ours.get(key) for key in shared} == shared


def test_the_rotary_base_that_the_exporter_loses_is_written(
    golden: dict[str, Any], cli: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = cli("convert", GOLDENS / "llama" / "source", "--dry-run", "--json")
    assert code == 0
    assert "rotary_base" not in golden["llama"]["fp16"]["config"]
    assert json.loads(out)["config"]["rotary_base"] == 500000.0


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_float32_calibration_differs_only_slightly(
    family: str, golden: dict[str, Any], cli: Callable[..., Any], tmp_path: Path
) -> None:
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors")
    code, _, err = cli(
        "convert", GOLDENS / family / "source", "-o", tmp_path / "out", "--quantization", "fp8", *calibration
    )
    assert code == 0, err
    found = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    for name, entry in golden[family]["fp8_kvfp8"]["ranks"][0].items():
        if name.endswith(("weights_scaling_factor", "activation_scaling_factor")):
            assert float(found[name][0]) == pytest.approx(entry["values"][0], rel=3e-3), name
