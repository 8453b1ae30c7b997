"""Reading a trtbuild.yaml: from a file or a dictionary to a `Deployment`, or to every fault at once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from trtbuild.errors import UsageError
from trtbuild.spec.deployment import Deployment
from trtbuild.spec.section import Section

#: Fields that hold paths, which are relative to trtbuild.yaml.
_PATHS = (
    ("model", "path"), ("model", "merge_lora"), ("quantization", "calibration", "file"), ("accuracy", "file"),
    ("engine", "timing_cache"), ("speculative", "draft_model"), ("lora", "adapters"), ("serving", "xgrammar_tokenizer_info"),
)  # fmt: skip
#: Place of a scalar -> its characters, as `yaml_text.Document.unquoted`.
Written = Mapping[tuple[str | int, ...], str]
#: Place of a value -> the option of the command line that gave it.
Given = Mapping[tuple[str, ...], str]
#: Text that is a number, as YAML 1.2 has it (10.3.2: tag resolution of the core schema).
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
#: Longest value that is shown whole in a message, characters.
_SHOWN = 80


def load(path: Path) -> Deployment:
    """Read and validate a trtbuild.yaml; `model.path` comes back absolute, and so do the files of samples.

    Raises:
        TrtbuildError: the file is missing or cannot be read.
        UsageError: it is no text, not YAML, or a key or value is not allowed.
    """
    from trtbuild.yaml_text import read_yaml  # a model folder needs no YAML

    document = read_yaml(path)
    if not isinstance(document.data, dict):
        what = "nothing" if document.data is None else f"a {type(document.data).__name__}"
        raise UsageError(f"{path} holds {what}, not a mapping of sections", hint="see `trtbuild schema`")
    data = _with_absolute_paths(document.data, path.resolve().parent, origin=str(path))
    return parse(data, origin=str(path), written=document.unquoted)


def parse(
    data: dict[str, Any], *, origin: str, written: Written | None = None, given: Given | None = None
) -> Deployment:
    """Validate a plain dictionary; types are strict: no 1 for true, no "1" for 1.

    Args:
        data: sections and their keys.
        origin: where they come from, for messages.
        written: see `yaml_text.Document.unquoted`.
        given: values that came from options, which are then named instead of the key.

    Raises:
        UsageError: a key is unknown (the nearest known one is named) or a value is not allowed.
    """
    try:
        if _is_finite(data):
            return msgspec.convert(data, Deployment)
    except (msgspec.ValidationError, TypeError):
        pass  # below every fault is looked for, not only the first
    given = given or {}
    faults = list(_faults(data, Deployment, written or {}, given))
    named = [option for option in given.values() if any(_names(fault, option) for fault in faults)]
    are_typed = all(fault.startswith("--") for fault in faults)
    hint = f"leave out {' and '.join(named)}, or give what is allowed" if named else ""
    raise UsageError(
        f"{'' if are_typed else f'{origin}: '}{'; '.join(faults)}",
        hint="; ".join(filter(None, (hint, "" if are_typed else "see `trtbuild schema`"))),
    )


def _names(text: str, option: str) -> bool:
    return re.search(rf"(?<!\S){re.escape(option)}(?![\w-])", text) is not None


def _is_finite(value: Any) -> bool:
    """Tell whether a value holds neither NaN nor an infinity: a limit of infinity looks like one and lets everything through."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _faults(
    data: Any, section: type[Section], written: Written, given: Given, place: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield what is wrong with a section: each key and value by itself first, then what does not go together."""
    where = ".".join(place)
    if not isinstance(data, dict):
        yield f"{where} = {_shown(data, written.get(place))}: expected a mapping of keys to values"
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
            for fault in _faults(data[name], info.type, written, given, inner):
                is_sound = False
                yield fault
        elif not _fits(data[name], info.type):
            is_sound = False
            shown, expected = _shown(data[name], written.get(inner)), _expected(info.type)
            if inner in given:  # no option gives null, and no YAML has to be quoted
                yield f"{given[inner]} = {shown}: expected {expected.removesuffix(', or null')}"
            else:
                hint = _unquoted(inner, info.type, written) or _not_read_as_number(data[name], info.type)
                yield f"{'.'.join(inner)} = {shown}: expected {expected}{hint}"
    if is_sound:
        try:
            msgspec.convert(data, section)
        except msgspec.ValidationError as error:
            yield _together(str(error.__cause__ or error), place, given)


def _together(message: str, place: tuple[str, ...], given: Given) -> str:
    """Return what a section says of its values, with options for the keys that they gave; the section is named where none is."""
    options = {inner[-1]: option for inner, option in given.items() if inner[:-1] == place}
    said = re.sub(r"^\w+(?=:)|\b[a-z]+_\w+\b", lambda word: options.get(word[0], word[0]), message)
    if said != message:
        return said
    where = next(iter(options.values())) if len(options) == 1 else ".".join(place)
    return f"{where}: {message}" if where else message


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


def _unquoted(place: tuple[str, ...], annotation: Any, written: Written) -> str:
    """Return what to do about a value that is text for who wrote it and none for YAML, as the end of a message."""
    from trtbuild.yaml_text import NOTHING

    found = [text for where, text in written.items() if where[: len(place)] == place and text not in NOTHING]
    if not found or "text" not in _expected(annotation):
        return ""
    return f"; YAML reads it as another type, so quote it: {', '.join(json.dumps(text) for text in found)}"


def _not_read_as_number(value: Any, annotation: Any) -> str:
    """Return what to do about a number that YAML takes for text, as the end of a message: one in quotes, or without a dot as in 1e-3 (YAML 1.1)."""
    for kind in (_whole, float):
        number = _with_numbers(value, kind)
        if number != value and _fits(number, annotation):
            text = _as_yaml(number)
            return f"; YAML reads it as text, so write {text}" if len(text) <= _SHOWN else ""
    return ""


def _with_numbers(value: Any, kind: Callable[[str], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_with_numbers(item, kind) for item in value]
    return kind(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _whole(text: str) -> int | str:
    return int(Decimal(text)) if float(text).is_integer() else text


def _as_yaml(value: Any) -> str:
    """Return numbers as every version of YAML reads them; Python leaves the dot out of 1e-05."""
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))


def _shown(value: Any, written: str | None = None) -> str:
    text = repr(value) if written is None else written or "null"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _with_absolute_paths(data: dict[str, Any], base: Path, *, origin: str) -> dict[str, Any]:
    """Return the file's data with every path absolute; what is not a path where one should be is left for the validation.

    Raises:
        UsageError: a path is empty, holds NUL, or begins with the home of nobody.
    """

    def absolute(value: Any, place: str) -> Any:
        if isinstance(value, (list, tuple)):
            return [absolute(item, place) for item in value]
        if not isinstance(value, str):
            return value
        try:
            if value and "\0" not in value:
                return str(base / Path(value).expanduser())
        except RuntimeError:
            pass  # no such user
        raise UsageError(f"{origin}: {place} = {value!r} names no file", hint="write a path, or leave the key out")

    data = deepcopy(data)
    for *sections, key in _PATHS:
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(key) is not None:
            node[key] = absolute(node[key], ".".join((*sections, key)))
    return data
