"""What a calibration knows after some layers, kept in its folder, so that an interrupted one goes on with the next layer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtbuild.output import write_atomically
from trtbuild.quant.recipes import recipe_pattern
from trtbuild.source import read_json

_STATE = "state.json"


@dataclass
class Progress:
    """Ranges so far.

    Attributes:
        key: what was asked for; a state of other work is not used.
        all_layers: number of layers of the model.
        layers: number of layers that are finished.
        input_amax: Hugging Face module -> range of its input.
        k_amax: per layer.
        v_amax: per layer.
    """

    key: str
    all_layers: int
    layers: int = 0
    input_amax: dict[str, float] = field(default_factory=dict)
    k_amax: list[float] = field(default_factory=list)
    v_amax: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, key: str, all_layers: int) -> Progress:
        """Return what an interrupted run of the same work left in the folder, or a beginning."""
        file = folder / _STATE
        if file.is_file():
            found = cls(**read_json(file))
            if found.key == key and (
                found.layers == found.all_layers or activations_file(folder, found.layers).is_file()
            ):
                return found
        return cls(key, all_layers)

    def write(self, folder: Path) -> None:
        """Keep it; all that belongs to the finished layers must be on disk by now."""
        write_atomically(folder / _STATE, json.dumps(asdict(self)))


def activations_file(folder: Path, layer: int) -> Path:
    """Return the file that holds the input of a layer."""
    return folder / f"activations-{layer:05}.bin"


def work_file(folder: Path, what: str, number: int) -> Path:
    """Return a file for what does not fit into memory while a layer is worked on: "inputs" or "weights" of something numbered."""
    return folder / f"{what}-{number:05}.bin"


def remove_surplus(folder: Path, progress: Progress) -> None:
    """Remove what no layer needs any more, or an interrupted or other run left: all but the input of the next layer, and recipes."""
    is_through = progress.layers == progress.all_layers
    kept = None if is_through else activations_file(folder, progress.layers)
    surplus = [file for file in folder.glob("*.bin") if file != kept]
    if progress.layers == 0:
        surplus += folder.glob(recipe_pattern())
    for file in surplus:
        file.unlink()
