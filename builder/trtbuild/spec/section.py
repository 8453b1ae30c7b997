"""What all sections of trtbuild.yaml are: immutable, typed, and closed to keys they do not know."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]

S = TypeVar("S", bound=Struct)


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of trtbuild.yaml. Types are checked by `spec.parse`, not by the constructor; relations between fields by both."""

    #: Keys of other tools that are refused with a word of their own: key -> what to say.
    refused_keys: ClassVar[dict[str, str]] = {}

    def as_dict(self) -> dict[str, Any]:
        """Return the section in its JSON form (tuples become lists)."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return data


def replaced(section: S, **fields: Any) -> S:
    """Return a section with other values; relations between its fields are checked again.

    Raises:
        ValueError: they do not hold.
    """
    return msgspec.structs.replace(section, **fields)
