"""Codings: any row range of any awkward shape comes back as it was packed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.quant_sources.folders import pack_low_first

from trtbuild.quant.sources.coding import Coding, E2m1Columns, NibbleRows, WordColumns, WordRows
from trtbuild.safetensors_file import TensorInfo, TensorReader

NAMES = {"uint8": "U8", "int32": "I32"}


def read_rows(coding: Coding, packed: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Read rows of a matrix that lies at an odd offset of a file."""
    with tempfile.TemporaryDirectory() as folder, TensorReader() as reader:
        path = Path(folder) / "x"
        raw = np.ascontiguousarray(packed).tobytes()
        path.write_bytes(b"x" * 3 + raw)
        info = TensorInfo("w", path, NAMES[packed.dtype.name], packed.shape, 3, len(raw))
        return coding.read(reader, info, start, stop)


@given(
    data=st.data(),
    rows=st.integers(1, 13),
    columns=st.integers(1, 19),
    bits=st.sampled_from([4, 8]),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_words_round_trip(data: st.DataObject, along: str, rows: int, columns: int, bits: int, seed: int) -> None:
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    codes = np.random.default_rng(seed).integers(0, 2**bits, size=(rows, columns))
    if along == "columns":
        coding: Coding = WordColumns(bits, columns)
        packed = pack_low_first(codes, bits)
    else:
        coding = WordRows(bits)
        packed = pack_low_first(codes.T, bits).T
    assert coding.pack == ((1, 32 // bits) if along == "columns" else (32 // bits, 1))
    expected = codes[start:stop].astype(np.float32) - 2 ** (bits - 1)
    assert np.array_equal(read_rows(coding, packed, start, stop), expected)


@given(st.data(), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_nibbles_of_two_rows_round_trip(data: st.DataObject, pairs: int, columns: int, seed: int) -> None:
    start = data.draw(st.integers(0, 2 * pairs))
    stop = data.draw(st.integers(start, 2 * pairs))
    codes = np.random.default_rng(seed).integers(-8, 8, size=(2 * pairs, columns))
    packed = np.zeros((pairs, columns), dtype=np.uint8)
    for row in range(2 * pairs):
        for column in range(columns):
            packed[row // 2, column] |= (int(codes[row, column]) & 15) << (4 * (row % 2))
    assert np.array_equal(read_rows(NibbleRows(), packed, start, stop), codes[start:stop].astype(np.float32))


def test_every_e2m1_code_is_the_number_of_the_specification() -> None:
    packed = np.array([[16 * (2 * pair + 1) + 2 * pair for pair in range(8)]], dtype=np.uint8)
    numbers = read_rows(E2m1Columns(), packed, 0, 1)[0]
    assert numbers[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert numbers[8:].tolist() == (-numbers[:8]).tolist()
    assert np.signbit(numbers[8])
