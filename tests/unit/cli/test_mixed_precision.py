"""Excluded linears, schemes of their own, and what cannot be mixed: exactly what was named, in both layouts, read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import read_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.unified_checkpoint import UnifiedCheckpoint

Cli = Callable[..., tuple[int, str, str]]
Make = Callable[..., Path]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.fixture
def model(make_model: Make) -> Path:
    return make_model(**SIZES, num_hidden_layers=11)


def convert(cli: Cli, model: Path, out: Path, *options: object) -> str:
    code, _, err = cli("convert", model, "-o", out, *options)
    assert code == 0, err
    for folder in [out] if (out / "manifest.json").is_file() else out.iterdir():
        assert cli("verify", folder)[0] == 0
    return err


def test_exactly_the_excluded_modules_stay_as_they_are(model: Path, cli: Cli, tmp_path: Path) -> None:
    # As the shell does it, * matches any text: model.layers.1* is layers 1 and 10.
    options = ("--quantization", "fp8_per_channel_per_token", "--exclude", "lm_head", "--exclude", "*.down_proj")
    options = (*options, "--exclude", "model.layers.1*", "--exclude", "*.dwon_proj")
    err = convert(cli, model, tmp_path / "out", "--target", "tensorrt", *options)
    assert "the pattern *.dwon_proj matches no module" in err and "lm_head matches" not in err
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    plain = {name for name, tensor in tensors.items() if tensor.ndim == 2 and tensor.itemsize == 2}
    plain -= {"lm_head.weight", "transformer.vocab_embedding.weight"}
    linears = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    expected = {f"transformer.layers.{layer}.{name}.weight" for layer in (1, 10) for name in linears}
    expected |= {f"transformer.layers.{layer}.mlp.proj.weight" for layer in range(11)}
    assert plain == expected
    listed = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]["exclude_modules"]
    assert {f"{name}.weight" for name in listed if name.startswith("transformer.layers")} == expected
    assert "*lm_head" in listed


def test_schemes_of_their_own_are_written_listed_and_read_back(model: Path, cli: Cli, tmp_path: Path) -> None:
    options = ("--quantization", "fp8_per_channel_per_token", "--override", "*.mlp.*=int4_rtn", "--exclude", "*.2.*")
    targets = ("--target", "tensorrt", "--target", "pytorch")
    convert(cli, model, tmp_path / "both", *options, *targets)
    ranks, folder = tmp_path / "both" / "tensorrt", tmp_path / "both" / "pytorch"
    config = json.loads((ranks / "config.json").read_text())["quantization"]
    assert config == {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
    layers = json.loads((ranks / "quant_cfg.json").read_text())["quantized_layers"]
    assert layers["transformer.layers.0.attention.qkv"] == {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    awq = {"quant_algo": "W4A16_AWQ", "group_size": 128, "has_zero_point": False, "pre_quant_scale": True}
    assert layers["transformer.layers.0.mlp.proj"] == awq
    assert not [name for name in layers if ".layers.2." in name]
    block = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert (block["quant_algo"], block["quantized_layers"]["model.layers.3.mlp.up_proj"]) == ("MIXED_PRECISION", awq)
    assert "model.layers.2.mlp.up_proj" in block["exclude_modules"]
    assert json.loads((folder / "quant_cfg.json").read_text()) == block
    one, two = dict(Checkpoint.open(ranks).hf_tensors()), dict(UnifiedCheckpoint.open(folder).hf_tensors())
    source = read_safetensors(model / "model.safetensors")
    for name, weight in source.items():
        exact = weight.astype(np.float32)
        for found in (one[name].astype(np.float32), two[name].astype(np.float32)):
            limit = 0.07 if ".mlp." in name else 0.04
            assert np.abs(found - exact).max() <= np.abs(exact).max() * limit * 2, name


def test_a_calibrated_scheme_can_stand_beside_one_without_inputs(model: Path, cli: Cli, tmp_path: Path) -> None:
    ids = tmp_path / "ids.jsonl"
    ids.write_text("".join(json.dumps({"input_ids": list(range(row, row + 40))}) + "\n" for row in range(3)))
    options = ("--quantization", "fp8", "--override", "*.down_proj=int4_awq", "--calibration", ids, "--kv-cache", "fp8")
    convert(cli, model, tmp_path / "out", "--target", "tensorrt", "--tp", "2", "--group-size", "64", *options)
    tensors = read_safetensors(tmp_path / "out" / "rank1.safetensors")
    assert tensors["transformer.layers.0.mlp.proj.weight"].dtype == np.int8
    assert "transformer.layers.0.mlp.proj.activation_scaling_factor" not in tensors
    assert tensors["transformer.layers.0.mlp.fc.activation_scaling_factor"].shape == (1,)
    roundings = Checkpoint.open(tmp_path / "out").input_roundings()
    assert "model.layers.0.mlp.up_proj" in roundings
    assert "model.layers.0.mlp.down_proj" not in roundings


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--exclude", "*.q_proj"), "kernels read as one are to be quantized differently"),
        (("--exclude", "*.up_proj"), "kernels read as one"),
        (("--override", "*.mlp.*=int8_weight_only"), "quantized by the loader, all linears alike"),
        (("--override", "*.mlp.*=int5"), "unknown scheme 'int5' for *.mlp.*"),
        (("--override", "down_proj"), "is not PATTERN=SCHEME"),
        (("--pp", "2", "--exclude", "model.layers.0.*"), "quantized differently in two pipeline stages"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_work(
    options: tuple[str, ...], problem: str, model: Path, cli: Cli, tmp_path: Path
) -> None:
    for verb in (("plan", model), ("convert", model, "-o", tmp_path / "out")):
        code, _, err = cli(*verb, "--target", "tensorrt", "--quantization", "fp8_per_channel_per_token", *options)
        assert (code, problem in err) == (2, True), err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--quantization", "fp8", "--act-order"), "error: --act-order applies to int4_gptq, not to 'fp8'"),
        (
            ("--quantization", "int4_awq", "--smoothquant-alpha", "0.3"),
            "error: --smoothquant-alpha applies to int8_smoothquant",
        ),
        *(
            (("--quantization", scheme, "--group-size", "64"), f"error: --group-size: scheme '{scheme}' has no groups")
            for scheme in ("fp8", "nvfp4", "int8_smoothquant")
        ),
        (("--quantization", "fp8", "--override", "*=fp9"), "error: --override: unknown scheme 'fp9' for *"),
        (("--gpu", "banana"), "error: --gpu: unknown GPU 'banana'; known: v100"),
        (("--ep", "2"), "has no experts"),
    ],
)
def test_options_of_another_scheme_are_refused(options: tuple[str, ...], problem: str, model: Path, cli: Cli) -> None:
    code, _, err = cli("plan", model, "--target", "tensorrt", *options)
    assert (code, problem in err) == (2, True), err
    assert f"hint: leave out {options[-2] if options[-1][0] != '-' else options[-1]}, or" in err or "use --ep 1" in err
    assert "trtbuild schema" not in err


def test_patterns_without_an_effect_are_told(model: Path, tmp_path: Path, cli: Cli) -> None:
    common = ("plan", model, "--target", "tensorrt", "--quantization", "fp8_per_channel_per_token")
    code, out, err = cli(*common, "--override", "*.dwon_proj=int4_rtn")
    assert (code, "the pattern *.dwon_proj matches no module" in out + err) == (0, True), out + err
    ids = tmp_path / "ids.jsonl"
    ids.write_text(json.dumps({"input_ids": list(range(40))}))
    code, out, err = cli(*common, "--override", "*=fp8", "--calibration", ids)
    assert (code, "no linear is quantized with" in out + err) == (0, True), out + err


@pytest.mark.parametrize("target", ["tensorrt", "pytorch", "reference"])
@pytest.mark.parametrize(
    "patterns",
    [("--exclude", "*"), ("--exclude", "model.layers.*"), ("--exclude", "*.mlp.*", "--exclude", "*_attn*"), ("--override", "*=none")],
)  # fmt: skip
def test_a_scheme_of_which_nothing_is_left_is_refused_before_any_work(
    target: str, patterns: tuple[str, ...], model: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    code, _, err = cli("convert", model, "-o", out, "--target", target, "--quantization", "fp8", *patterns)
    assert code == 2, err
    assert "quantization 'fp8' has nothing to quantize: the patterns exclude every linear" in " ".join(err.split())
    assert "use --quantization none" in " ".join(err.split())
    assert not out.exists()


@pytest.mark.parametrize("pattern", ["lm_head", "lm_*"])
def test_a_scheme_for_the_head_is_refused(pattern: str, model: Path, cli: Cli) -> None:
    for target in ("tensorrt", "pytorch"):
        options = (
            "--target",
            target,
            "--quantization",
            "fp8_per_channel_per_token",
            "--override",
            f"{pattern}=int4_rtn",
        )
        code, _, err = cli("plan", model, *options)
        assert (code, "the head is never quantized" in err) == (2, True), err
    # A pattern for linears may match the head as well, and what is left alone anyway may be named.
    for rule in (("--override", "*=int4_rtn"), ("--override", "lm_head=none"), ("--exclude", "lm_head")):
        code, _, err = cli("plan", model, "--quantization", "fp8_per_channel_per_token", *rule)
        assert code == 0, err


def test_sizes_of_the_server_are_a_note_where_nothing_has_groups(model: Path, cli: Cli) -> None:
    options = ("--target", "pytorch", "--quantization", "fp8_per_channel_per_token", "--tp", "5", "--pp", "7")
    code, out, err = cli("convert", model, *options, "--dry-run", "-o", model.parent / "out")
    assert (code, "for the server only" in out + err) == (0, True), out + err
    # The folder can be written; a deployment that no server can cut is refused.
    code, _, err = cli("plan", model, *options)
    assert (code, "cannot be split over tp=5" in err) == (2, True), err
