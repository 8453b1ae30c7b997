"""compressed-tensors folders: each storage against a slow loop, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.quant_sources.folders import X, change, pack_low_first, read_folder, weight_of, write_folder

from trtbuild.errors import TrtbuildError

F = np.float32
F8 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
DYNAMIC = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token", "symmetric": True}


def block_of(
    stored_as: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Return a quantization_config with one group."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
        **more,
    }


def float8(*, strategy: str, **more: Any) -> dict[str, Any]:
    return block_of("float-quantized", {"num_bits": 8, "type": "float", "strategy": strategy, **more}, DYNAMIC)


def codes8(rows: int, columns: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 60, size=(rows, columns)).astype(F).astype(F8)


def scales(*shape: int, seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.01, 0.1, size=shape).astype(F)


@pytest.mark.parametrize(
    ("block", "shape", "algorithm"),
    [
        (float8(strategy="tensor"), (1,), "FP8"),
        (float8(strategy="channel"), (5, 1), "FP8_PER_CHANNEL_PER_TOKEN"),
        (float8(strategy="block", block_structure=[2, 4]), (3, 2), "FP8_BLOCK"),
    ],
    ids=["tensor", "channel", "block"],
)
@pytest.mark.parametrize("dtype", [F, BF16])
def test_fp8_is_code_times_scale(
    tmp_path: Path, block: dict[str, Any], shape: tuple[int, ...], algorithm: str, dtype: type
) -> None:
    codes, scale = codes8(5, 7), scales(*shape).astype(dtype)
    folder = write_folder(tmp_path / "m", {f"{X}.weight": codes, f"{X}.weight_scale": scale}, block)
    rows, columns = {1: (5, 7), 2: (1, 7)}[len(shape)] if shape != (3, 2) else (2, 4)
    grid = scale.reshape(-(-5 // rows), -(-7 // columns))
    expected = np.empty((5, 7), dtype=F)
    for row in range(5):
        for column in range(7):
            expected[row, column] = F(codes[row, column]) * F(grid[row // rows, column // columns])
    assert np.array_equal(weight_of(folder), expected)
    read = read_folder(folder)
    assert (read.method, read.algorithm, read.group_size) == ("compressed-tensors", algorithm, None)
    assert read.input_amax == {}
    assert read.weight_amax == ({X: 448 * float(scale[0])} if shape == (1,) else {})


def test_static_fp8_inputs_and_the_kv_cache_are_reported(tmp_path: Path) -> None:
    attention = "model.layers.0.self_attn"
    block = block_of(
        "naive-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
        {**DYNAMIC, "dynamic": False, "strategy": "tensor"},
        kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
    )
    tensors = {
        f"{X}.weight": codes8(4, 4),
        f"{X}.weight_scale": np.array([0.5], dtype=BF16),
        f"{X}.input_scale": np.array([0.25], dtype=BF16),
        f"{attention}.k_scale": np.array([0.125], dtype=BF16),
        f"{attention}.v_scale": np.array([2.0], dtype=BF16),
    }
    read = read_folder(write_folder(tmp_path / "m", tensors, block))
    assert read.input_amax == {X: 112.0}
    assert read.weight_amax == {X: 224.0}
    assert (read.kv_algorithm, read.kv_scales) == ("FP8", {attention: (0.125, 2.0)})
    with pytest.raises(TrtbuildError, match=f"missing: {X}.input_scale"):
        read_folder(write_folder(tmp_path / "n", change(tensors, input_scale=None), block))


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_int8_subtracts_zero_points_where_there_are_any(tmp_path: Path, is_symmetric: bool, strategy: str) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-128, 128, size=(5, 7), dtype=np.int8)
    shape = (1,) if strategy == "tensor" else (5, 1)
    scale, zero = scales(*shape), rng.integers(-20, 20, size=shape, dtype=np.int8)
    weights = {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": is_symmetric}
    tensors = {f"{X}.weight": codes, f"{X}.weight_scale": scale}
    if not is_symmetric:
        tensors[f"{X}.weight_zero_point"] = zero
    folder = write_folder(tmp_path / "m", tensors, block_of("int-quantized", weights, {**DYNAMIC, "type": "int"}))
    expected = np.empty((5, 7), dtype=F)
    for row in range(5):
        for column in range(7):
            where = 0 if strategy == "tensor" else row
            shift = 0 if is_symmetric else int(zero.reshape(-1)[where])
            expected[row, column] = F(int(codes[row, column]) - shift) * scale.reshape(-1)[where]
    assert np.array_equal(weight_of(folder), expected)
    assert read_folder(folder).algorithm == "INT8"


def test_static_int8_inputs_stand_for_half_the_range_of_255(tmp_path: Path) -> None:
    inputs = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
    tensors = {
        f"{X}.weight": np.ones((4, 4), dtype=np.int8),
        f"{X}.weight_scale": scales(4, 1),
        f"{X}.input_scale": np.array([0.5], dtype=F),
    }
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    read = read_folder(write_folder(tmp_path / "m", tensors, block_of("int-quantized", weights, inputs)))
    assert read.input_amax == {X: 63.75}
    # An asymmetric range is not told by its scale alone.
    asymmetric = block_of("int-quantized", weights, {**inputs, "symmetric": False})
    tensors[f"{X}.input_zero_point"] = np.array([3], dtype=np.int8)
    assert read_folder(write_folder(tmp_path / "n", tensors, asymmetric)).input_amax == {}


def packed_linear(
    *, bits: int, rows: int, columns: int, groups: int, is_symmetric: bool, index: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the tensors of a packed linear and the weight that a slow loop makes of its codes."""
    rng = np.random.default_rng(bits + columns)
    half = 2 ** (bits - 1)
    codes = rng.integers(-half, half, size=(rows, columns))
    zero = np.zeros((rows, groups), dtype=np.int64) if is_symmetric else rng.integers(-half, half, size=(rows, groups))
    scale = scales(rows, groups).astype(BF16)
    tensors = {
        f"{X}.weight_packed": pack_low_first(codes + half, bits),
        f"{X}.weight_scale": scale,
        f"{X}.weight_shape": np.array([rows, columns], dtype=np.int64),
    }
    if not is_symmetric:
        tensors[f"{X}.weight_zero_point"] = pack_low_first((zero + half).T, bits).T
    if index is not None:
        tensors[f"{X}.weight_g_idx"] = index.astype(np.int32)
    expected = np.empty((rows, columns), dtype=F)
    for row in range(rows):
        for column in range(columns):
            group = int(index[column]) if index is not None else column // (columns // groups)
            expected[row, column] = F(int(codes[row, column]) - int(zero[row, group])) * F(scale[row, group])
    return tensors, expected


