"""Files of NVIDIA's own exporter: names, values against slow oracles, and distance from the weights they were made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors
from tests.unit.quant_sources.folders import dequantized, read_folder

LLAMA = ("fp8_kvfp8", "fp8_pc_pt", "fp8_block", "int4_awq_g64", "w4a8_awq_g64", "nvfp4", "int8_sq")
FOLDERS = [
    *(("llama/source", f"llama/hf/{name}") for name in LLAMA),
    ("qwen2/source", "qwen2/hf/int4_awq_g64"),
    *(("mixtral/hf/trimmed_source", f"mixtral/hf/{name}") for name in ("fp8", "nvfp4")),
]
IDS = [quantized for _, quantized in FOLDERS]
#: The exporter made mixtral/hf/nvfp4 from other random weights than mixtral's source: same names and shapes, unrelated values.
CLOSE = [(plain, quantized) for plain, quantized in FOLDERS if quantized != "mixtral/hf/nvfp4"]
F = np.float32
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _number(raw: dict[str, np.ndarray], name: str) -> np.float32:
    return F(raw[name].reshape(()))


def fp8_tensor(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    return F(raw[f"{module}.weight"][row, column]) * _number(raw, f"{module}.weight_scale")


def fp8_channel(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    return F(raw[f"{module}.weight"][row, column]) * F(raw[f"{module}.weight_scale"][row])


def fp8_block(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    scale = raw[f"{module}.weight_scale"]
    if scale.shape == ():
        return F(raw[f"{module}.weight"][row, column]) * F(scale)
    return F(raw[f"{module}.weight"][row, column]) * F(scale[row // 128, 0, column // 128, 0])


def int4(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    byte = int(raw[f"{module}.weight"][row // 2, column])
    nibble = byte >> 4 if row % 2 else byte & 15
    code = nibble - 16 if nibble > 7 else nibble
    value = F(code) * F(raw[f"{module}.weight_scale"][row, column // 64])
    factors = raw.get(f"{module}.pre_quant_scale")
    return value if factors is None else value * F(factors[column])


def nvfp4(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    byte = int(raw[f"{module}.weight"][row, column // 2])
    nibble = byte >> 4 if column % 2 else byte & 15
    magnitude = E2M1[nibble & 7]
    scale = F(raw[f"{module}.weight_scale"][row, column // 16]) * _number(raw, f"{module}.weight_scale_2")
    return F(-magnitude if nibble & 8 else magnitude) * scale


def int8(raw: dict[str, np.ndarray], module: str, row: int, column: int) -> np.float32:
    value = F(raw[f"{module}.weight"][row, column]) * F(raw[f"{module}.weight_scale"][row])
    return value * F(raw[f"{module}.pre_quant_scale"][column])


ORACLES = {
    "fp8": fp8_tensor,
    "fp8_kvfp8": fp8_tensor,
    "fp8_pc_pt": fp8_channel,
    "fp8_block": fp8_block,
    "int4_awq_g64": int4,
    "w4a8_awq_g64": int4,
    "nvfp4": nvfp4,
    "int8_sq": int8,
}
ALGORITHMS = {
    "fp8": ("FP8", None),
    "fp8_kvfp8": ("FP8", None),
    "fp8_pc_pt": ("FP8_PER_CHANNEL_PER_TOKEN", None),
    "fp8_block": ("FP8_BLOCK", None),
    "int4_awq_g64": ("W4A16_AWQ", 64),
    "w4a8_awq_g64": ("W4A8_AWQ", 64),
    "nvfp4": ("NVFP4", 16),
    "int8_sq": ("INT8", None),
}


def _modules(raw: dict[str, np.ndarray]) -> list[str]:
    return sorted(name.removesuffix(".weight_scale") for name in raw if name.endswith(".weight_scale"))


def _raw(folder: str) -> dict[str, np.ndarray]:
    return read_safetensors(GOLDENS / folder / "model.safetensors")


@pytest.mark.parametrize(("plain", "quantized"), FOLDERS, ids=IDS)
def test_names_and_shapes_are_those_of_the_unquantized_model(plain: str, quantized: str) -> None:
    read = read_folder(GOLDENS / quantized)
    source = _raw(plain)
    assert {name: tensor.shape for name, tensor in read.source.tensors.items()} == {
        name: array.shape for name, array in source.items()
    }
    assert read.method == "modelopt"
    assert (read.algorithm, read.group_size) == ALGORITHMS[Path(quantized).name]
    assert "quantization_config" not in read.source.config
    assert read.source.path == GOLDENS / quantized
    assert read.notes == ()


@pytest.mark.parametrize(("plain", "quantized"), FOLDERS, ids=IDS)
def test_values_are_exactly_those_of_a_slow_loop(plain: str, quantized: str) -> None:
    read, raw = read_folder(GOLDENS / quantized), _raw(quantized)
    oracle = ORACLES[Path(quantized).name]
    for module in _modules(raw):
        values = dequantized(read, f"{module}.weight", step=37)
        # Every eleventh row, so that both nibbles and all blocks are met; every element of those.
        for row in range(0, len(values), 11):
            expected = [oracle(raw, module, row, column) for column in range(values.shape[1])]
            assert np.array_equal(values[row], np.array(expected, dtype=F)), (module, row)


def _allowed_error(raw: dict[str, np.ndarray], module: str, kind: str, source: np.ndarray) -> np.ndarray:
    """Return the most by which each weight may differ from its source, from the scheme's rounding alone."""
    scale = np.asarray(raw[f"{module}.weight_scale"], dtype=F)
    rows, columns = source.shape
    if kind in ("fp8", "fp8_kvfp8", "fp8_pc_pt", "fp8_block"):
        # Half a step of three mantissa bits, and a little more where the exporter rounded twice.
        return 2.0**-4 * 1.01 * np.abs(source) + scale.max() * 2.0**-9
    if kind == "nvfp4":
        # Between 4 and 6 the grid has a step of 2.
        return np.repeat(scale, 16, axis=1) * _number(raw, f"{module}.weight_scale_2") * 1.001
    width = columns // (scale.shape[1] if scale.ndim == 2 else 1)
    step = np.repeat(scale.reshape(rows, -1), width, axis=1)
    factors = raw.get(f"{module}.pre_quant_scale", np.ones(columns, dtype=F)).astype(F)
    # Half a step of the codes; and the exporter kept smoothed weights and their factors in float16 (2^-11 each).
    return 0.5 * 1.001 * step * factors + 2.0**-9 * np.abs(source)


