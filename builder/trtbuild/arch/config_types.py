"""Types of the fields of config.json that are read where a family has them; sizes and flags that all have are typed by `dims.ConfigReader`.

A field of a wrong type is an error, not a default: who wrote it meant something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtbuild.errors import TrtbuildError

_MOST = 2**31 - 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST


def _is_window(value: Any) -> bool:
    return _is_count(value) or (value == 0 and not isinstance(value, bool))


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value <= _MOST


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_factors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_positive, value))


Type = tuple[Callable[[Any], bool], str]
_COUNT: Type = (_is_count, f"a positive integer up to {_MOST}")
_POSITIVE: Type = (_is_positive, f"a positive number up to {_MOST}")
_SHARE: Type = (_is_share, "a number above 0, at most 1")
_OBJECT: Type = (lambda value: isinstance(value, Mapping), "an object")
_TEXT: Type = (lambda value: isinstance(value, str), "a string")
#: Field -> its type; null is as good as absent.
FIELDS: dict[str, Type] = {
    "sliding_window": (_is_window, f"an integer from 0 to {_MOST}"),
    "max_window_layers": (_is_window, f"an integer from 0 to {_MOST}"),
    "sliding_window_pattern": _COUNT,
    "_sliding_window_pattern": _COUNT,
    "original_max_position_embeddings": _COUNT,
    "num_ln_in_parallel_attn": _COUNT,
    "attn_logit_softcapping": _POSITIVE,
    "final_logit_softcapping": _POSITIVE,
    "query_pre_attn_scalar": _POSITIVE,
    "rope_local_base_freq": _POSITIVE,
    "partial_rotary_factor": _SHARE,
    "rotary_pct": _SHARE,
    "layer_types": (_is_texts, "a list of strings"),
    "rope_parameters": _OBJECT,
    "rope_scaling": _OBJECT,
    "dtype": _TEXT,
    "torch_dtype": _TEXT,
}
#: The same inside `rope_parameters` and `rope_scaling`.
ROPE_FIELDS: dict[str, Type] = {
    "rope_type": _TEXT,
    "type": _TEXT,
    "partial_rotary_factor": _SHARE,
    "short_factor": (_is_factors, "a list of positive numbers"),
    "long_factor": (_is_factors, "a list of positive numbers"),
}
#: Longest value that a message shows whole, characters.
_SHOWN = 60


def check_types(config: Mapping[str, Any], where: str) -> None:
    """Raise TrtbuildError, which names the field, when one is of another type.

    Args:
        config: parsed config.json.
        where: its path, for the message.
    """
    _check(config, FIELDS, where, "")
    for name in ("rope_parameters", "rope_scaling"):
        block = config.get(name) or {}
        nested = {key: value for key, value in block.items() if isinstance(value, Mapping)}
        for place, each in {name: block, **{f"{name}.{key}": value for key, value in nested.items()}}.items():
            _check(each, ROPE_FIELDS, where, f"{place}.")


def _check(block: Mapping[str, Any], types: Mapping[str, Type], where: str, prefix: str) -> None:
    for key, (holds, words) in types.items():
        value = block.get(key)
        if value is not None and not holds(value):
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise TrtbuildError(f"{where}: {prefix}{key} = {shown} is not {words}", hint="repair config.json")
