"""Whether the text of a parameter is what TensorRT-LLM's C++ backend, or a Python model, makes a value of (Triton specification 1.1, 1.8, 1.9)."""

from __future__ import annotations

import re
from collections.abc import Callable

from trtbuild.trtllm.backend_parameters import BOOLEANS, Parameter

#: The parameter that names the GPUs of every instance.
DEVICES = "gpu_device_ids"
_INTEGER = re.compile(r"\s*[+-]?\d+")
_FLOAT = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TREES = re.compile(r"\s*(?:\{\s*(?:\d+\s*(?:,\s*\d+\s*)*)?\}\s*(?:,\s*(?=\{)|\s*$))+")
#: What the stock Python models take for true and false, in any case; anything else is true, with a warning.
FLAGS = frozenset(["true", "false", "1", "0", "t", "f", "y", "n", "yes", "no"])


def wrong(parameter: Parameter, text: str) -> str:
    """Return what is wrong with a value, and what the backend makes of it; empty when it is as it should be."""
    return _CHECKS.get(parameter.kind, _of_word)(parameter, text)


def devices(text: str) -> list[list[int]] | None:
    """Return the GPUs of every instance that a list such as "0,1;2,3" names, None when it is no such list."""
    try:
        groups = [[int(part) for part in group.split(",")] for group in text.split(";")]
    except ValueError:
        return None
    return groups if all(each >= 0 for group in groups for each in group) else None


def _of_bool(parameter: Parameter, text: str) -> str:
    if text in BOOLEANS:
        return ""
    return f"is no boolean ({', '.join(BOOLEANS)}); {_default(parameter)}"


def _of_integer(parameter: Parameter, text: str) -> str:
    match = _INTEGER.match(text)
    if match is None:
        return f"is no whole number; {_default(parameter)}"
    if match.end() != len(text.rstrip()):
        return f"is read as {match[0].strip()}: what follows the digits is dropped"
    return _of_range(parameter, float(match[0]))  # of a number beyond all limits infinity


def _of_float(parameter: Parameter, text: str) -> str:
    match = _FLOAT.match(text)
    if match is None:
        return f"is no number; {_default(parameter)}"
    if match.end() != len(text.rstrip()):
        return f"is read as {float(match[0]):g}: what follows the number is dropped"
    return _of_range(parameter, float(match[0]))


def _of_range(parameter: Parameter, value: float) -> str:
    if parameter.lowest is not None and value < parameter.lowest:
        return f"is below {parameter.lowest:g}"
    if parameter.highest is not None and value > parameter.highest:
        return f"is above {parameter.highest:g}"
    if parameter.highest_excluded and value == parameter.highest:
        return f"must be below {parameter.highest:g}"
    return ""


def _of_integers(parameter: Parameter, text: str) -> str:
    for part in text.split(","):
        if problem := _of_integer(parameter, part):
            return f"has the entry '{part}', which {problem}"
    return ""


def _of_devices(_parameter: Parameter, text: str) -> str:
    if devices(text) is None:
        return "is no list of GPUs such as 0,1;2,3; the backend drops the entries from the first wrong one on"
    return ""


def _of_trees(parameter: Parameter, text: str) -> str:
    return "" if _TREES.fullmatch(text) else f"is no list of lists such as {{0,0}},{{0,1}}; {_default(parameter)}"


def _of_word(parameter: Parameter, text: str) -> str:
    if not parameter.allowed or text in parameter.allowed:
        return ""
    outcome = "the model does not load" if parameter.on_failure == "refused" else _default(parameter)
    return f"is none of {', '.join(parameter.allowed)}; {outcome}"


def _default(parameter: Parameter) -> str:
    return f"the backend warns and takes the default, {parameter.default or 'not set'}"


_CHECKS: dict[str, Callable[[Parameter, str], str]] = {
    "bool": _of_bool,
    "int": _of_integer,
    "uint": _of_integer,
    "size": _of_integer,
    "float": _of_float,
    "ints": _of_integers,
    "devices": _of_devices,
    "trees": _of_trees,
}
