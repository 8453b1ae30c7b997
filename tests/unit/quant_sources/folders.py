"""Writing tiny quantized folders by hand, and reading weights back in awkward row blocks."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild.quant.sources import read_quantized
from trtbuild.quant.sources.result import QuantizedSource
from trtbuild.safetensors_file import TensorReader, num_rows
from trtbuild.source import SourceCheckpoint

NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}
X = "model.layers.0.mlp.up_proj"
EMBEDDING = "model.embed_tokens.weight"


def write_folder(
    path: Path,
    tensors: dict[str, np.ndarray],
    block: dict[str, Any] | None,
    *,
    stored_as: dict[str, str] | None = None,
) -> Path:
    """Write config.json and one safetensors file; an unquantized embedding is added.

    `stored_as` gives tensors a safetensors dtype that numpy lacks.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors = {EMBEDDING: np.arange(12, dtype=np.float16).reshape(4, 3), **tensors}
    header, chunks, position = {}, [], 0
    for name, array in tensors.items():
        raw = np.array(array, order="C", copy=True).tobytes()
        header[name] = {
            "dtype": (stored_as or {}).get(name, NAMES[array.dtype.name]),
            "shape": list(array.shape),
            "data_offsets": [position, position + len(raw)],
        }
        chunks.append(raw)
        position += len(raw)
    encoded = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(chunks))
    config: dict[str, Any] = {"model_type": "llama", "torch_dtype": "float16"}
    if block is not None:
        config["quantization_config"] = block
    (path / "config.json").write_text(json.dumps(config))
    return path


def read_folder(path: Path) -> QuantizedSource:
    """Open and read a folder."""
    return read_quantized(SourceCheckpoint.open(path))


def dequantized(read: QuantizedSource, name: str, *, step: int = 3) -> np.ndarray:
    """Return a weight read in row blocks of `step` rows, which divides nothing."""
    tensor = read.source.tensors[name]
    rows = num_rows(tensor.shape)
    with TensorReader() as reader:
        blocks = [tensor.read_rows(reader, start, min(start + step, rows)) for start in range(0, rows, step)]
        empty = tensor.read_rows(reader, rows, rows)
    assert empty.shape == (0, tensor.shape[-1])
    return np.concatenate(blocks)


def weight_of(path: Path, *, step: int = 3) -> np.ndarray:
    """Return the one quantized weight of a folder, after checking how it presents itself."""
    read = read_folder(path)
    assert set(read.source.tensors) == {EMBEDDING, f"{X}.weight"}
    tensor = read.source.tensors[f"{X}.weight"]
    assert tensor.dtype == "F32"
    values = dequantized(read, f"{X}.weight", step=step)
    assert values.dtype == np.float32
    assert values.shape == tensor.shape
    return values


def pack_low_first(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack the last axis of unsigned codes into int32 words, lowest bits first, padded with zeros."""
    per_word = 32 // bits
    rows, columns = codes.shape
    words = np.zeros((rows, -(-columns // per_word)), dtype=np.uint32)
    for row in range(rows):
        for column in range(columns):
            words[row, column // per_word] |= np.uint32(int(codes[row, column]) << (bits * (column % per_word)))
    return words.view(np.int32)


def change(tensors: dict[str, np.ndarray], **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return tensors of `X` with some replaced, added, or (None) removed."""
    merged: dict[str, np.ndarray | None] = {**tensors, **{f"{X}.{part}": array for part, array in changes.items()}}
    return {name: array for name, array in merged.items() if array is not None}
