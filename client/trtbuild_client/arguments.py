"""Checks of what a caller passes: whatever it is, a wrong one ends in an InvalidRequest that names it and what is allowed."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from trtbuild_client.errors import InvalidRequest

#: Python refuses to write integers of more than 4300 digits (sys.set_int_max_str_digits).
_MOST_BITS = 1024


def shown(value: Any) -> str:
    """Return a value for a message: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"<an integer of {value.bit_length()} bits>"
    return reprlib.repr(value)


def of_type(name: str, value: Any, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Return if a value is of one of some types.

    Args:
        allowed: these types in words.

    Raises:
        InvalidRequest: it is of another type.
    """
    if not isinstance(value, kinds):
        raise InvalidRequest(f"{name}={shown(value)} is of type {type(value).__name__}", hint=f"It must be {allowed}.")


def whole(name: str, value: Any, least: int, most: int) -> None:
    """Return if a value is an integer within bounds.

    Raises:
        InvalidRequest: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{name}={shown(value)}", hint=f"It must be an integer from {least} to {most}.")


def text(name: str, value: Any) -> None:
    """Return if a value is a text that can be sent.

    Raises:
        InvalidRequest: it is no str, or holds half of a character (a surrogate), which UTF-8 does not have.
    """
    of_type(name, value, str, "str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name}={shown(value)} is no text that can be sent: {error.reason}", hint="Give characters that UTF-8 has."
        ) from error


def texts(name: str, value: Any) -> None:
    """Return if a value is a mapping of str to str.

    Raises:
        InvalidRequest: it is not.
    """
    of_type(name, value, Mapping, "a mapping of str to str, or None")
    for key, each in value.items():
        of_type(f"a name in {name}", key, str, "str")
        of_type(f"{name}[{key!r}]", each, str, "str")
