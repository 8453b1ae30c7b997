"""Reading a few rows of a large weight needs memory for those rows, not for the weight."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.quant_sources.folders import X, read_folder, write_folder

from trtbuild.quant.sources import column_major
from trtbuild.safetensors_file import TensorReader

ROWS, COLUMNS, GROUP = 2048, 1024, 64
BLOCK = 16
WORDS = np.zeros((COLUMNS, ROWS // 8), dtype=np.int32)
ZEROS = np.zeros((COLUMNS // GROUP, ROWS // 8), dtype=np.int32)
SCALES = np.ones((COLUMNS // GROUP, ROWS), dtype=np.float16)
CASES: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
    "fp8": (
        {"weight_block_size": [128, 128]},
        {
            "weight": np.zeros((ROWS, COLUMNS), dtype=ml_dtypes.float8_e4m3fn),
            "weight_scale_inv": np.ones((ROWS // 128, COLUMNS // 128), dtype=np.float32),
        },
    ),
    "awq": ({"bits": 4, "group_size": GROUP}, {"qweight": WORDS, "qzeros": ZEROS, "scales": SCALES}),
    "gptq": (
        {"bits": 4, "group_size": GROUP},
        {"qweight": WORDS.reshape(COLUMNS // 8, ROWS), "qzeros": ZEROS, "scales": SCALES},
    ),
}


@pytest.mark.parametrize("method", CASES)
def test_a_block_needs_a_few_times_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    block, parts = CASES[method]
    tensors = {f"{X}.{part}": array for part, array in parts.items()}
    folder = write_folder(tmp_path / "m", tensors, {"quant_method": method, **block})
    monkeypatch.setattr(column_major, "PIECE_BYTES", 2**16)
    tensor = read_folder(folder).source.tensors[f"{X}.weight"]
    with TensorReader() as reader:
        tensor.read_rows(reader, 0, BLOCK)
        tracemalloc.start()
        tensor.read_rows(reader, ROWS - BLOCK, ROWS)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The whole weight has 8 MiB as float32.
    assert peak <= 6 * BLOCK * COLUMNS * 4 + 2 * 2**16
