"""Every field of trtbuild.yaml as a flat list, read from the pydantic models: one source for comments and references.

Knows how a field's type, bounds and default are worded. Knows nothing about files or about the meaning of a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trtbuild.spec import Deployment, Section

_WORDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of trtbuild.yaml.

    Attributes:
        path: keys from the top, e.g. ("quantization", "calibration", "file").
        section: the pydantic model when the key holds a section, else None.
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


def fields(model: type[Section] = Deployment, prefix: tuple[str, ...] = ()) -> Iterator[Field]:
    """Yield every key in the order of the models, a section before what is in it."""
    for name, info in model.model_fields.items():
        path = (*prefix, name)
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield Field(path, annotation, "section", None, info.is_required(), _summary(annotation))
            yield from fields(annotation, path)
        else:
            yield Field(path, None, _kind(info), _default(info), info.is_required(), info.description or "")


def value_at(deployment: Deployment, path: tuple[str, ...]) -> Any:
    """Return the value of a key in its JSON form (tuples become lists)."""
    value: Any = deployment.model_dump(mode="json")
    for part in path:
        value = value[part]
    return value


def _summary(section: type[Section]) -> str:
    return (section.__doc__ or "").strip().partition("\n")[0]


def _default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return None
    return list(default) if isinstance(default, tuple) else default


def _kind(info: FieldInfo) -> str:
    return ", ".join([_type_words(info.annotation), *_bounds(info.metadata)])


def _type_words(annotation: Any) -> str:
    """Word a type; a bound inside a union (`Positive | None`) is worded with its member."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, members))
    if origin is dict:
        return f"mapping of {_type_words(members[0])} to {_type_words(members[1])}"
    if origin is tuple:
        words = _type_words(members[0])
        return f"list of {words}" if members[-1] is Ellipsis else f"list of {len(members)} times {words}"
    if hasattr(annotation, "__metadata__"):
        return ", ".join([_type_words(annotation.__origin__), *_bounds(_constraints(annotation.__metadata__))])
    if members and (origin is Union or type(annotation).__name__ == "UnionType"):
        given = " or ".join(_type_words(member) for member in members if member is not type(None))
        return f"{given}; null is empty" if type(None) in members else given
    return _WORDS[annotation]


def _constraints(metadata: tuple[Any, ...]) -> list[Any]:
    """Return the constraints that a pydantic `Field(...)` inside `Annotated` carries."""
    return [item for entry in metadata for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]


def _bounds(metadata: list[Any]) -> list[str]:
    low = next((item.ge for item in metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in metadata if isinstance(item, Le)), None)
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    above = next((item.gt for item in metadata if isinstance(item, Gt)), None)
    below = next((item.lt for item in metadata if isinstance(item, Lt)), None)
    words = {"{} or more": low, "more than {}": above, "at most {}": high, "less than {}": below}
    return [word.format(bound) for word, bound in words.items() if bound is not None]
