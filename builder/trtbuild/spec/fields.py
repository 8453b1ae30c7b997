"""Every field of trtbuild.yaml as a flat list, read from the sections: one source for messages, comments and references.

Knows how a field's type, bounds and default are worded. Knows nothing about files or about the meaning of a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from trtbuild.spec.deployment import Deployment
from trtbuild.spec.section import Section

_WORDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of trtbuild.yaml.

    Attributes:
        path: keys from the top, e.g. ("quantization", "calibration", "file").
        section: the class when the key holds a section, else None.
        kind: what may be written there, e.g. "whole number, 1 or more", "auto | fp8 | int8".
        default: the default in its JSON form; meaningless when `required`.
        required: whether the key must be given.
        description: what the key is for.
    """

    path: tuple[str, ...]
    section: type[Section] | None
    kind: str
    default: Any
    required: bool
    description: str


def fields(section: type[Section] = Deployment, prefix: tuple[str, ...] = ()) -> Iterator[Field]:
    """Yield every key in the order of the sections, a section before what is in it."""
    for info in struct_fields(section):
        path = (*prefix, info.name)
        if isinstance(info.type, type) and issubclass(info.type, Section):
            yield Field(path, info.type, "section", None, info.required, _summary(info.type))
            yield from fields(info.type, path)
        else:
            yield Field(path, None, words_of(info.type), _default(info), info.required, description_of(info.type))


def value_at(deployment: Deployment, path: tuple[str, ...]) -> Any:
    """Return the value of a key in its JSON form (tuples become lists)."""
    value: Any = deployment.as_dict()
    for part in path:
        value = value[part]
    return value


def description_of(annotation: Any) -> str:
    """Return what a key is for."""
    return next((each.description for each in _metas(annotation) if each.description), "")


def words_of(annotation: Any) -> str:
    """Word a type; a bound inside a union (`Positive | None`) is worded with its member."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return ", ".join([words_of(members[0]), *_bounds(_metas(annotation))])
    if origin is Literal:
        return " | ".join(map(str, members))
    if origin is dict:
        return f"mapping of {words_of(members[0])} to {words_of(members[1])}"
    if origin is tuple:
        words = words_of(members[0])
        return f"list of {words}" if members[-1] is Ellipsis else f"list of {len(members)} times {words}"
    if members and (origin is Union or type(annotation).__name__ == "UnionType"):
        given = " or ".join(words_of(member) for member in members if member is not type(None))
        return f"{given}; null is empty" if type(None) in members else given
    return _WORDS[annotation]


def _summary(section: type[Section]) -> str:
    return (section.__doc__ or "").strip().partition("\n")[0]


def _default(info: FieldInfo) -> Any:
    if info.default_factory is not NODEFAULT:
        return info.default_factory()
    if info.default is NODEFAULT:
        return None
    return list(info.default) if isinstance(info.default, tuple) else info.default


def _metas(annotation: Any) -> list[Meta]:
    return [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Meta)]


def _bounds(metas: list[Meta]) -> list[str]:
    def bound(name: str) -> Any:
        return next((value for each in metas if (value := getattr(each, name)) is not None), None)

    low, high = bound("ge"), bound("le")
    if low is not None and high is not None:
        return [f"{low:g} to {high:g}"]
    words = {"{} or more": low, "more than {}": bound("gt"), "at most {}": high, "less than {}": bound("lt")}
    found = [word.format(f"{value:g}") for word, value in words.items() if value is not None]
    return found + (["not empty"] if bound("min_length") else [])
