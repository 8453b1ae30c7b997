"""Unified Hugging Face folders against those of NVIDIA's exporter (nvidia-modelopt 0.47.0; mixtral 0.37.0): tensors to the byte, scales to
1e-6, config fields.

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

Cli = Callable[..., tuple[int, str, str]]
VARIANTS: dict[str, tuple[str, ...]] = {
    "fp8": ("--quantization", "fp8"),
    "fp8_kvfp8": ("--quantization", "fp8", "--kv-cache", "fp8"),
    "fp8_pc_pt": ("--quantization", "fp8_per_channel_per_token"),
    "fp8_block": ("--quantization", "fp8_block"),
    "nvfp4": ("--quantization", "nvfp4"),
}
#: The exporter's nvfp4 of mixtral was made from other weights.
CASES = [
    *((family, variant) for family in ("llama", "qwen2", "gpt2") for variant in VARIANTS),
    *(("mixtral", variant) for variant in ("fp8", "fp8_pc_pt", "fp8_block")),
]
#: Fields of `quantization_config` and hf_quant_config.json that are not the exporter's, and why.
DIFFERENT = {"producer": "names the tool"}
#: Modules that 0.47.0 lists and 0.37.0, which wrote mixtral, does not (unified checkpoint specification 2.1); both load.
NEWER_EXCLUSIONS = {"mixtral": {"model.embed_tokens"}}
#: The down projections of mixtral's experts see what the layers before made of float16 sums over experts, which transformers 4.57
#: (golden) and 5 add in another order: name -> tolerance of their scales.
LOOSE = {"mixtral": (".w2.input_scale", 2e-3)}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return {
        family: json.loads((GOLDENS / family / "unified.json").read_text())
        for family in sorted({case[0] for case in CASES})
    }


def convert(cli: Cli, family: str, variant: str, out: Path, *more: object) -> None:
    calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors", "--calibration-dtype", "float16")
    source = GOLDENS / family / "source"
    code, _, err = cli("convert", source, "-o", out, "--target", "pytorch", *VARIANTS[variant], *calibration, *more)
    assert code == 0, err


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_the_folder_equals_the_exporters(
    family: str, variant: str, golden: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    convert(cli, family, variant, tmp_path / "out")
    expected = golden[family][variant]
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert sorted(found) == sorted(expected["tensors"])
    for name, entry in expected["tensors"].items():
        tensor = found[name]
        assert (tensor.dtype.name, list(tensor.shape)) == (entry["dtype"], entry["shape"]), name
        if "values" in entry:
            suffix, loose = LOOSE.get(family, ("-", 0))
            tolerance = loose if name.endswith(suffix) else 1e-6
            assert tensor.reshape(-1).tolist() == pytest.approx(entry["values"], rel=tolerance), name
        else:
            assert hashlib.sha256(tensor.tobytes()).hexdigest() == entry["sha256"], name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = dict(expected["config"])
    assert described(config.pop("quantization_config"), "ignore", family) == described(
        theirs.pop("quantization_config"), "ignore", family
    )
    assert {key: config.get(key) for key in theirs} == theirs
    quantization = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert quantization["producer"]["name"] == "trtbuild"
    assert described(quantization["quantization"], "exclude_modules", family) == described(
        expected["hf_quant_config"]["quantization"], "exclude_modules", family
    )


def described(block: dict[str, Any], exclusions: str, family: str) -> dict[str, Any]:
    """Return what both tools must say alike; the order of the excluded modules means nothing."""
    kept = {key: value for key, value in block.items() if key not in DIFFERENT}
    return {**kept, exclusions: sorted(set(kept[exclusions]) - NEWER_EXCLUSIONS.get(family, set()))}


def test_both_layouts_come_from_one_calibration(golden: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    convert(cli, "llama", "fp8_kvfp8", tmp_path / "out", "--target", "tensorrt", "--tp", "2", "--embedding", "vocab")
    theirs = json.loads((GOLDENS / "llama" / "golden.json").read_text())["fp8_kvfp8_tp2"]
    for index, tensors in enumerate(theirs["ranks"]):
        ours = read_safetensors(tmp_path / "out" / "tensorrt" / f"rank{index}.safetensors")
        assert sorted(ours) == sorted(tensors)
        for name, entry in tensors.items():
            if "sha256" in entry:
                assert hashlib.sha256(ours[name].tobytes()).hexdigest() == entry["sha256"], name
    ours = read_safetensors(tmp_path / "out" / "pytorch" / "model.safetensors")
    for name, entry in golden["llama"]["fp8_kvfp8"]["tensors"].items():
        if "sha256" in entry:
            assert hashlib.sha256(ours[name].tobytes()).hexdigest() == entry["sha256"], name
    written = [json.loads((tmp_path / "out" / name / "manifest.json").read_text()) for name in ("tensorrt", "pytorch")]
    assert written[0]["calibration"] == written[1]["calibration"]
    assert [each["target"] for each in written] == ["tensorrt", "pytorch"]


def test_what_transformers_4_needs_is_added(cli: Cli, tmp_path: Path) -> None:
    convert(cli, "llama", "fp8", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "rope_theta" not in json.loads((GOLDENS / "llama" / "source" / "config.json").read_text())
    assert (config["rope_theta"], config["torch_dtype"], config["dtype"]) == (500000.0, "float16", "float16")


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_folder_of_the_exporter_is_kept_bit_for_bit(family: str, cli: Cli, tmp_path: Path) -> None:
    source, kv = GOLDENS / family / "hf" / "fp8", ()
    if family == "llama":
        source, kv = GOLDENS / family / "hf" / "fp8_kvfp8", ("--kv-cache", "fp8")
    options = ("--target", "pytorch", "--quantization", "fp8", *kv)
    code, _, err = cli("convert", source, "-o", tmp_path / "out", *options)
    assert (code, "calibrating" in err) == (0, False), err
    given, found = (read_safetensors(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert sorted(given) == sorted(found)
    for name, tensor in given.items():
        if name.endswith("_scale"):
            assert float(found[name]) == pytest.approx(float(tensor), rel=1e-6), name
        else:
            assert found[name].tobytes() == tensor.tobytes(), name
