"""Opens a checkpoint folder of either layout: TensorRT-LLM rank files, or a (quantized) Hugging Face folder.

Knows how to tell them apart: only TensorRT-LLM's config.json has `architecture` or `mapping`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import TrtbuildError
from trtbuild.source import read_json

if TYPE_CHECKING:
    from trtbuild.checkpoint import Checkpoint
    from trtbuild.unified_checkpoint import UnifiedCheckpoint


def is_rank_folder(path: Path) -> bool:
    """Say whether a folder's config.json is that of rank files.

    Raises:
        TrtbuildError: there is no readable config.json.
    """
    if not (path / "config.json").is_file():
        raise TrtbuildError(
            f"{path} is not a checkpoint folder: it has no config.json", hint="make one with `trtbuild convert`"
        )
    config = read_json(path / "config.json")
    return "architecture" in config or "mapping" in config


def open_checkpoint(path: Path) -> Checkpoint | UnifiedCheckpoint:
    """Open a checkpoint folder of either layout.

    Raises:
        TrtbuildError: it is neither, incomplete, or its files are not what its config says.
    """
    from trtbuild.checkpoint import Checkpoint  # both bring the layouts of all schemes along
    from trtbuild.unified_checkpoint import UnifiedCheckpoint

    return Checkpoint.open(path) if is_rank_folder(path) else UnifiedCheckpoint.open(path)