def pack(bits: int, *, group_size: int | None, is_symmetric: bool, **more: Any) -> dict[str, Any]:
    strategy = "group" if group_size else "channel"
    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": is_symmetric,
    }
    return block_of("pack-quantized", {**weights, **more})


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
# 12 and 20 columns do not fill their last word; 11 rows do not fill the last word of zero points.
@pytest.mark.parametrize(("columns", "groups"), [(32, 4), (12, 3), (20, 1)])
@pytest.mark.parametrize("step", [1, 4, 11])
def test_packed_integers_are_unpacked_lowest_bits_first(
    tmp_path: Path, bits: int, is_symmetric: bool, columns: int, groups: int, step: int
) -> None:
    tensors, expected = packed_linear(bits=bits, rows=11, columns=columns, groups=groups, is_symmetric=is_symmetric)
    size = columns // groups if groups > 1 else None
    folder = write_folder(tmp_path / "m", tensors, pack(bits, group_size=size, is_symmetric=is_symmetric))
    assert np.array_equal(weight_of(folder, step=step), expected)
    read = read_folder(folder)
    assert (read.algorithm, read.group_size, read.notes) == (f"W{bits}A16", size, ())


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_groups_follow_g_idx(tmp_path: Path, is_symmetric: bool) -> None:
    index = np.array([1, 0, 2, 0, 1, 2, 2, 1, 0, 0, 1, 2])
    tensors, expected = packed_linear(bits=4, rows=5, columns=12, groups=3, is_symmetric=is_symmetric, index=index)
    block = pack(4, group_size=4, is_symmetric=is_symmetric, actorder="group")
    folder = write_folder(tmp_path / "m", tensors, block)
    assert np.array_equal(weight_of(folder), expected)


