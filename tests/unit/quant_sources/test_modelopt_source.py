"""ModelOpt folders: what does not fit is named before any weight is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conftest import GOLDENS
from tests.unit.quant_sources.folders import X, change, read_folder, weight_of, write_folder

from trtbuild.errors import TrtbuildError

F8 = ml_dtypes.float8_e4m3fn
RNG = np.random.default_rng(7)


def fp8_linear() -> dict[str, np.ndarray]:
    codes = RNG.normal(0, 60, size=(6, 10)).astype(np.float32).astype(F8)
    return {
        f"{X}.weight": codes,
        f"{X}.weight_scale": np.float32(0.01).reshape(()),
        f"{X}.input_scale": np.float32(0.5).reshape(()),
    }


def int4_linear(group_size: int = 4) -> dict[str, np.ndarray]:
    return {
        f"{X}.weight": RNG.integers(0, 256, size=(3, 8), dtype=np.uint8),
        f"{X}.weight_scale": RNG.uniform(0.01, 0.1, size=(6, 8 // group_size)).astype(np.float32),
    }


def modelopt(path: Path, tensors: dict[str, np.ndarray], algo: str | None, **facts: Any) -> Path:
    """Write a folder with `hf_quant_config.json` only, as ModelOpt 0.2x did."""
    write_folder(path, tensors, None)
    quantization = {"quant_algo": algo, **facts}
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return path


def _copy(name: str, path: Path, algo: str) -> Path:
    """Copy a golden folder and declare another algorithm in both files."""
    shutil.copytree(GOLDENS / "llama/hf" / name, path)
    for file, key in (("config.json", "quantization_config"), ("hf_quant_config.json", "quantization")):
        content = json.loads((path / file).read_text())
        content[key]["quant_algo"] = algo
        content[key]["group_size"] = 64
        (path / file).write_text(json.dumps(content))
    return path


def test_names_of_another_algorithm_are_listed_as_surplus_with_their_count(tmp_path: Path) -> None:
    # As reported by users: tensors of W4A8 under a declaration of W4A16.
    folder = _copy("w4a8_awq_g64", tmp_path / "m", "W4A16_AWQ")
    with pytest.raises(TrtbuildError) as error:
        read_folder(folder)
    assert "surplus: model.layers.0.mlp.down_proj.input_scale, " in error.value.message
    assert "model.layers.0.mlp.down_proj.weight_scale_2" in error.value.message
    assert "and 18 more (28 in all)" in error.value.message
    assert "missing" not in error.value.message


def test_tensors_that_the_declared_algorithm_needs_are_listed_as_missing(tmp_path: Path) -> None:
    folder = _copy("int4_awq_g64", tmp_path / "m", "W4A8_AWQ")
    with pytest.raises(TrtbuildError, match=r"missing: model.layers.0.mlp.down_proj.input_scale, .*28 in all"):
        read_folder(folder)


def test_same_names_with_other_dtypes_are_refused(tmp_path: Path) -> None:
    folder = _copy("fp8_pc_pt", tmp_path / "m", "W4A16_AWQ")
    with pytest.raises(TrtbuildError, match=r"weight is F8_E4M3, expected U8 or I8"):
        read_folder(folder)


@pytest.mark.parametrize("part", ["weight", "weight_scale", "input_scale"])
def test_a_removed_tensor_is_named(tmp_path: Path, part: str) -> None:
    folder = modelopt(tmp_path / "m", change(fp8_linear(), **{part: None}), "FP8")
    with pytest.raises(
        TrtbuildError, match=rf"modelopt FP8, but its tensors do not fit: missing: {X}.{part} the"
    ) as error:
        read_folder(folder)
    assert str(folder) in error.value.message
    assert error.value.hint


def test_packed_tensors_that_belong_to_no_linear_are_surplus(tmp_path: Path) -> None:
    tensors = {**fp8_linear(), "model.layers.0.mlp.gate_up_packed": np.zeros((4, 4), dtype=np.int32)}
    with pytest.raises(TrtbuildError, match="surplus: model.layers.0.mlp.gate_up_packed"):
        read_folder(modelopt(tmp_path / "m", tensors, "FP8"))


def test_plain_weights_under_a_declaration_are_their_own_error(tmp_path: Path) -> None:
    tensors = {f"{X}.weight": np.ones((4, 4), dtype=np.float16)}
    with pytest.raises(TrtbuildError, match="declares modelopt FP8, but none of its linears is quantized"):
        read_folder(modelopt(tmp_path / "m", tensors, "FP8"))


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    folder = modelopt(tmp_path / "m", fp8_linear(), "NVFP4")
    write_folder(folder, fp8_linear(), {"quant_method": "modelopt", "quant_algo": "FP8"})
    with pytest.raises(TrtbuildError, match="says quant_algo 'NVFP4', config.json beside it says 'FP8'"):
        read_folder(folder)


def test_an_algorithm_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="quant_algo 'MXFP8', which is not read") as error:
        read_folder(modelopt(tmp_path / "m", fp8_linear(), "MXFP8"))
    assert "W4A16_AWQ" in error.value.hint


@pytest.mark.parametrize("size", [None, 0, "128"])
def test_int4_needs_a_declared_group_size(tmp_path: Path, size: Any) -> None:
    with pytest.raises(TrtbuildError, match=f"with group_size {size!r}"):
        read_folder(modelopt(tmp_path / "m", int4_linear(), "W4A16_AWQ", group_size=size))


def test_a_group_size_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"weight of \[6, 8\], whose 8 inputs are not a multiple .* group_size 3"):
        read_folder(modelopt(tmp_path / "m", int4_linear(), "W4A16_AWQ", group_size=3))


def test_a_group_size_that_the_scales_contradict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=rf"{X}.weight_scale has shape \[6, 2\].*\[1, 8\] needs \[6, 1\]"):
        read_folder(modelopt(tmp_path / "m", int4_linear(), "W4A16_AWQ", group_size=8))


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        ("weight_scale", np.ones(5, dtype=np.float32), r"weight_scale has shape \[5\]"),
        ("input_scale", np.ones(2, dtype=np.float32), r"input_scale has shape \[2\], expected \[1\]"),
        ("weight", np.ones((2, 3, 4), dtype=F8), r"weight has shape \[2, 3, 4\], expected two axes"),
        ("weight_scale", np.int32(1).reshape(()), "weight_scale is I32, expected F32"),
    ],
)
def test_wrong_shapes_and_dtypes_are_named(tmp_path: Path, part: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(TrtbuildError, match=message):
        read_folder(modelopt(tmp_path / "m", change(fp8_linear(), **{part: array}), "FP8"))


def test_a_pre_quant_scale_of_another_length_is_refused(tmp_path: Path) -> None:
    tensors = change(int4_linear(), pre_quant_scale=np.ones(6, dtype=np.float16))
    with pytest.raises(TrtbuildError, match=r"pre_quant_scale has shape \[6\], expected \[8\]"):
        read_folder(modelopt(tmp_path / "m", tensors, "W4A16_AWQ", group_size=4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("part", ["weight_scale", "input_scale"])
def test_scales_of_one_number_are_checked_when_the_folder_is_read(tmp_path: Path, part: str, value: float) -> None:
    tensors = change(fp8_linear(), **{part: np.float32(value).reshape(())})
    with pytest.raises(TrtbuildError, match=f"{X}.{part} holds the scale {value}"):
        read_folder(modelopt(tmp_path / "m", tensors, "FP8"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 0.0])
def test_group_scales_are_checked_when_rows_are_read(tmp_path: Path, value: float) -> None:
    tensors = int4_linear()
    tensors[f"{X}.weight"][:] = 0x11
    tensors[f"{X}.weight_scale"][4, 1] = value
    folder = modelopt(tmp_path / "m", tensors, "W4A16_AWQ", group_size=4)
    with pytest.raises(TrtbuildError, match=f"{X}.weight_scale holds the scale {value}"):
        weight_of(folder)


def test_a_zero_scale_over_zero_codes_is_a_zero_group(tmp_path: Path) -> None:
    tensors = int4_linear()
    tensors[f"{X}.weight"][1, 4:] &= 0xF0  # row 2
    tensors[f"{X}.weight_scale"][2, 1] = 0
    values = weight_of(modelopt(tmp_path / "m", tensors, "W4A16_AWQ", group_size=4))
    assert not values[2, 4:].any()
    assert values[3, 4:].any()


def test_a_pre_quant_scale_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    tensors = change(int4_linear(), pre_quant_scale=np.array([1, 1, 1, 0, 1, 1, 1, 1], dtype=np.float16))
    folder = modelopt(tmp_path / "m", tensors, "W4A16_AWQ", group_size=4)
    with pytest.raises(TrtbuildError, match="pre_quant_scale holds the scale 0.0"):
        weight_of(folder)


def test_a_nan_code_is_refused(tmp_path: Path) -> None:
    tensors = fp8_linear()
    tensors[f"{X}.weight"].view(np.uint8)[5, 9] = 0x7F
    with pytest.raises(TrtbuildError, match=f"{X}.weight yields nan"):
        weight_of(modelopt(tmp_path / "m", tensors, "FP8"))


def test_int8_weight_only_is_code_times_row_scale(tmp_path: Path) -> None:
    codes = RNG.integers(-128, 128, size=(5, 7), dtype=np.int8)
    scale = RNG.uniform(0.01, 0.1, size=5).astype(np.float32)
    folder = modelopt(tmp_path / "m", {f"{X}.weight": codes, f"{X}.weight_scale": scale}, "W8A16")
    expected = np.empty((5, 7), dtype=np.float32)
    for row in range(5):
        for column in range(7):
            expected[row, column] = np.float32(codes[row, column]) * scale[row]
    assert np.array_equal(weight_of(folder), expected)


def test_mixed_precision_takes_each_modules_own_algorithm(tmp_path: Path) -> None:
    other = "model.layers.0.mlp.down_proj"
    tensors = {**fp8_linear(), **{name.replace(X, other): array for name, array in int4_linear().items()}}
    layers = {X: {"quant_algo": "FP8"}, other: {"quant_algo": "W4A16_AWQ", "group_size": 4}}
    read = read_folder(modelopt(tmp_path / "m", tensors, "MIXED_PRECISION", quantized_layers=layers))
    assert (read.algorithm, read.group_size) == ("MIXED_PRECISION", None)
    assert sorted(read.weight_amax) == [X]
    del layers[other]
    with pytest.raises(TrtbuildError, match=f"{other} has quantized tensors .* declares no algorithm for it"):
        read_folder(modelopt(tmp_path / "n", tensors, "MIXED_PRECISION", quantized_layers=layers))
    with pytest.raises(TrtbuildError, match="without quantized_layers"):
        read_folder(modelopt(tmp_path / "o", tensors, "MIXED_PRECISION"))


def test_half_a_pair_of_kv_scales_is_refused(tmp_path: Path) -> None:
    tensors = {**fp8_linear(), "model.layers.0.self_attn.k_proj.k_scale": np.float32(1).reshape(())}
    with pytest.raises(TrtbuildError, match="missing: model.layers.0.self_attn.v_proj.v_scale"):
        read_folder(modelopt(tmp_path / "m", tensors, "FP8", kv_cache_quant_algo="FP8"))


def test_an_fp8_kv_cache_alone_leaves_the_weights_plain(tmp_path: Path) -> None:
    attention = "model.layers.0.self_attn"
    tensors = {
        f"{X}.weight": np.ones((4, 4), dtype=np.float16),
        f"{attention}.k_proj.k_scale": np.float32(0.25).reshape(()),
        f"{attention}.v_proj.v_scale": np.float32(0.5).reshape(()),
    }
    read = read_folder(modelopt(tmp_path / "m", tensors, None, kv_cache_quant_algo="FP8"))
    assert (read.algorithm, read.kv_algorithm) == ("NONE", "FP8")
    assert read.kv_scales == {attention: (0.25, 0.5)}
    assert read.source.tensors[f"{X}.weight"].dtype == "F16"


def test_an_fp8_kv_cache_without_scales_is_still_asked_for(tmp_path: Path) -> None:
    read = read_folder(modelopt(tmp_path / "m", fp8_linear(), "FP8", kv_cache_quant_algo="FP8"))
    assert (read.kv_algorithm, read.kv_scales, read.notes) == ("FP8", {}, ())


def test_an_nvfp4_kv_cache_is_told_and_not_promised(tmp_path: Path) -> None:
    read = read_folder(modelopt(tmp_path / "m", fp8_linear(), "FP8", kv_cache_quant_algo="NVFP4"))
    assert read.kv_algorithm is None
    assert any("KV cache in NVFP4, which is not converted" in note for note in read.notes)


def test_models_stored_transposed_are_refused(tmp_path: Path) -> None:
    folder = modelopt(tmp_path / "m", fp8_linear(), "FP8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(TrtbuildError, match="quantized gpt2 model, whose plain weights are stored the other way round"):
        read_folder(folder)


def test_nothing_of_a_weight_is_read_while_the_folder_is_read(tmp_path: Path) -> None:
    # The file is cut off behind the scales: reading any weight would fail.
    folder = modelopt(tmp_path / "m", fp8_linear(), "FP8")
    from trtbuild.quant.sources import read_quantized
    from trtbuild.safetensors_file import TensorReader
    from trtbuild.source import SourceCheckpoint

    source = SourceCheckpoint.open(folder)
    seen: list[str] = []
    original = TensorReader._read

    def spy(self: TensorReader, info: Any, offset: int, nbytes: int) -> Any:
        seen.append(info.name)
        return original(self, info, offset, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorReader, "_read", spy)
        read_quantized(source)
    assert sorted(set(seen)) == [f"{X}.input_scale", f"{X}.weight_scale"]
