"""Reading a trtbuild.yaml: from a file or a dictionary to a `Deployment`, or to every fault at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.spec.deployment import Deployment
from trtbuild.spec.section import Section

#: Fields that hold paths, which are relative to trtbuild.yaml.
_PATHS = (
    ("model", "path"), ("model", "merge_lora"), ("quantization", "calibration", "file"), ("accuracy", "file"),
    ("engine", "timing_cache"), ("speculative", "draft_model"), ("lora", "adapters"), ("serving", "xgrammar_tokenizer_info"),
)  # fmt: skip
#: Longest value that is shown whole in a message, characters.
_SHOWN = 80


def load(path: Path) -> Deployment:
    """Read and validate a trtbuild.yaml; `model.path` comes back absolute, and so do the files of samples.

    Raises:
        TrtbuildError: the file cannot be read.
        UsageError: it is not YAML, or a key or value is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrtbuildError(f"cannot read {path}: {error}", hint="name a trtbuild.yaml or a model folder") from error
    from trtbuild.yaml_text import parse_yaml  # a model folder needs no YAML

    data = parse_yaml(text, origin=str(path))
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}, not a mapping of sections", hint="see `trtbuild schema`")
    return parse(_with_absolute_paths(data, path.resolve().parent), origin=str(path))


def parse(data: dict[str, Any], *, origin: str) -> Deployment:
    """Validate a plain dictionary; types are strict: no 1 for true, no "1" for 1.

    Raises:
        UsageError: a key is unknown (the nearest known one is named) or a value is not allowed.
    """
    try:
        if _is_finite(data):
            return msgspec.convert(data, Deployment)
    except (msgspec.ValidationError, TypeError):
        pass  # below every fault is looked for, not only the first
    raise UsageError(f"{origin}: {'; '.join(_faults(data, Deployment))}", hint="see `trtbuild schema`")


def _is_finite(value: Any) -> bool:
    """Tell whether a value holds neither NaN nor an infinity: a limit of infinity looks like one and lets everything through."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _faults(data: Any, section: type[Section], place: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield what is wrong with a section: each key and value by itself first, then what does not go together."""
    where = ".".join(place)
    if not isinstance(data, dict):
        yield f"{where} = {_shown(data)}: expected a mapping of keys to values"
        return
    known = {info.name: info for info in msgspec.structs.fields(section)}
    is_sound = True
    for key in data:
        if key not in known:
            is_sound = False
            yield section.refused_keys.get(key) or _unknown(key, list(known), place)
    for name, info in known.items():
        inner = (*place, name)
        if name not in data:
            if info.required:
                is_sound = False
                yield f"'{'.'.join(inner)}' is missing"
        elif isinstance(info.type, type) and issubclass(info.type, Section):
            for fault in _faults(data[name], info.type, inner):
                is_sound = False
                yield fault
        elif not _fits(data[name], info.type):
            is_sound = False
            yield f"{'.'.join(inner)} = {_shown(data[name])}: expected {_expected(info.type)}"
    if is_sound:
        try:
            msgspec.convert(data, section)
        except msgspec.ValidationError as error:
            message = str(error.__cause__ or error)
            yield f"{where}: {message}" if where else message


def _fits(value: Any, annotation: Any) -> bool:
    try:
        msgspec.convert(value, annotation)
    except (msgspec.ValidationError, TypeError):
        return False
    return _is_finite(value)


def _expected(annotation: Any) -> str:
    from trtbuild.spec.fields import words_of

    return words_of(annotation).replace(" | ", " or ").replace("; null is empty", ", or null")


def _unknown(key: Any, known: list[str], place: tuple[str, ...]) -> str:
    where = ".".join((*place, str(key)))
    near = get_close_matches(str(key), known, n=1)
    return f"unknown key '{where}'" + (f", did you mean '{near[0]}'?" if near else f"; known here: {', '.join(known)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _with_absolute_paths(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return the file's data with every path absolute; what is not a path where one should be is left for the validation."""

    def absolute(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [absolute(item) for item in value]
        return str(base / Path(value).expanduser()) if isinstance(value, str) else value

    data = deepcopy(data)
    for *sections, key in _PATHS:
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(key) is not None:
            node[key] = absolute(node[key])
    return data
