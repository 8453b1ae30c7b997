"""The form of manifest.json: the keys that each kind of manifest has for sure, and their types. Knows no folder.

What is read later without a look must be here; keys beside these are free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping whose keys are free and whose values have one form."""

    form: Form


@dataclass(frozen=True, slots=True)
class Entries:
    """A list of names of entries of the folder itself: what they name is replaced with it."""


#: A type; a mapping of the keys that must be there to their forms; or one of the above.
Form = type | dict[str, "Form"] | Each | Entries
_WORDS: dict[type, str] = {
    dict: "a mapping", list: "a list", str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null",
}  # fmt: skip
_SIZES = Each({"bytes": int})
#: Kind of manifest -> its form.
FORMS: dict[str, dict[str, Form]] = {
    "build": {"stages": Each({"key": str, "outputs": Entries()})},
    "checkpoint": {
        "target": str, "inputs_key": str, "source": {"path": str}, "deployment": {"model": dict}, "sha256": Each(Each(str)), "files": _SIZES,
        "read_bytes": int, "write_bytes": int, "calibration": object, "kv_scales": list, "warnings": list, "seconds": dict, "peak_rss_bytes": int,
    },
    "engine": {"files": _SIZES},
    "repository": {"files": Each(str)},
}  # fmt: skip


def faults(value: object, form: Form, place: str = "") -> Iterator[str]:
    """Yield what is wrong with a value, by its place: what is missing, and what is of another type.

    Args:
        value: from JSON.
        form: that it should have.
        place: of the value, as dotted keys.
    """
    if isinstance(form, type):
        if not isinstance(value, form) or (form is int and isinstance(value, bool)):
            yield _other(place, value, form)
    elif isinstance(form, Entries):
        if not isinstance(value, list):
            yield _other(place, value, list)
        else:
            yield from (
                f"{place} names {name!r}, which is no entry of the folder" for name in value if not _is_entry(name)
            )
    elif not isinstance(value, dict):
        yield _other(place, value, dict)
    elif isinstance(form, Each):
        for key, inner in value.items():
            yield from faults(inner, form.form, f"{place}.{key}".lstrip("."))
    else:
        for key, inner_form in form.items():
            inner_place = f"{place}.{key}".lstrip(".")
            if key in value:
                yield from faults(value[key], inner_form, inner_place)
            else:
                yield f"{inner_place} is missing"


def _other(place: str, value: object, wanted: type) -> str:
    return f"{place} is {_WORDS[type(value)]}, not {_WORDS[wanted]}"


def _is_entry(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and name not in ("", "..")
