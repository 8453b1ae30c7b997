"""The parameters of a request: names, ranges and what each is called on the wire. Checked here, before anything is sent.

Ranges are those of TensorRT-LLM's executor (cpp/tensorrt_llm/executor/samplingConfig.cpp, release 1.2); where a
server is stricter it says so itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypedDict

from trtbuild_client.arguments import shown
from trtbuild_client.errors import InvalidRequest

_INT32_MAX = 2**31 - 1
_UINT64_MAX = 2**64 - 1
_MAX_BEAM_WIDTH = 1024


class Options(TypedDict, total=False):
    """Keyword arguments of `Client.generate` and `Client.stream`; None means that the server decides."""

    max_tokens: int
    stop_words: list[str] | tuple[str, ...] | None
    bad_words: list[str] | tuple[str, ...] | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    length_penalty: float | None
    min_tokens: int | None
    end_id: int | None
    pad_id: int | None
    beam_width: int | None
    num_return_sequences: int | None
    exclude_input_in_output: bool | None
    return_log_probs: bool | None
    return_context_logits: bool | None
    return_generation_logits: bool | None
    return_perf_metrics: bool | None
    return_num_input_tokens: bool | None
    return_num_output_tokens: bool | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        names: what servers call it, newest name first; those of TensorRT-LLM's llmapi model last.
        check: returns the checked value, or None for a value outside the range.
        allowed: the range in words.
        neutral: sent to a server that insists on the parameter when the caller gave none; None if there is no such value.
    """

    names: tuple[str, ...]
    check: Callable[[Any], Any]
    allowed: str
    neutral: Any = None


def _integer(low: int, high: int) -> Callable[[Any], int | None]:
    def check(value: Any) -> int | None:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            return None
        return number if number is not None and low <= number <= high else None

    return check


