"""Condense the exporter's output for one model into JSON: names, dtypes, shapes, digests, and the values of scales.

Usage: python tests/goldens/digest.py EXPORTER_FOLDER LAYOUT VARIANT... > FILE
LAYOUT trtllm (FILE golden.json): EXPORTER_FOLDER holds trtllm/VARIANT/{config.json,rank*.safetensors}.
LAYOUT hf (FILE unified.json): it holds hf/VARIANT/{config.json,hf_quant_config.json,model.safetensors}.
Written by nvidia-modelopt 0.47.0 with transformers 5.14.1 (mixtral: 0.37.0 with 4.57.6), torch 2.13.0, float16 calibration forward.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conftest import read_safetensors


def condense(folder: Path) -> dict[str, Any]:
    """Return config.json, quant_cfg.json if there is one, and every tensor of every rank of one exported checkpoint."""
    files = sorted(folder.glob("rank*.safetensors"), key=lambda path: int(path.stem.removeprefix("rank")))
    mixed = {"quant_cfg": _json(folder / "quant_cfg.json")} if (folder / "quant_cfg.json").is_file() else {}
    return {
        "config": _json(folder / "config.json"),
        **mixed,
        "ranks": [_entries(file, "scaling_factor") for file in files],
    }


def condense_unified(folder: Path) -> dict[str, Any]:
    """Return both config files and every tensor of one unified Hugging Face folder."""
    return {
        "config": _json(folder / "config.json"),
        "hf_quant_config": _json(folder / "hf_quant_config.json"),
        "tensors": _entries(folder / "model.safetensors", "_scale"),
    }


def _entries(file: Path, scales: str) -> dict[str, Any]:
    """Return name -> dtype, shape, and the values of a scale per tensor or row or the SHA-256 of anything else."""
    entries = {}
    for name, tensor in sorted(read_safetensors(file).items()):
        entry: dict[str, Any] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape)}
        if name.endswith(scales) and tensor.ndim < 2:
            entry["values"] = tensor.astype(np.float32).reshape(-1).tolist()
        else:
            entry["sha256"] = hashlib.sha256(tensor.tobytes()).hexdigest()
        entries[name] = entry
    return entries


def _json(file: Path) -> Any:
    return json.loads(file.read_text())


if __name__ == "__main__":
    root, layout = Path(sys.argv[1]), sys.argv[2]
    condensed = {"trtllm": condense, "hf": condense_unified}[layout]
    json.dump({variant: condensed(root / layout / variant) for variant in sys.argv[3:]}, sys.stdout, indent=0)
