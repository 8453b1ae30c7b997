"""Condense the exporter's output for one model into golden.json: names, dtypes, shapes, digests, and the values of scales.

Usage: python tests/goldens/digest.py EXPORTER_FOLDER VARIANT... > golden.json
EXPORTER_FOLDER holds trtllm/VARIANT/{config.json,rank*.safetensors} as nvidia-modelopt 0.47.0 (transformers 5.14.1, torch 2.13.0,
float16 calibration forward) wrote them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conftest import read_safetensors


def condense(folder: Path) -> dict[str, Any]:
    """Return config.json and every tensor of every rank of one exported checkpoint."""
    ranks = []
    for file in sorted(folder.glob("rank*.safetensors"), key=lambda path: int(path.stem.removeprefix("rank"))):
        entries = {}
        for name, tensor in sorted(read_safetensors(file).items()):
            entry: dict[str, Any] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape)}
            if name.endswith("scaling_factor"):
                entry["values"] = tensor.reshape(-1).tolist()
            else:
                entry["sha256"] = hashlib.sha256(tensor.tobytes()).hexdigest()
            entries[name] = entry
        ranks.append(entries)
    return {"config": json.loads((folder / "config.json").read_text()), "ranks": ranks}


if __name__ == "__main__":
    root = Path(sys.argv[1])
    json.dump({variant: condense(root / "trtllm" / variant) for variant in sys.argv[2:]}, sys.stdout, indent=0)
