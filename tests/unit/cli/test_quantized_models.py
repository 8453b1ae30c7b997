"""Models that are quantized already: kept where the layout holds the same numbers, dequantized on request, else refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors, write_safetensors
from tests.unit.quant_sources.folders import pack_low_first

from trtbuild.quant.codecs.base import Scales
from trtbuild.quant.codecs.int4 import Int4Codec, unpack_rows

Cli = Callable[..., tuple[int, str, str]]
Make = Callable[..., Path]


def requantized(given: dict[str, np.ndarray], modules: tuple[str, ...]) -> tuple[dict[str, np.ndarray], float]:
    """Return the codes [out, in] of modules that share the largest of their scales, and that scale."""
    scale = max(given[f"{name}.weight_scale"] for name in modules)
    codes = {}
    for name in modules:
        real = given[f"{name}.weight"].astype(np.float32) * given[f"{name}.weight_scale"]
        codes[name] = np.clip(real / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes, float(scale)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kv", [(), ("--kv-cache", "fp8")])
def test_fp8_codes_and_scales_are_kept_without_calibration(
    kv: tuple[str, ...], tp: int, cli: Cli, tmp_path: Path
) -> None:
    source, out = GOLDENS / "llama" / "hf" / "fp8_kvfp8", tmp_path / "out"
    code, _, err = cli("convert", source, "-o", out, "--quantization", "fp8", "--tp", tp, *kv)
    assert code == 0, err
    assert "(modelopt, FP8) are kept" in err and "calibrating" not in err
    given = read_safetensors(source / "model.safetensors")
    ranks = [read_safetensors(out / f"rank{rank}.safetensors") for rank in range(tp)]
    hf, ours = "model.layers.1", "transformer.layers.1"

    def stored(target: str, axis: int) -> np.ndarray:
        return np.concatenate([rank[f"{ours}.{target}.weight"].view(np.uint8) for rank in ranks], axis=axis)

    for name, target in (("self_attn.o_proj", "attention.dense"), ("mlp.down_proj", "mlp.proj")):
        assert np.array_equal(stored(target, 1), given[f"{hf}.{name}.weight"].view(np.uint8)), (
            "alone: not one bit changes"
        )
        for suffix, key in (("weights_scaling_factor", "weight_scale"), ("activation_scaling_factor", "input_scale")):
            assert ranks[0][f"{ours}.{target}.{suffix}"][0] == pytest.approx(
                float(given[f"{hf}.{name}.{key}"]), rel=1e-6
            )
    shared, scale = requantized(given, (f"{hf}.mlp.gate_proj", f"{hf}.mlp.up_proj"))
    assert np.array_equal(stored("mlp.fc", 0), shared[f"{hf}.mlp.gate_proj"])
    assert np.array_equal(stored("mlp.gate", 0), shared[f"{hf}.mlp.up_proj"])
    assert ranks[0][f"{ours}.mlp.fc.weights_scaling_factor"][0] == pytest.approx(scale, rel=1e-6)
    shared, _ = requantized(given, tuple(f"{hf}.self_attn.{part}_proj" for part in "qkv"))
    q = np.concatenate([rank[f"{ours}.attention.qkv.weight"].view(np.uint8)[: 128 // tp] for rank in ranks])
    assert np.array_equal(q, shared[f"{hf}.self_attn.q_proj"])
    assert cli("verify", out)[0] == 0


def test_ranges_that_the_model_lacks_are_calibrated_with_the_weights_it_has(cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / "mixtral" / "hf" / "fp8", tmp_path / "out"
    calibration = ("--calibration", GOLDENS / "mixtral" / "calibration_ids.safetensors")
    code, _, err = cli("convert", source, "-o", out, "--quantization", "fp8", "--tp", "2", "--ep", "2")
    assert (code, "calibrating" in err) == (0, False), err
    assert cli("verify", out)[0] == 0
    code, _, err = cli(
        "convert", source, "-o", tmp_path / "kv", "--quantization", "fp8", "--kv-cache", "fp8", *calibration
    )
    assert (code, "calibrating" in err) == (0, True), err
    assert cli("verify", tmp_path / "kv")[0] == 0


@pytest.mark.parametrize("name", ["int4_awq_g64", "nvfp4", "fp8_pc_pt", "fp8_block", "fp8_kvfp8"])
def test_what_would_be_dequantized_is_refused_unless_it_is_asked_for(name: str, cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / "llama" / "hf" / name, tmp_path / "out"
    code, _, err = cli("convert", source, "-o", out)
    assert (code, "is already quantized (modelopt" in err, "--dequantize" in err) == (2, True, True)
    assert ("--quantization fp8" in err) == (name == "fp8_kvfp8")
    code, _, err = cli("convert", source, "-o", out, "--dequantize", "--tp", "2")
    assert code == 0, err
    assert "is dequantized first" in err
    assert cli("verify", out)[0] == 0
    plain = read_safetensors(GOLDENS / "llama" / "source" / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    ranks = [read_safetensors(out / f"rank{rank}.safetensors") for rank in range(2)]
    found = np.concatenate([rank["transformer.layers.0.mlp.proj.weight"] for rank in ranks], axis=1).astype(np.float64)
    error = np.sqrt(np.square(found - plain).mean() / np.square(plain.astype(np.float64)).mean())
    assert 0 < error < 0.15


def test_a_dequantized_model_may_be_quantized_anew(cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / "llama" / "hf" / "int4_awq_g64", tmp_path / "out"
    code, _, err = cli("convert", source, "-o", out, "--dequantize", "--quantization", "int8_weight_only")
    assert code == 0, err


def test_formats_that_are_not_read_are_refused_with_a_way_out(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    block = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    code, _, err = cli("plan", make_model(quantization_config=block))
    assert (code, "bitsandbytes" in err, "merge the adapter" in err) == (1, True, True)


def test_a_plain_model_has_nothing_to_dequantize(make_model: Make, cli: Cli) -> None:
    code, _, err = cli("plan", make_model(), "--dequantize")
    assert (code, "is not quantized" in err) == (2, True)


def test_an_adapter_does_not_change_weights_that_are_kept(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli(
        "plan", GOLDENS / "llama" / "hf" / "fp8_kvfp8", "--quantization", "fp8", "--merge-lora", tmp_path / "adapter"
    )
    assert (code, "cannot be added to weights that are kept" in err) == (2, True)


def test_packed_weights_never_end_up_as_numbers(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    tensors = {name: np.array(value) for name, value in read_safetensors(folder / "model.safetensors").items()}
    packed = "model.layers.0.mlp.up_proj"
    tensors[f"{packed}.qweight"] = np.zeros((64, 24), np.int32)
    del tensors[f"{packed}.weight"]
    write_safetensors(folder / "model.safetensors", tensors)
    code, _, err = cli("convert", folder, "-o", tmp_path / "out")
    assert (code, f"lacks 1 tensors that LlamaForCausalLM needs: {packed}.weight" in err) == (1, True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
    }
    (folder / "config.json").write_text(json.dumps(config))
    code, _, err = cli("convert", folder, "-o", tmp_path / "out", "--dequantize")
    assert (code, "awq" in err.lower()) == (1, True)


@pytest.mark.parametrize("name", ["int4_awq_g64", "nvfp4", "fp8_pc_pt", "fp8_block", "w4a8_awq_g64", "fp8_kvfp8"])
def test_the_pytorch_target_copies_what_its_backend_loads(name: str, cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / "llama" / "hf" / name, tmp_path / "out"
    code, _, err = cli("convert", source, "-o", out, "--target", "pytorch")
    assert code == 0, err
    assert "is copied as it is" in err
    assert (out / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    for file in ("hf_quant_config.json", "config.json"):
        given, found = (json.loads((folder / file).read_text()) for folder in (source, out))
        assert given.items() <= found.items()
    assert json.loads((out / "config.json").read_text())["rope_theta"] == 500000.0
    assert cli("verify", out)[0] == 0
    assert "up to date" in cli("convert", source, "-o", out, "--target", "pytorch")[2]
    raw = bytearray((out / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (out / "model.safetensors").write_bytes(raw)
    code, text, _ = cli("verify", out, "--json")
    assert (code, len(json.loads(text)["findings"])) == (3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--layers", "1"), "--layers would change it"), (("--kv-cache", "fp8"), "--kv-cache would change it"), (("--dtype", "bfloat16"), "--dtype would")],
)  # fmt: skip
def test_a_copy_is_not_changed_on_the_way(options: tuple[str, ...], message: str, cli: Cli, tmp_path: Path) -> None:
    source = GOLDENS / "llama" / "hf" / "nvfp4"
    code, _, err = cli("convert", source, "-o", tmp_path / "out", "--target", "pytorch", *options)
    assert (code, message in err) == (2, True), err


def test_the_pytorch_target_refuses_what_its_backend_does_not_load(cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / "llama" / "hf" / "int8_sq", tmp_path / "out"
    code, _, err = cli("convert", source, "-o", out, "--target", "pytorch")
    assert (code, "does not load" in err, "--dequantize" in err) == (2, True, True)
    code, _, err = cli("convert", source, "-o", out, "--target", "pytorch", "--dequantize")
    assert code == 0, err
    assert cli("verify", out)[0] == 0
    code, text, _ = cli("convert", GOLDENS / "llama" / "hf" / "nvfp4", "--target", "pytorch", "--dry-run", "--json")
    assert (code, json.loads(text)["algorithm"]) == (0, "NVFP4")


def test_a_copy_is_refused_for_a_gpu_that_does_not_run_it(cli: Cli) -> None:
    source = GOLDENS / "llama" / "hf" / "nvfp4"
    code, _, err = cli("convert", source, "--target", "pytorch", "--dry-run", "--gpu", "h100")
    assert (code, "quantization 'nvfp4' does not run on h100 (SM90)" in " ".join(err.split())) == (2, True), err
    assert cli("convert", source, "--target", "pytorch", "--dry-run", "--gpu", "b200")[0] == 0


def gptq_folder(folder: Path, *, desc_act: bool = False, zero: int = 8) -> dict[str, np.ndarray]:
    """Write the golden llama as a GPTQ folder of groups of 64; return module -> codes [out, in], -8 to 7."""
    source = read_safetensors(GOLDENS / "llama" / "source" / "model.safetensors")
    tensors, codes, codec = {}, {}, Int4Codec(64)
    for name, weight in source.items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        exact = weight.astype(np.float32)
        scale = codec.of_block(exact, Scales()).weight
        assert scale is not None
        scale = scale.astype(np.float16)
        codes[module] = unpack_rows(codec.encode(exact, Scales(scale.astype(np.float32)), "F16"))
        unsigned = (codes[module].T.astype(np.int64) + zero).clip(0, 15)
        tensors[f"{module}.qweight"] = pack_low_first(unsigned.T, 4).T
        tensors[f"{module}.qzeros"] = pack_low_first(np.full((scale.shape[1], scale.shape[0]), zero - 1), 4)
        tensors[f"{module}.scales"] = np.ascontiguousarray(scale.T)
        index = np.arange(weight.shape[1]) // 64
        tensors[f"{module}.g_idx"] = (index[::-1].copy() if desc_act else index).astype(np.int32)
    config = json.loads((GOLDENS / "llama" / "source" / "config.json").read_text())
    block = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": desc_act, "sym": True}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": block}))
    write_safetensors(folder / "model.safetensors", tensors)
    return codes


@pytest.mark.parametrize("target", ["tensorrt", "pytorch"])
def test_symmetric_gptq_codes_are_kept_in_the_form_of_awq(target: str, cli: Cli, tmp_path: Path) -> None:
    codes = gptq_folder(tmp_path / "model")
    options = ("--quantization", "int4_gptq", "--target", target, "--tp", "2" if target == "tensorrt" else "1")
    code, _, err = cli("convert", tmp_path / "model", "-o", tmp_path / "out", *options)
    assert code == 0, err
    assert "codes and scales (gptq, W4A16_GPTQ) are kept" in err and "unverified" in err and "calibrating" not in err
    assert cli("verify", tmp_path / "out")[0] == 0
    name = "model.layers.1.mlp.down_proj"
    if target == "pytorch":
        found = read_safetensors(tmp_path / "out" / "model.safetensors")
        assert np.array_equal(unpack_rows(found[f"{name}.weight"]), codes[name])
        assert (found[f"{name}.pre_quant_scale"] == 1).all()
        return
    ranks = [read_safetensors(tmp_path / "out" / f"rank{rank}.safetensors") for rank in range(2)]
    stored = [unpack_rows(rank["transformer.layers.1.mlp.proj.weight"]) for rank in ranks]
    assert np.array_equal(np.concatenate(stored, axis=1), codes[name])
    stored = [unpack_rows(rank["transformer.layers.0.mlp.fc.weight"]) for rank in ranks]
    assert np.array_equal(np.concatenate(stored), codes["model.layers.0.mlp.gate_proj"])
    stored = [unpack_rows(rank["transformer.layers.0.attention.qkv.weight"])[64:96] for rank in ranks]
    assert np.array_equal(np.concatenate(stored), codes["model.layers.0.self_attn.k_proj"])


@pytest.mark.parametrize(
    ("changes", "problem"), [({"desc_act": True}, "neighbouring inputs"), ({"zero": 7}, "zero points other than 8")]
)
def test_gptq_codes_that_the_form_cannot_hold_are_refused_before_work(
    changes: dict[str, int], problem: str, cli: Cli, tmp_path: Path
) -> None:
    gptq_folder(tmp_path / "model", **changes)  # type: ignore[arg-type]
    for verb in (("plan", tmp_path / "model"), ("convert", tmp_path / "model", "-o", tmp_path / "out")):
        code, _, err = cli(*verb, "--quantization", "int4_gptq", "--target", "tensorrt")
        assert (code, problem in err, "--dequantize" in err) == (2, True, True), err
    assert not (tmp_path / "out").exists()


def test_codes_of_modelopts_int4_folders_are_kept_and_cut(cli: Cli, tmp_path: Path) -> None:
    source = GOLDENS / "llama" / "hf" / "int4_awq_g64"
    options = ("--quantization", "int4_awq", "--target", "tensorrt", "--tp", "2")
    code, _, err = cli("convert", source, "-o", tmp_path / "out", *options)
    assert code == 0, err
    given = read_safetensors(source / "model.safetensors")
    ranks = [read_safetensors(tmp_path / "out" / f"rank{rank}.safetensors") for rank in range(2)]
    for ours, theirs in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
        name, hf = f"transformer.layers.0.{ours}", f"model.layers.0.{theirs}"
        for suffix, key in (("weight", "weight"), ("weights_scaling_factor", "weight_scale")):
            joined = np.concatenate([rank[f"{name}.{suffix}"] for rank in ranks], axis=1)
            assert joined.tobytes() == given[f"{hf}.{key}"].tobytes()
        joined = np.concatenate([rank[f"{name}.prequant_scaling_factor"] for rank in ranks])
        assert joined.tobytes() == given[f"{hf}.pre_quant_scale"].tobytes()
    assert cli("verify", tmp_path / "out")[0] == 0
    code, _, err = cli("convert", source, "-o", tmp_path / "no", *options, "--group-size", "128")
    assert (code, "has groups of 64" in err) == (2, True)


def test_what_a_copy_leaves_out_is_said(cli: Cli, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(GOLDENS / "llama" / "hf" / "nvfp4", source)
    write_safetensors(source / "model-extra.safetensors", {"extra.weight": np.ones((2, 2), np.float32)})
    code, _, err = cli("convert", source, "-o", out, "--target", "pytorch")
    assert (code, "not read: model-extra.safetensors" in err) == (0, True), err
    assert not (out / "model-extra.safetensors").exists()


@pytest.mark.parametrize(
    ("folder", "scheme"), [("nvfp4", "nvfp4"), ("fp8_pc_pt", "fp8_per_channel_per_token"), ("fp8_block", "fp8_block")]
)
def test_asking_for_what_a_folder_is_copies_it(folder: str, scheme: str, cli: Cli, tmp_path: Path) -> None:
    source = GOLDENS / "llama" / "hf" / folder
    code, _, err = cli("convert", source, "-o", tmp_path / "out", "--target", "pytorch", "--quantization", scheme)
    assert (code, "is copied as it is" in err) == (0, True), err
    given, found = (read_safetensors(each / "model.safetensors") for each in (source, tmp_path / "out"))
    assert all(found[name].tobytes() == tensor.tobytes() for name, tensor in given.items())
