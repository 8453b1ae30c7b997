"""Several schemes in one checkpoint against NVIDIA's exporter (nvidia-modelopt 0.47.0; tests/goldens/README.md says how they were made).

FP8, NVFP4 and what is left alone to the byte, scales to 1e-6; of INT4 AWQ, whose search is our own, names, dtypes and shapes; both layouts,
and what each JSON file says about every module.
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

Cli = Callable[..., tuple[int, str, str]]
LLAMA = GOLDENS / "llama"
VARIANTS: dict[str, tuple[str, ...]] = {
    "fp8_int4_awq": (
        "--quantization", "fp8", "--kv-cache", "fp8", "--override", "*.mlp.*=int4_awq", "--group-size", "64",
    ),
    "nvfp4_fp8": ("--quantization", "fp8", "--override", "*.1.mlp.down_proj=fp8", "--override", "*.mlp.*=nvfp4"),
    "fp8_none": ("--quantization", "fp8", "--exclude", "*.o_proj"),
}  # fmt: skip
#: Linears whose numbers come from a search, and the norms that take up their multipliers.
SEARCHED = {"fp8_int4_awq": (".mlp.", "post_attention_layernorm")}
#: Ranges behind layers that the exporter smoothed first, in float16: suffix -> tolerance.
LOOSE = {"fp8_int4_awq": (".v_scale", 1e-3)}
#: The exporter excludes nothing in a mixed checkpoint; the loader then needs no list, and takes one.
EXCLUSIONS = {"exclude_modules", "ignore"}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return {layout: json.loads((LLAMA / f"mixed_{layout}.json").read_text()) for layout in ("ranks", "unified")}


def convert(cli: Cli, variant: str, out: Path, *more: object) -> None:
    calibration = ("--calibration", LLAMA / "calibration_ids.safetensors", "--calibration-dtype", "float16")
    code, _, err = cli("convert", LLAMA / "source", "-o", out, *VARIANTS[variant], *calibration, *more)
    assert code == 0, err
    assert cli("verify", out)[0] == 0


def compare(variant: str, found: dict[str, np.ndarray[Any, Any]], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, entry in expected.items():
        tensor = found[name]
        assert (tensor.dtype.name, list(tensor.shape)) == (entry["dtype"], entry["shape"]), name
        if any(part in name for part in SEARCHED.get(variant, ())):
            continue
        if "values" in entry:
            suffix, loose = LOOSE.get(variant, ("-", 0))
            tolerance = loose if name.endswith(suffix) else 1e-6
            assert tensor.reshape(-1).tolist() == pytest.approx(entry["values"], rel=tolerance), name
        else:
            assert hashlib.sha256(tensor.tobytes()).hexdigest() == entry["sha256"], name


def without_exclusions(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in {*EXCLUSIONS, "producer"}}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rank_files_are_the_exporters(variant: str, golden: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    convert(cli, variant, tmp_path / "out", "--target", "tensorrt", "--embedding", "vocab")
    expected = golden["ranks"][variant]
    compare(variant, read_safetensors(tmp_path / "out" / "rank0.safetensors"), expected["ranks"][0])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == expected["config"]["vocab_size"]
    theirs = without_exclusions(expected["config"]["quantization"])
    assert {key: config["quantization"].get(key) for key in theirs} == theirs
    file = tmp_path / "out" / "quant_cfg.json"
    assert (json.loads(file.read_text()) if file.is_file() else None) == expected.get("quant_cfg")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_folder_is_the_exporters(variant: str, golden: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    convert(cli, variant, tmp_path / "out", "--target", "pytorch")
    expected = golden["unified"][variant]
    compare(variant, read_safetensors(tmp_path / "out" / "model.safetensors"), expected["tensors"])
    ours, theirs = (
        without_exclusions(each["quantization_config"])
        for each in (json.loads((tmp_path / "out" / "config.json").read_text()), expected["config"])
    )
    assert ours == theirs
    described = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert without_exclusions(described) == without_exclusions(expected["hf_quant_config"]["quantization"])