def _number(low: float, high: float, *, low_open: bool = False) -> Callable[[Any], float | None]:
    def check(value: Any) -> float | None:
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            return None
        try:
            number = float(value)
        except (OverflowError, TypeError, ValueError):  # too large, an array of several numbers, a signalling NaN
            return None
        is_inside = low < number <= high if low_open else low <= number <= high
        return number if math.isfinite(number) and is_inside else None

    return check


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _words(value: Any) -> tuple[str, ...] | None:
    """Drop empty words and repetitions, keep the order; a single string is refused, since it would become letters."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        return None
    return tuple(dict.fromkeys(word for word in value if word))


_FINITE = _number(-math.inf, math.inf)
_FLAG_TEXT = "True or False"
_WORDS_TEXT = "a list of strings"

PARAMETERS: dict[str, Parameter] = {
    "max_tokens": Parameter(
        ("max_tokens", "sampling_param_max_tokens"), _integer(1, _INT32_MAX), f"an integer from 1 to {_INT32_MAX}"
    ),
    "stop_words": Parameter(("stop_words", "sampling_param_stop"), _words, _WORDS_TEXT, ("",)),
    "bad_words": Parameter(("bad_words",), _words, _WORDS_TEXT, ("",)),
    "temperature": Parameter(
        ("temperature", "sampling_param_temperature"), _number(0, math.inf), "a finite number >= 0", 1.0
    ),
    "top_k": Parameter(
        ("top_k", "sampling_param_top_k"), _integer(0, _INT32_MAX), "an integer >= 0 (0: no limit, 1: greedy)", 1
    ),
    "top_p": Parameter(
        ("top_p", "sampling_param_top_p"), _number(0, 1, low_open=True), "a number > 0 and <= 1 (not a percentage)", 1.0
    ),
    "seed": Parameter(
        ("seed", "random_seed", "sampling_param_seed"), _integer(0, _UINT64_MAX), "an integer from 0 to 2^64-1", 0
    ),
    "repetition_penalty": Parameter(
        ("repetition_penalty",), _number(0, math.inf, low_open=True), "a finite number > 0 (1: none)", 1.0
    ),
    "presence_penalty": Parameter(
        ("presence_penalty", "sampling_param_presence_penalty"), _FINITE, "a finite number (0: none)", 0.0
    ),
    "frequency_penalty": Parameter(
        ("frequency_penalty", "sampling_param_frequency_penalty"), _FINITE, "a finite number (0: none)", 0.0
    ),
    "length_penalty": Parameter(("length_penalty",), _number(0, math.inf), "a finite number >= 0", 1.0),
    "min_tokens": Parameter(("min_tokens", "min_length"), _integer(0, _INT32_MAX), "an integer >= 0", 0),
    "end_id": Parameter(("end_id",), _integer(-1, _UINT64_MAX), "a token id, or -1 for none"),
    "pad_id": Parameter(("pad_id",), _integer(-1, _UINT64_MAX), "a token id, or -1 for none"),
    "beam_width": Parameter(
        ("beam_width",), _integer(1, _MAX_BEAM_WIDTH), f"an integer from 1 to {_MAX_BEAM_WIDTH}", 1
    ),
    "num_return_sequences": Parameter(
        ("num_return_sequences",), _integer(1, 1), "1; send several requests with different seeds instead", 1
    ),
    "exclude_input_in_output": Parameter(
        ("exclude_input_in_output", "sampling_param_exclude_input_from_output"), _flag, _FLAG_TEXT, True
    ),
    "return_log_probs": Parameter(("return_log_probs",), _flag, _FLAG_TEXT, False),
    "return_context_logits": Parameter(("return_context_logits",), _flag, _FLAG_TEXT, False),
    "return_generation_logits": Parameter(("return_generation_logits",), _flag, _FLAG_TEXT, False),
    "return_perf_metrics": Parameter(
        ("return_perf_metrics", "return_kv_cache_reuse_stats", "sampling_param_return_perf_metrics"),
        _flag,
        _FLAG_TEXT,
        False,
    ),
    "return_num_input_tokens": Parameter(("return_num_input_tokens",), _flag, _FLAG_TEXT, False),
    "return_num_output_tokens": Parameter(("return_num_output_tokens",), _flag, _FLAG_TEXT, False),
}


def validate(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, checked; None values are left out.

    Raises:
        InvalidRequest: an unknown name (with the nearest known one), or a value outside its range.
    """
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in PARAMETERS:
            raise unknown(name, PARAMETERS)
        if value is not None:
            values[name] = check(name, value)
    if values.get("min_tokens", 0) > values.get("max_tokens", _INT32_MAX):
        raise InvalidRequest(
            f"min_tokens={values['min_tokens']} is more than max_tokens={values['max_tokens']}",
            hint="Lower min_tokens or raise max_tokens.",
        )
    return values


def check(name: str, value: Any) -> Any:
    """Return the checked value of one parameter.

    Raises:
        InvalidRequest: it is outside the range.
    """
    checked = PARAMETERS[name].check(value)
    if checked is None:
        raise InvalidRequest(
            f"{name}={shown(value)} is not allowed", hint=f"{name} must be {PARAMETERS[name].allowed}."
        )
    return checked


def unknown(name: str, known: Iterable[str]) -> InvalidRequest:
    """Return the error for a name that nobody knows."""
    names = sorted(known)
    # A wrong prefix or suffix (runtime_top_k) is nearer to the right name than its spelling distance says.
    near = [each for each in names if each in name or name in each] or get_close_matches(name, names, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names)}."
    return InvalidRequest(f"unknown parameter '{name}'", hint=hint)


def settle(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values as they are sent, and what the caller should know about them.

    temperature 0 means greedy decoding to callers, but not to every server: it is sent as top_k 1.
    """
    settled = dict(values)
    if settled.get("temperature") == 0:
        settled = {name: value for name, value in values.items() if name not in ("temperature", "top_p")}
        return {**settled, "top_k": 1}, ["temperature=0 is sent as top_k=1 (greedy decoding)"]
    if "temperature" in settled and "top_p" not in settled and settled.get("top_k", 1) <= 1:
        return settled, ["temperature has no effect without top_k > 1 or top_p: the server decodes greedily by default"]
    return settled, []
