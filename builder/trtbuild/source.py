"""A Hugging Face model folder: its config.json and every tensor's place. Knows nothing about architectures.

Opening reads JSON and safetensors headers only and writes nothing. No pickle is ever opened and no code of the folder is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.safetensors_file import SourceTensor, TensorInfo, read_header, refuse_lfs_pointer

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.npz", "*.msgpack", "*.h5")
#: Files of a tokenizer and of generation settings, copied beside what is converted.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
#: Files that folders of models often hold besides: the weights in their maker's own layout, adapters, other precisions.
_BESIDE = ("consolidated*", "adapter_model*", "*.fp16*", "*.fp32*", "*.bf16*")
#: Any one of these makes a folder a tokenizer folder.
TOKENIZER_ANY = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """An opened model folder.

    Attributes:
        path: the folder.
        config: parsed config.json (of the text model when it is nested).
        tensors: name -> tensor over all files.
        files: all weight files that were read, sorted.
        unread: names of safetensors files that neither the index nor `SINGLE` accounts for.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    files: tuple[Path, ...]
    unread: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: Path) -> SourceCheckpoint:
        """Open a model folder.

        Raises:
            TrtbuildError: anything that makes the folder unusable; the message names the file.
        """
        config = read_config(path)
        _check_named_weights(path, config)
        tensors = _tensors(path)
        files = tuple(sorted({info.path for info in tensors.values()}))
        others = sorted(set(path.glob("*.safetensors")) - set(files))
        unread = tuple(file.name for file in others if not any(map(file.match, _BESIDE)))
        return cls(path=path, config=config, tensors=tensors, files=files, unread=unread)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must be told of the folder."""
        if not self.unread:
            return ()
        why = (
            f"the {INDEX} does not name"
            if (self.path / INDEX).is_file()
            else f"transformers does not read beside {SINGLE}"
        )
        return (f"not read: {', '.join(self.unread)}, which {why}",)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def tokenizer_files(self) -> list[Path]:
        """Return the tokenizer and generation files of the folder, none when it has no tokenizer.

        Raises:
            TrtbuildError: one of them is a Git LFS pointer.
        """
        if not any((self.path / name).is_file() for name in TOKENIZER_ANY):
            return []
        found = [self.path / name for name in TOKENIZER_FILES if (self.path / name).is_file()]
        for file in found:
            refuse_lfs_pointer(file)
        return found


def read_json(path: Path, *, remedy: str = "repair or download the file again") -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: the file.
        remedy: what to do about a file that is damaged.

    Raises:
        TrtbuildError: unreadable, not JSON (with line and column), or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrtbuildError(
            f"cannot read {path}: {error.strerror}", hint="check the path and its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TrtbuildError(f"{path} is not valid JSON: {problem}", hint=remedy) from error
    if not isinstance(value, dict):
        raise TrtbuildError(f"{path} holds a {type(value).__name__}, not an object", hint=remedy)
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json of a model folder, with the fields of a nested text model on top.

    Raises:
        TrtbuildError: the folder or the file is missing or unusable.
    """
    if not path.is_dir():
        kind = "is a file, not a model folder" if path.exists() else "does not exist"
        raise TrtbuildError(
            f"{path} {kind}",
            hint="name a folder with config.json and *.safetensors; `trtbuild init owner/name --download` fetches one",
        )
    file = path / "config.json"
    if not file.is_file():
        inside = sorted(child.parent.name for child in path.glob("*/config.json"))
        hint = f"did you mean {path / inside[0]}?" if inside else "name the folder that holds config.json"
        raise TrtbuildError(f"{path} has no config.json", hint=hint)
    refuse_lfs_pointer(file)
    config = read_json(file)
    if (place := _not_finite(config)) is not None:
        raise TrtbuildError(
            f"{file}: {place} is NaN or infinite, which no setting of a model is",
            hint="repair or download the file again",
        )
    nested = config.get("text_config")
    if isinstance(nested, Mapping) and "hidden_size" not in config:
        return {**config, **nested}
    return config


def _not_finite(value: Any, place: str = "") -> str | None:
    """Return the place of the first number that is NaN or infinite; JSON has neither, and Python's reader takes both."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (_not_finite(child, f"{place}.{key}".lstrip(".")) for key, child in items)
    return next((each for each in found if each is not None), None)


def _check_named_weights(path: Path, config: Mapping[str, Any]) -> None:
    """Raise TrtbuildError when config.json makes transformers read another file than the usual ones (`transformers_weights`)."""
    named = config.get("transformers_weights")
    if named is not None and named not in (SINGLE, INDEX):
        raise TrtbuildError(
            f"{path / 'config.json'}: transformers_weights = {named!r} names other weights than {SINGLE} and {INDEX}",
            hint=f"rename them to {SINGLE} in a folder of their own, and remove transformers_weights",
        )


def _tensors(path: Path) -> dict[str, TensorInfo]:
    index = path / INDEX
    files = sorted(path.glob("*.safetensors"))
    if index.is_file():
        refuse_lfs_pointer(index)
        return _from_index(path, read_json(index), {file.name for file in files})
    if not files:
        pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
        if pickles:
            raise TrtbuildError(
                f"{path} holds pickled weights only ({', '.join(pickles[:3])}), which are never opened: loading them runs code",
                hint="convert them to safetensors where you trust them, or download the safetensors version of the model",
            )
        raise TrtbuildError(f"{path} has no *.safetensors file", hint="download the weights")
    single = path / SINGLE
    tensors: dict[str, TensorInfo] = {}
    for file in [single] if single in files else files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise TrtbuildError(
                    f"tensor {name} is in both {tensors[name].path.name} and {file.name}, and {path} has no {INDEX}",
                    hint="remove the files that do not belong to the model",
                )
            tensors[name] = info
    return tensors


def _from_index(path: Path, index: Mapping[str, Any], present: set[str]) -> dict[str, TensorInfo]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(value, str) for value in weight_map.values()):
        raise TrtbuildError(f"{path / INDEX} has no weight_map from tensor names to files", hint="download it again")
    names = sorted(set(weight_map.values()))
    for name in names:
        if name != Path(name).name or "\\" in name or "\0" in name or not name.endswith(".safetensors"):
            raise TrtbuildError(
                f"{path / INDEX} names {name!r}, which is not a safetensors file of this folder",
                hint="the index is not to be trusted",
            )
    if SINGLE in present and SINGLE not in names:
        raise TrtbuildError(
            f"{path} holds {SINGLE}, and {INDEX}, which names {len(names)} other files: {', '.join(names[:3])}",
            hint="remove the one that is not meant: transformers reads the single file, other programs the index",
        )
    missing = [name for name in names if name not in present]
    if missing:
        others = sorted(present - set(names))
        known = f"; {len(others)} other safetensors files were found" if others else ""
        raise TrtbuildError(
            f"{path / INDEX} names {len(names)} files, {len(names) - len(missing)} exist{known}; missing: {', '.join(missing)}",
            hint="finish the download, or remove the index if the other files hold the whole model",
        )
    tensors: dict[str, TensorInfo] = {}
    for name in names:
        header = read_header(path / name)
        tensors.update({key: info for key, info in header.items() if weight_map.get(key) == name})
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise TrtbuildError(
            f"{path / INDEX} places {lost[0]} in {weight_map[lost[0]]}, which does not hold it ({len(lost)} such tensors)",
            hint="the index and the files do not belong together; download the model again",
        )
    return tensors
