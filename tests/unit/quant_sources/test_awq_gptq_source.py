"""AutoAWQ and GPTQ folders: packing orders, zero points, groups, and everything that is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.quant_sources.folders import X, change, pack_low_first, read_folder, weight_of, write_folder

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources import column_major

F = np.float32
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 4, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 4, "desc_act": False, "sym": False}
#: Nibble positions, lowest first, hold these columns of a group of eight.
INTERLEAVED = [0, 2, 4, 6, 1, 3, 5, 7]


def pack_interleaved(codes: np.ndarray) -> np.ndarray:
    """Pack the last axis of 4-bit codes as AutoAWQ does."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), dtype=np.uint32)
    for row in range(codes.shape[0]):
        for word in range(codes.shape[1] // 8):
            for position, column in enumerate(INTERLEAVED):
                words[row, word] |= np.uint32(int(codes[row, word * 8 + column]) << (4 * position))
    return words.view(np.int32)


class Linear:
    """Codes [in, out], zero points and scales [groups, out], and the loop that says what they mean."""

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        group_size: int,
        bits: int = 4,
        seed: int = 0,
        index: np.ndarray | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.bits, self.index = bits, index
        self.group = np.arange(inputs) // group_size if index is None else index
        self.codes = rng.integers(0, 2**bits, size=(inputs, outputs))
        # GPTQ's first format stores zero points less one, and cannot store 0.
        self.zeros = rng.integers(1, 2**bits, size=(inputs // group_size, outputs))
        self.scales = rng.uniform(0.01, 0.1, size=self.zeros.shape).astype(np.float16)

    def weight(self) -> np.ndarray:
        expected = np.empty(self.codes.shape[::-1], dtype=F)
        for row in range(expected.shape[0]):
            for column in range(expected.shape[1]):
                group = self.group[column]
                code, zero = int(self.codes[column, row]), int(self.zeros[group, row])
                expected[row, column] = F(code - zero) * F(self.scales[group, row])
        return expected

    def awq(self) -> dict[str, np.ndarray]:
        return {
            f"{X}.qweight": pack_interleaved(self.codes),
            f"{X}.qzeros": pack_interleaved(self.zeros),
            f"{X}.scales": self.scales,
        }

    def gptq(self, *, less_one: int = 1) -> dict[str, np.ndarray]:
        tensors = {
            f"{X}.qweight": pack_low_first(self.codes.T, self.bits).T,
            f"{X}.qzeros": pack_low_first(self.zeros - less_one, self.bits),
            f"{X}.scales": self.scales,
        }
        return tensors if self.index is None else {**tensors, f"{X}.g_idx": self.index.astype(np.int32)}


SMALL = Linear(inputs=8, outputs=16, group_size=4)


def test_the_two_packings_of_one_known_matrix_unpack_to_it(tmp_path: Path) -> None:
    # 8 x 8 nibbles 0..15, no zero points and scale 1 to speak of: the weight is the matrix itself.
    known = (np.arange(64).reshape(8, 8) * 7) % 16
    zeros, scales = np.ones((1, 8), dtype=np.int64), np.ones((1, 8), dtype=np.float16)
    awq = {
        f"{X}.qweight": pack_interleaved(known),
        f"{X}.qzeros": pack_interleaved(zeros),
        f"{X}.scales": scales,
    }
    gptq = {
        f"{X}.qweight": pack_low_first(known.T, 4).T,
        f"{X}.qzeros": pack_low_first(zeros - 1, 4),
        f"{X}.scales": scales,
    }
    # By hand, from the first row 0 7 14 5 12 3 10 1: interleaved 0 14 12 10 7 5 3 1, and in order, lowest nibble first.
    assert int(awq[f"{X}.qweight"].view(np.uint32)[0, 0]) == 0x1357ACE0
    assert int(gptq[f"{X}.qweight"].view(np.uint32)[0, 0]) == sum(int(known[i, 0]) << 4 * i for i in range(8))
    expected = known.T.astype(F) - 1
    for name, tensors, block in (("a", awq, AWQ), ("g", gptq, GPTQ)):
        folder = write_folder(tmp_path / name, tensors, {**block, "group_size": 8})
        assert np.array_equal(weight_of(folder), expected), name


@pytest.mark.parametrize("step", [1, 3, 8, 16])
@pytest.mark.parametrize("piece", [1, 40, 64 * 2**20])
def test_awq_is_exactly_the_slow_loop_in_any_row_and_piece_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, piece: int
) -> None:
    monkeypatch.setattr(column_major, "PIECE_BYTES", piece)
    folder = write_folder(tmp_path / "m", SMALL.awq(), AWQ)
    assert np.array_equal(weight_of(folder, step=step), SMALL.weight())
    read = read_folder(folder)
    assert (read.method, read.algorithm, read.group_size) == ("awq", "W4A16_AWQ", 4)
    assert (read.input_amax, read.weight_amax, read.kv_scales, read.kv_algorithm, read.notes) == ({}, {}, {}, None, ())
    assert read.source.tensors[f"{X}.weight"].nbytes == 8 * 16 // 2 + 2 * 16 // 2 + 2 * 16 * 2


def test_awq_with_one_group_per_row(tmp_path: Path) -> None:
    linear = Linear(inputs=24, outputs=8, group_size=24)
    folder = write_folder(tmp_path / "m", linear.awq(), {**AWQ, "group_size": -1, "version": "GEMM"})
    assert np.array_equal(weight_of(folder), linear.weight())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("name", "less_one"), [(None, 1), ("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("step", [1, 5])
def test_gptq_is_exactly_the_slow_loop(tmp_path: Path, bits: int, name: str | None, less_one: int, step: int) -> None:
    linear = Linear(inputs=16, outputs=8, group_size=4, bits=bits)
    block = {**GPTQ, "bits": bits, **({"checkpoint_format": name} if name else {})}
    folder = write_folder(tmp_path / "m", linear.gptq(less_one=less_one), block)
    assert np.array_equal(weight_of(folder, step=step), linear.weight())
    read = read_folder(folder)
    assert (read.algorithm, read.group_size, read.notes) == (f"W{bits}A16_GPTQ", 4, ())


def test_gptq_zero_points_of_zero_are_read_in_the_second_format_only(tmp_path: Path) -> None:
    linear = Linear(inputs=8, outputs=8, group_size=4)
    linear.zeros[1, 3] = 0
    second = write_folder(tmp_path / "m", linear.gptq(less_one=0), {**GPTQ, "checkpoint_format": "gptq_v2"})
    assert np.array_equal(weight_of(second), linear.weight())
    stored = change(linear.gptq(less_one=0), qzeros=pack_low_first((linear.zeros - 1) % 16, 4))
    with pytest.raises(TrtbuildError, match="qzeros holds 15, which stands for 16 less one") as error:
        weight_of(write_folder(tmp_path / "n", stored, GPTQ))
    assert "gptq_v2" in error.value.hint


def test_gptq_groups_follow_g_idx_and_the_user_is_told_that_this_is_unverified(tmp_path: Path) -> None:
    index = np.array([3, 0, 1, 2, 3, 3, 0, 1, 2, 2, 1, 0, 3, 0, 1, 2])
    linear = Linear(inputs=16, outputs=8, group_size=4, index=index)
    folder = write_folder(tmp_path / "m", linear.gptq(), {**GPTQ, "desc_act": True})
    assert np.array_equal(weight_of(folder), linear.weight())
    assert any("desc_act" in note and "not been compared" in note for note in read_folder(folder).notes)


def test_gptq_with_a_g_idx_in_order_reads_as_without(tmp_path: Path) -> None:
    linear = Linear(inputs=16, outputs=8, group_size=4, index=np.arange(16) // 4)
    assert np.array_equal(weight_of(write_folder(tmp_path / "m", linear.gptq(), GPTQ)), linear.weight())


def test_desc_act_without_g_idx_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SMALL.gptq(), {**GPTQ, "desc_act": True})
    with pytest.raises(TrtbuildError, match=f"missing: {X}.g_idx"):
        read_folder(folder)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_group_that_does_not_exist_is_refused(tmp_path: Path, wrong: int) -> None:
    index = np.array([0, 0, 0, 0, 1, 1, 1, wrong], dtype=np.int32)
    folder = write_folder(tmp_path / "m", change(SMALL.gptq(), g_idx=index), GPTQ)
    with pytest.raises(TrtbuildError, match=f"g_idx names group {wrong}; there are 2 groups"):
        weight_of(folder)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"version": "gemv"}, "AWQ folder with version 'gemv'; read is version 'gemm'"),
        ({"version": "marlin"}, "version 'marlin'"),
        ({"backend": "llm-awq"}, "backend 'llm-awq'"),
        ({"bits": 8}, "bits 8; read is bits 4"),
        ({"zero_point": False}, r"zero_point False; .*the folder has qzeros"),
        ({"group_size": None}, "group_size None"),
        ({"group_size": 0}, "group_size 0"),
        ({"group_size": 3}, "whose 8 inputs are not a multiple of the declared group_size 3"),
        ({"group_size": 8}, r"scales has shape \[2, 16\], expected \[1, 16\]"),
    ],
)
def test_awq_declarations_that_are_not_read_are_named(tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(TrtbuildError, match=message) as error:
        read_folder(write_folder(tmp_path / "m", SMALL.awq(), {**AWQ, **facts}))
    assert error.value.hint


def test_declared_zero_points_have_to_be_there(tmp_path: Path) -> None:
    tensors = change(SMALL.awq(), qzeros=None)
    with pytest.raises(TrtbuildError, match=f"missing: {X}.qzeros"):
        read_folder(write_folder(tmp_path / "m", tensors, AWQ))
    with pytest.raises(TrtbuildError, match="the folder has no qzeros"):
        read_folder(write_folder(tmp_path / "n", tensors, {**AWQ, "zero_point": False}))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"is_marlin_format": True}, "checkpoint_format 'marlin'"),
        ({"bits": 3}, "bits 3"),
        ({"bits": None}, "bits None"),
        ({"bits": 4.0}, "bits 4.0"),
        ({"pack_dtype": "int64"}, "pack_dtype 'int64'"),
        ({"group_size": "4"}, "group_size '4'"),
        ({"group_size": 5}, "are not a multiple of the declared group_size 5"),
        ({"dynamic": {"+:.*down.*": {"bits": 8}}}, "settings of their own"),
    ],
)
def test_gptq_declarations_that_are_not_read_are_named(tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(TrtbuildError, match=message) as error:
        read_folder(write_folder(tmp_path / "m", SMALL.gptq(), {**GPTQ, **facts}))
    assert error.value.hint


def test_gptq_rules_that_only_leave_modules_out_are_fine(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", SMALL.gptq(), {**GPTQ, "dynamic": {"-:.*gate.*": {}}})
    assert np.array_equal(weight_of(folder), SMALL.weight())


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        ("qzeros", np.zeros((2, 1), dtype=np.int32), r"qzeros has shape \[2, 1\], expected \[2, 2\]"),
        ("g_idx", np.zeros(7, dtype=np.int32), r"g_idx has shape \[7\], expected \[8\]"),
        ("qweight", np.zeros((1, 16), dtype=np.int64), "qweight is I64, expected I32"),
        ("scales", np.zeros((2, 16), dtype=np.int32), "scales is I32"),
    ],
)
def test_gptq_shapes_and_dtypes_are_checked_first(tmp_path: Path, part: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(TrtbuildError, match=message):
        read_folder(write_folder(tmp_path / "m", change(SMALL.gptq(), **{part: array}), GPTQ))


@pytest.mark.parametrize("value", [np.nan, -1.0, 0.0])
def test_bad_scales_are_found_when_their_rows_are_read(tmp_path: Path, value: float) -> None:
    linear = Linear(inputs=8, outputs=16, group_size=4)
    linear.codes[:, 9], linear.zeros[:, 9] = 3, 5
    linear.scales[1, 9] = value
    for name, tensors, block in (("a", linear.awq(), AWQ), ("g", linear.gptq(), GPTQ)):
        with pytest.raises(TrtbuildError, match=f"{X}.scales holds the scale {value}"):
            weight_of(write_folder(tmp_path / name, tensors, block))


def test_biases_and_plain_layers_stay(tmp_path: Path) -> None:
    gate = "model.layers.0.block_sparse_moe.gate.weight"
    tensors = {**SMALL.gptq(), f"{X}.bias": np.ones(16, dtype=np.float16), gate: np.ones((4, 8), dtype=np.float16)}
    names = set(read_folder(write_folder(tmp_path / "m", tensors, GPTQ)).source.tensors)
    assert {f"{X}.bias", f"{X}.weight", gate} < names
    assert not any(name.endswith(("qweight", "qzeros", "scales")) for name in names)