def test_nvfp4_divides_by_the_global_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, size=(5, 16), dtype=np.uint8)
    scale = rng.uniform(1, 400, size=(5, 2)).astype(F).astype(F8)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    tensors = {
        f"{X}.weight_packed": packed,
        f"{X}.weight_scale": scale,
        f"{X}.weight_global_scale": np.array([1234.5], dtype=F),
        f"{X}.input_global_scale": np.array([21.0], dtype=F),
    }
    block = block_of("nvfp4-pack-quantized", weights, {**weights, "dynamic": "local"})
    folder = write_folder(tmp_path / "m", tensors, block)
    expected = np.empty((5, 32), dtype=F)
    for row in range(5):
        for column in range(32):
            byte = int(packed[row, column // 2])
            nibble = byte >> 4 if column % 2 else byte & 15
            magnitude = -E2M1[nibble & 7] if nibble & 8 else E2M1[nibble]
            expected[row, column] = F(magnitude) * (F(scale[row, column // 16]) / F(1234.5))
    assert np.array_equal(weight_of(folder), expected)
    read = read_folder(folder)
    assert (read.algorithm, read.group_size, read.input_amax) == ("NVFP4", 16, {X: 448 * 6 / 21.0})
    zero = change(tensors, weight_global_scale=np.zeros(1, dtype=F))
    with pytest.raises(TrtbuildError, match="weight_scale holds the scale inf"):
        weight_of(write_folder(tmp_path / "n", zero, block))


def test_nvfp4_weights_alone_are_named_so(tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    tensors = {
        f"{X}.weight_packed": np.zeros((2, 8), dtype=np.uint8),
        f"{X}.weight_scale": np.ones((2, 1), dtype=F).astype(F8),
        f"{X}.weight_global_scale": np.ones(1, dtype=F),
    }
    folder = write_folder(tmp_path / "m", tensors, block_of("nvfp4-pack-quantized", weights))
    assert read_folder(folder).algorithm == "W4A16_NVFP4"


def test_several_groups_are_told_apart_by_name_pattern_and_class(tmp_path: Path) -> None:
    down, lone = "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.o_proj"
    packed, _ = packed_linear(bits=4, rows=4, columns=8, groups=2, is_symmetric=True)
    tensors = {f"{X}.weight": codes8(4, 8), f"{X}.weight_scale": scales(1)}
    tensors |= {name.replace(X, down): array for name, array in packed.items()}
    tensors |= {f"{lone}.weight": codes8(4, 8), f"{lone}.weight_scale": scales(4, 1)}
    groups = {
        "group_0": {**float8(strategy="tensor")["config_groups"]["group_0"], "format": "float-quantized"},
        "group_1": {**pack(4, group_size=4, is_symmetric=True)["config_groups"]["group_0"], "format": "pack-quantized"},
        "group_2": {**float8(strategy="channel")["config_groups"]["group_0"], "format": "float-quantized"},
    }
    groups["group_1"]["targets"] = ["re:.*down_proj$"]
    groups["group_2"]["targets"] = [lone]
    block = {**float8(strategy="tensor"), "format": "mixed-precision", "config_groups": groups}
    read = read_folder(write_folder(tmp_path / "m", tensors, block))
    assert (read.algorithm, read.group_size) == ("MIXED_PRECISION", None)
    assert list(read.weight_amax) == [X]
    groups["group_0"]["targets"] = ["re:nothing"]
    with pytest.raises(TrtbuildError, match=f"{X} has quantized tensors, but no config group is for it"):
        read_folder(write_folder(tmp_path / "n", tensors, block))
    groups["group_0"]["targets"] = ["re:("]
    with pytest.raises(TrtbuildError, match="which is not a regular expression"):
        read_folder(write_folder(tmp_path / "o", tensors, block))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            block_of("marlin-24", {"num_bits": 4, "type": "int"}),
            "marlin-24: int of 4 bits per tensor, which is not read",
        ),
        (block_of("pack-quantized", {"num_bits": 3, "type": "int", "group_size": 4}), "int of 3 bits per group"),
        (block_of("pack-quantized", {"num_bits": 4.0, "type": "int", "group_size": 4}), "int of 4.0 bits per group"),
        (block_of("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 32}), "mxfp4-pack-quantized"),
        (block_of("float-quantized", {"num_bits": 8, "type": "float", "strategy": "group"}), "8 bits per group"),
        (
            block_of("float-quantized", {"num_bits": 8, "type": "float", "symmetric": False}),
            "asymmetric float-quantized",
        ),
        (float8(strategy="block"), "scales per block with group_size None and block_structure None"),
        (float8(strategy="block", block_structure=[128, 0]), r"block_structure \[128, 0\]"),
        (float8(strategy="tensor") | {"config_groups": {}}, "without config_groups"),
        (float8(strategy="tensor") | {"config_groups": {"group_0": "Linear"}}, "int of None bits"),
        (
            float8(strategy="tensor") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "format 'sparse-24-bitmask'",
        ),
        (float8(strategy="tensor") | {"transform_config": {"config_groups": {"R3": {}}}}, "transform_config: R3"),
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, block: dict[str, Any], message: str) -> None:
    tensors = {f"{X}.weight": codes8(4, 4), f"{X}.weight_scale": scales(1)}
    with pytest.raises(TrtbuildError, match=message) as error:
        read_folder(write_folder(tmp_path / "m", tensors, block))
    assert error.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_shape": np.array([11, 40], dtype=np.int64)}, r"weight_shape says \[11, 40\], but .* \[11, 4\]"),
        ({"weight_shape": np.array([8, 32], dtype=np.int64)}, r"weight_shape says \[8, 32\]"),
        ({"weight_shape": np.array([11, 32, 1], dtype=np.int64)}, r"weight_shape has shape \[3\], expected \[2\]"),
        ({"weight_shape": None}, f"missing: {X}.weight_shape"),
        ({"weight_scale": scales(11, 3)}, r"weight_scale has shape \[11, 3\].*needs \[11, 4\]"),
        ({"weight_zero_point": np.zeros((2, 4), dtype=np.int32)}, f"surplus: {X}.weight_zero_point"),
        ({"weight_g_idx": np.zeros(31, dtype=np.int32)}, r"weight_g_idx has shape \[31\], expected \[32\]"),
        ({"input_scale": np.ones(1, dtype=F)}, f"surplus: {X}.input_scale"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    tensors, _ = packed_linear(bits=4, rows=11, columns=32, groups=4, is_symmetric=True)
    folder = write_folder(tmp_path / "m", change(tensors, **changes), pack(4, group_size=8, is_symmetric=True))
    with pytest.raises(TrtbuildError, match=message):
        read_folder(folder)


def test_packed_zero_points_have_to_cover_all_rows(tmp_path: Path) -> None:
    tensors, _ = packed_linear(bits=4, rows=11, columns=32, groups=4, is_symmetric=False)
    wrong = change(tensors, weight_zero_point=np.zeros((1, 4), dtype=np.int32))
    folder = write_folder(tmp_path / "m", wrong, pack(4, group_size=8, is_symmetric=False))
    with pytest.raises(TrtbuildError, match=r"weight_zero_point has shape \[1, 4\].*needs \[2, 4\]"):
        read_folder(folder)


def test_an_int8_kv_cache_is_told_and_not_promised(tmp_path: Path) -> None:
    tensors = {f"{X}.weight": codes8(4, 4), f"{X}.weight_scale": scales(1)}
    block = float8(strategy="tensor") | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}
    read = read_folder(write_folder(tmp_path / "m", tensors, block))
    assert read.kv_algorithm is None
    assert len(read.notes) == 1
