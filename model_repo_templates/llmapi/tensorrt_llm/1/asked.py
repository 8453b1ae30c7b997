"""What a request asks for: its tensors, checked, as arguments of the LLM API. Knows no server and no engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serving import RequestError, array, texts

_PREFIX = "sampling_param_"
#: What a sampling parameter must be, in words, and the test. Ranges: tensorrt_llm/sampling_params.py and the executor's SamplingConfig.
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "best_of": ("1 or more", lambda value: value >= 1),
    "top_k": ("0 or more", lambda value: value >= 0),
    "top_p": ("more than 0, at most 1", lambda value: 0 < value <= 1),
    "temperature": ("0 or more", lambda value: value >= 0),
    "max_tokens": ("1 or more", lambda value: value >= 1),
    "frequency_penalty": ("a finite number", lambda value: True),
    "presence_penalty": ("a finite number", lambda value: True),
    "seed": ("0 or more", lambda value: value >= 0),
}
_LORA = ("lora_id", "lora_name", "lora_path")
_LORA_SOURCES = ("hf", "nemo")


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        prompt: the text to continue.
        sampling: keyword arguments of SamplingParams.
        is_streaming: whether pieces are wanted.
        includes_prompt: whether the answer begins with the prompt.
        wants: outputs to return besides the text.
        lora: keyword arguments of LoRARequest, None without.
    """

    prompt: str
    sampling: dict[str, Any]
    is_streaming: bool
    includes_prompt: bool
    wants: frozenset[str]
    lora: dict[str, Any] | None = None


@dataclass(frozen=True)
class Defaults:
    """What holds for every request.

    Attributes:
        stop_words: they end every answer.
        add_special_tokens, skip_special_tokens: how text becomes tokens, and tokens text.
    """

    stop_words: list[str] = field(default_factory=list)
    add_special_tokens: bool = True
    skip_special_tokens: bool = True


def is_stop(request: Any) -> bool:
    """Return whether the request only asks to end another one."""
    return bool(_scalar(request, "stop", False))


def read(request: Any, defaults: Defaults, *, is_decoupled: bool) -> Asked:
    """Return what a request asks for.

    Raises:
        RequestError: a value is missing or out of range, or more is asked for than the model gives.
    """
    prompts = texts(_required(request, "text_input"), "text_input")
    if len(prompts) != 1:
        raise RequestError(f"text_input has {len(prompts)} elements, need 1: send a request for each prompt")
    is_streaming = bool(_scalar(request, "streaming", False))
    if is_streaming and not is_decoupled:
        raise RequestError("streaming needs a decoupled model: render the repository with serving.streaming: true")
    excludes = _scalar(request, f"{_PREFIX}exclude_input_from_output", None)
    flags = {
        "finish_reason": "return_finish_reason",
        "stop_reason": "return_stop_reason",
        "cumulative_logprob": "return_cumulative_logprob",
        "perf_metrics": f"{_PREFIX}return_perf_metrics",
    }
    wants = frozenset(output for output, flag in flags.items() if _scalar(request, flag, False))
    return Asked(
        prompt=prompts[0],
        sampling=_sampling(request, defaults, wants),
        is_streaming=is_streaming,
        # As the stock model does when nothing is said; what is said holds for streams, too.
        includes_prompt=not excludes if excludes is not None else not is_streaming,
        wants=wants,
        lora=_lora(request),
    )


def _sampling(request: Any, defaults: Defaults, wants: frozenset[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, (allowed, is_allowed) in _RANGES.items():
        value = _scalar(request, f"{_PREFIX}{name}", None)
        if value is None:
            continue
        if not math.isfinite(value) or not is_allowed(value):
            raise RequestError(f"{_PREFIX}{name} is {value}, need {allowed}")
        given[name] = value
    words = array(request, f"{_PREFIX}stop")
    stop = [*defaults.stop_words, *(texts(words, f"{_PREFIX}stop") if words is not None else [])]
    if stop := [word for word in dict.fromkeys(stop) if word]:
        given["stop"] = stop
    if "perf_metrics" in wants:
        given["return_perf_metrics"] = True
    if "cumulative_logprob" in wants:
        given["logprobs"] = 1
    if not defaults.add_special_tokens:
        given["add_special_tokens"] = False
    if not defaults.skip_special_tokens:
        given["skip_special_tokens"] = False
    return given


def _lora(request: Any) -> dict[str, Any] | None:
    tensors = {name: array(request, name) for name in (*_LORA, "lora_ckpt_source")}
    given = {name: values for name, values in tensors.items() if values is not None}
    there = [name for name in _LORA if name in given]
    if not there:
        return None
    if len(there) < len(_LORA):
        raise RequestError(f"{', '.join(there)} without the others: {', '.join(_LORA)} go together")
    source = _text(given["lora_ckpt_source"], "lora_ckpt_source") if "lora_ckpt_source" in given else "hf"
    if source not in _LORA_SOURCES:
        raise RequestError(f"lora_ckpt_source is '{source}', need one of {', '.join(_LORA_SOURCES)}")
    return {
        "lora_name": _text(given["lora_name"], "lora_name"),
        "lora_int_id": int(given["lora_id"].reshape(-1)[0]),
        "lora_path": _text(given["lora_path"], "lora_path"),
        "lora_ckpt_source": source,
    }


def _required(request: Any, name: str) -> Any:
    values = array(request, name)
    if values is None:
        raise RequestError(f"{name} is missing")
    return values


def _text(values: Any, name: str) -> str:
    found = texts(values, name)
    if len(found) != 1:
        raise RequestError(f"{name} has {len(found)} elements, need 1")
    return found[0]


def _scalar(request: Any, name: str, default: Any) -> Any:
    values = array(request, name)
    if values is None:
        return default
    if values.size != 1:
        raise RequestError(f"{name} has {values.size} elements, need 1")
    return values.reshape(-1)[0].item()
