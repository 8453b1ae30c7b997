"""What a repository needs of a checkpoint's config.json, in the words of rank files, whichever layout the folder has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.checkpoint_kinds import is_rank_folder
from trtbuild.names import TOKENIZER_FOLDER
from trtbuild.source import read_json

if TYPE_CHECKING:
    from trtbuild.unified_checkpoint import UnifiedCheckpoint


@dataclass(frozen=True, slots=True)
class Served:
    """A checkpoint folder.

    Attributes:
        config: vocab_size, max_position_embeddings and what else the layout says.
        tokenizer_dir: of the tokenizer that came along; it need not exist.
        unified: the folder, where it is a Hugging Face one.
    """

    config: Mapping[str, Any]
    tokenizer_dir: Path
    unified: UnifiedCheckpoint | None = None


def read_served(folder: Path) -> Served:
    """Read a checkpoint folder.

    Raises:
        TrtbuildError: it is none.
    """
    tokenizer_dir = folder / TOKENIZER_FOLDER
    if is_rank_folder(folder):
        return Served(read_json(folder / "config.json"), tokenizer_dir)
    from trtbuild.unified_checkpoint import UnifiedCheckpoint  # brings the layouts of all schemes along

    unified = UnifiedCheckpoint.open(folder)
    config = {
        "vocab_size": unified.dims.vocab_size,
        "max_position_embeddings": unified.dims.max_position_embeddings,
        "rotary_scaling": unified.dims.rope.scaling if unified.dims.rope else None,
        "kv_cache_quant_algo": unified.kv_cache_quant_algo,
    }
    return Served(config, unified.tokenizer_dir or tokenizer_dir, unified)
