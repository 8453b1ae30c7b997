"""SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16, imported once from its GGUF file."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from trtbuild.demo.fetch import model_file
from trtbuild.demo.gguf_model import config, read_gguf, write_weights
from trtbuild.demo.gguf_tokenizer import tokenizer_files
from trtbuild.errors import TrtbuildError
from trtbuild.output import check_space, staged_folder
from trtbuild.serve.locate import share_folder

logger = logging.getLogger(__name__)

#: Says which file the folder was made from and how large each of its files is.
ORIGIN = "trtbuild_import.json"
#: Raised when the import writes something else, so that folders of earlier versions are made again.
FORMAT = 1


def import_model(gguf: Path, folder: Path) -> bool:
    """Make `folder` the Hugging Face form of a GGUF file; returns False when it already was.

    The folder appears whole or not at all.

    Raises:
        TrtbuildError: the file cannot be read, is no ChatML Llama, or the disk is too small.
    """
    started = time.perf_counter()
    digest = _sha256(gguf)
    if is_complete(folder, digest):
        return False
    reader, metadata = read_gguf(gguf)
    files = tokenizer_files(metadata)
    files["config.json"] = {**config(reader, metadata), **files["generation_config.json"]}
    check_space(folder, 2 * sum(int(tensor.n_elements) for tensor in reader.tensors))
    with staged_folder(folder) as stage:
        for name, content in files.items():
            text = content if isinstance(content, str) else _json(content)
            (stage / name).write_text(text, encoding="utf-8")
        write_weights(reader, metadata, stage / "model.safetensors")
        sizes = {file.name: file.stat().st_size for file in sorted(stage.iterdir())}
        (stage / ORIGIN).write_text(
            _json({"format": FORMAT, "source_sha256": digest, "files": sizes}), encoding="utf-8"
        )
    logger.info("imported %d tensors in %.1f s", len(reader.tensors), time.perf_counter() - started)
    return True


def shared_model() -> Path:
    """Return the demo's model as a folder that programs share; fetched and imported once."""
    folder = share_folder() / "SmolLM2-135M-Instruct"
    import_model(model_file(), folder)
    return folder


def is_complete(folder: Path, digest: str) -> bool:
    """Say whether `folder` was made from the file with this SHA-256 and still has all its files in full."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        return (origin["format"], origin["source_sha256"]) == (FORMAT, digest) and all(
            (folder / name).stat().st_size == size for name, size in origin["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise TrtbuildError(
            f"cannot read {file}: {error.strerror}", hint="name a GGUF file with --model-file"
        ) from error
    return digest.hexdigest()
