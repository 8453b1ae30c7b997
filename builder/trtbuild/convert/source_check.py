"""Whether a source is what an architecture needs: its tensors by name, shape and dtype. Reads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trtbuild.arch.rules import ArchSpec
from trtbuild.dims import ModelDims
from trtbuild.dtypes import FLOATS, FROM_CONFIG
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout
from trtbuild.safetensors_file import SourceTensor
from trtbuild.source import SourceCheckpoint


def canonical(source: SourceCheckpoint, arch: ArchSpec) -> dict[str, SourceTensor]:
    """Return the tensors by the names that the rules know.

    Raises:
        TrtbuildError: two have the same.
    """
    tensors: dict[str, SourceTensor] = {}
    for name, tensor in source.tensors.items():
        own = next((new + name[len(old) :] for old, new in arch.prefixes if name.startswith(old)), name)
        if own in tensors:
            raise TrtbuildError(
                f"{source.path} holds {own} twice, once as {name}",
                hint="remove the files that do not belong to the model",
            )
        tensors[own] = tensor
    return tensors


def refuse_converted(config: Mapping[str, Any], where: str) -> None:
    """Raise TrtbuildError for a config.json of TensorRT-LLM."""
    if "architecture" in config and "mapping" in config:
        raise TrtbuildError(
            f"{where} belongs to a TensorRT-LLM checkpoint, which is converted already",
            hint="name the Hugging Face folder",
        )


def resolve_dtype(asked: str, dims: ModelDims, source: SourceCheckpoint) -> str:
    """Resolve --dtype; auto follows config.json, else the tensors, and float32 becomes float16.

    Raises:
        TrtbuildError: config.json names a dtype that weights are not in.
    """
    if asked != "auto":
        return FROM_CONFIG[asked]
    if dims.dtype and dims.dtype not in FROM_CONFIG:
        raise TrtbuildError(
            f"{source.path / 'config.json'}: dtype = '{dims.dtype}' is none of {', '.join(FROM_CONFIG)}",
            hint="correct it, take it out (the tensors then decide), or give --dtype",
        )
    counts = Counter(info.dtype for info in source.tensors.values() if info.dtype in FLOATS)
    common = counts.most_common(1)[0][0] if counts else "F16"
    found = FROM_CONFIG.get(dims.dtype, common)
    # float32 in config.json is often what a tool computed in; the tensors say what was kept.
    found = common if found == "F32" else found
    return "F16" if found == "F32" else found


def check_tensors(source: SourceCheckpoint, layout: Layout) -> None:
    """Compare the source with what the layout needs, in both directions: nothing missing, nothing left over.

    Raises:
        TrtbuildError: a tensor is missing, left over, of another shape or no plain weight.
    """
    used: set[str] = set()
    missing: list[str] = []
    for slot in layout.slots:
        for part in slot.parts:
            if part.source in source.tensors:
                _check_tensor(source.tensors[part.source], part.source_shape, source)
                used.add(part.source)
            elif part.source not in missing:
                missing.append(part.source)
    architecture = layout.dims.architecture
    if missing:
        raise TrtbuildError(
            f"{source.path} lacks {len(missing)} tensors that {architecture} needs: {first_names(missing)}",
            hint="download the model again; if it was saved by another tool, check its tensor names",
        )
    ignored = layout.arch.ignored + (("lm_head.weight",) if layout.dims.tie_word_embeddings else ())
    left = [
        name
        for name in source.tensors
        if name not in used and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if left:
        raise TrtbuildError(
            f"{source.path} holds {len(left)} tensors that {architecture} does not use: {first_names(left)}",
            hint="nothing is dropped in silence: remove them, or correct config.json (bias flags, architecture, number of layers)",
        )


def _check_tensor(info: SourceTensor, shape: tuple[int, ...], source: SourceCheckpoint) -> None:
    if info.dtype not in FLOATS:
        raise TrtbuildError(
            f"{info.path}: tensor {info.name} is {info.dtype}, not a plain weight",
            hint=f"readable dtypes: {', '.join(FLOATS)}",
        )
    if info.shape != shape:
        raise TrtbuildError(
            f"{info.path}: tensor {info.name} has shape {list(info.shape)}, but {source.path / 'config.json'} implies {list(shape)}",
            hint="config.json and the weights do not belong together (a resized vocabulary? then set vocab_size to the rows)",
        )


def first_names(names: list[str], count: int = 5) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