@pytest.mark.parametrize(("plain", "quantized"), CLOSE, ids=[quantized for _, quantized in CLOSE])
def test_values_are_as_close_to_the_source_as_the_scheme_allows(plain: str, quantized: str) -> None:
    read, raw, source = read_folder(GOLDENS / quantized), _raw(quantized), _raw(plain)
    for module in _modules(raw):
        values = dequantized(read, f"{module}.weight", step=64)
        target = source[f"{module}.weight"].astype(F)
        norm = _norm_before(module)
        if norm in raw and not np.array_equal(raw[norm], source[norm]):
            # AWQ folds the factors of q, k, v and of gate, up into the norm before them: the product is what was preserved.
            target = target * source[norm].astype(F) / raw[norm].astype(F)
        allowed = _allowed_error(raw, module, Path(quantized).name, target)
        assert (np.abs(values - target) <= allowed).all(), (module, float(np.max(np.abs(values - target) / allowed)))


def _norm_before(module: str) -> str:
    layer, _, linear = module.rpartition(".")
    norms = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm"),
        **dict.fromkeys(("gate_proj", "up_proj"), "post_attention_layernorm"),
    }
    return f"{layer.rpartition('.')[0]}.{norms.get(linear, 'none')}.weight"


def test_unquantized_tensors_stay_as_they_lie_in_the_file() -> None:
    read, raw = read_folder(GOLDENS / "llama/hf/fp8_kvfp8"), _raw("llama/hf/fp8_kvfp8")
    for name in ("lm_head.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight"):
        assert read.source.tensors[name].dtype == "F16"
    assert np.array_equal(dequantized(read, "lm_head.weight"), raw["lm_head.weight"])


def test_fp8_ranges_and_kv_scales_are_reported() -> None:
    read, raw = read_folder(GOLDENS / "llama/hf/fp8_kvfp8"), _raw("llama/hf/fp8_kvfp8")
    modules = _modules(raw)
    assert sorted(read.input_amax) == sorted(read.weight_amax) == modules
    for module in modules:
        assert read.input_amax[module] == pytest.approx(448 * float(raw[f"{module}.input_scale"]), rel=1e-12)
        assert read.weight_amax[module] == pytest.approx(448 * float(raw[f"{module}.weight_scale"]), rel=1e-12)
        largest = np.abs(_raw("llama/source")[f"{module}.weight"].astype(F)).max()
        assert read.weight_amax[module] == pytest.approx(largest, rel=1e-6)
    assert read.kv_algorithm == "FP8"
    assert read.kv_scales == {
        f"model.layers.{layer}.self_attn": (
            float(raw[f"model.layers.{layer}.self_attn.k_proj.k_scale"]),
            float(raw[f"model.layers.{layer}.self_attn.v_proj.v_scale"]),
        )
        for layer in (0, 1)
    }


def test_ranges_of_inputs_that_the_kernel_multiplies_first_are_left_out() -> None:
    w4a8 = read_folder(GOLDENS / "llama/hf/w4a8_awq_g64")
    assert {name.rpartition(".")[2] for name in w4a8.input_amax} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "gate_proj",
        "up_proj",
    }
    assert read_folder(GOLDENS / "llama/hf/int8_sq").input_amax == {}
    assert w4a8.weight_amax == {}


def test_nvfp4_input_range_matches_the_fp8_export_of_the_same_model() -> None:
    nvfp4_amax = read_folder(GOLDENS / "llama/hf/nvfp4").input_amax
    fp8_amax = read_folder(GOLDENS / "llama/hf/fp8_kvfp8").input_amax
    first = "model.layers.0.self_attn.q_proj"
    assert nvfp4_amax[first] == pytest.approx(fp8_amax[first], rel=1e-6)
    assert sorted(nvfp4_amax) == sorted(fp8_amax)


@pytest.mark.parametrize("keep", ["config.json", "hf_quant_config.json"])
def test_one_of_the_two_declarations_is_enough_where_it_says_all(tmp_path: Path, keep: str) -> None:
    import json
    import shutil

    shutil.copytree(GOLDENS / "llama/hf/nvfp4", tmp_path / "m")
    if keep == "config.json":
        (tmp_path / "m" / "hf_quant_config.json").unlink()
    else:
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        del config["quantization_config"]
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    read = read_folder(tmp_path / "m")
    assert (read.method, read.algorithm, read.group_size) == ("modelopt", "NVFP4", 16)
