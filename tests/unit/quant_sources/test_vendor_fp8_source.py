"""FP8 folders of model vendors: blocks that do not divide, scales per tensor in both spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.quant_sources.folders import X, change, read_folder, weight_of, write_folder

from trtbuild.errors import TrtbuildError

F = np.float32
F8 = ml_dtypes.float8_e4m3fn
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}
E8M0 = {f"{X}.weight_scale_inv": "F8_E8M0"}
TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def codes(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 60, size=(rows, columns)).astype(F).astype(F8)


def exponents(*shape: int) -> np.ndarray:
    """Return E8M0 scales: bytes e for 2 ** (e - 127)."""
    return np.random.default_rng(1).integers(110, 130, size=shape, dtype=np.uint8)


@pytest.mark.parametrize("dtype", [F, ml_dtypes.bfloat16, "e8m0"])
def test_blocks_at_the_edges_may_be_cut_off(tmp_path: Path, dtype: Any) -> None:
    rows, columns = 130, 257
    random = np.random.default_rng(2).uniform(1e-4, 1e-2, size=(2, 3)).astype(F)
    scale = exponents(2, 3) if dtype == "e8m0" else random.astype(dtype)
    number = np.exp2(scale.astype(np.float64) - 127).astype(F) if dtype == "e8m0" else scale.astype(F)
    weight = codes(rows, columns)
    tensors = {f"{X}.weight": weight, f"{X}.weight_scale_inv": scale}
    folder = write_folder(tmp_path / "m", tensors, BLOCKS, stored_as=E8M0 if dtype == "e8m0" else None)
    expected = np.empty((rows, columns), dtype=F)
    for row in range(rows):
        for column in range(columns):
            expected[row, column] = F(weight[row, column]) * number[row // 128, column // 128]
    assert np.array_equal(weight_of(folder, step=37), expected)
    read = read_folder(folder)
    assert (read.method, read.algorithm, read.group_size) == ("fp8", "FP8_BLOCK", None)
    assert (read.weight_amax, read.input_amax) == ({}, {})


def test_an_e8m0_scale_of_255_is_no_number(tmp_path: Path) -> None:
    tensors = {f"{X}.weight": codes(4, 4), f"{X}.weight_scale_inv": np.array([[255]], dtype=np.uint8)}
    folder = write_folder(tmp_path / "m", tensors, BLOCKS, stored_as=E8M0)
    with pytest.raises(TrtbuildError, match="weight_scale_inv holds the scale nan"):
        weight_of(folder)


@pytest.mark.parametrize(
    ("scale", "inputs"), [("weight_scale", "input_scale"), ("weight_scale_inv", "activation_scale")]
)
def test_one_scale_per_tensor_in_both_spellings(tmp_path: Path, scale: str, inputs: str) -> None:
    weight = codes(5, 6)
    tensors = {
        f"{X}.weight": weight,
        f"{X}.{scale}": np.array(0.125, dtype=ml_dtypes.bfloat16),
        f"{X}.{inputs}": np.array([0.5], dtype=F),
    }
    folder = write_folder(tmp_path / "m", tensors, {**TENSOR, "activation_scheme": "static"})
    assert np.array_equal(weight_of(folder), weight.astype(F) * F(0.125))
    read = read_folder(folder)
    assert (read.algorithm, read.weight_amax, read.input_amax) == ("FP8", {X: 56.0}, {X: 224.0})
    with pytest.raises(TrtbuildError, match=f"missing: {X}.{inputs}"):
        read_folder(
            write_folder(tmp_path / "n", change(tensors, **{inputs: None}), {**TENSOR, "activation_scheme": "static"})
        )


def test_a_weight_of_zeros_may_have_a_scale_of_zero(tmp_path: Path) -> None:
    tensors = {f"{X}.weight": np.zeros((4, 4), dtype=F8), f"{X}.weight_scale": np.zeros(1, dtype=F)}
    folder = write_folder(tmp_path / "m", tensors, TENSOR)
    assert not weight_of(folder).any()
    assert read_folder(folder).weight_amax == {X: 0.0}


@pytest.mark.parametrize(
    ("tensors", "block", "message"),
    [
        ({f"{X}.weight": codes(4, 4)}, BLOCKS, f"missing: {X}.weight_scale_inv"),
        ({f"{X}.weight": codes(4, 4)}, TENSOR, f"missing: {X}.weight_scale"),
        (
            {f"{X}.weight": codes(130, 4), f"{X}.weight_scale_inv": np.ones((1, 1), dtype=F)},
            BLOCKS,
            r"weight_scale_inv has shape \[1, 1\]; a weight of \[130, 4\] .* needs \[2, 1\]",
        ),
        (
            {f"{X}.weight": codes(4, 4), f"{X}.weight_scale": np.ones(1, dtype=F)},
            BLOCKS,
            f"missing: {X}.weight_scale_inv; surplus: {X}.weight_scale",
        ),
        (
            {f"{X}.weight": codes(4, 4), f"{X}.weight_scale": np.ones((4, 1), dtype=F)},
            TENSOR,
            r"weight_scale has shape \[4, 1\]",
        ),
        (
            {f"{X}.weight": codes(4, 4).astype(ml_dtypes.float8_e5m2), f"{X}.weight_scale": np.ones(1, dtype=F)},
            TENSOR,
            "weight is F8_E5M2, expected F8_E4M3",
        ),
        ({}, {**BLOCKS, "weight_block_size": 128}, "weight_block_size 128"),
        ({}, {**BLOCKS, "weight_block_size": [128, 0]}, r"weight_block_size \[128, 0\]"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, tensors: dict[str, np.ndarray], block: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrtbuildError, match=message) as error:
        read_folder(write_folder(tmp_path / "m", tensors, block))
    assert error.value.hint
