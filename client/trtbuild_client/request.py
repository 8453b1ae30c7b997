"""From validated options to the request a particular model wants: names, data types, batch dimension, neutral values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild_client.errors import InvalidRequest, StreamingUnsupported
from trtbuild_client.parameters import PARAMETERS, check, unknown
from trtbuild_client.tensors import encode
from trtbuild_client.wire import ModelInfo, Tensor

_PROMPT = "text_input"
#: What servers call the input that asks for tokens as they come.
_STREAM_NAMES = ("stream", "streaming")
#: Sent to servers that know them, unless the caller said otherwise: they change no text.
_WANTED = ("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason")
#: Asks whole answers not to begin with the prompt.
_NO_ECHO = ("exclude_input_in_output", "sampling_param_exclude_input_from_output")
#: Works without the server's help: the client cuts stop words itself.
_DISPENSABLE = frozenset({"stop_words"})


def build(
    info: ModelInfo, prompt: str, values: Mapping[str, Any], tensors: Mapping[str, Any], *, is_streaming: bool
) -> tuple[Tensor, ...]:
    """Return the tensors of one request, in the order of the model's inputs.

    Args:
        info: what the server says about the model.
        prompt: text to continue.
        values: result of `parameters.validate`.
        tensors: further inputs of this model by the server's own names.
        is_streaming: ask for tokens as they come.

    Raises:
        StreamingUnsupported: streaming from a model that is not decoupled.
        InvalidRequest: the model lacks an input that was given, or needs one that was not.
    """
    if _PROMPT not in info.inputs:
        raise InvalidRequest(
            f"model '{info.name}' has no input '{_PROMPT}'; its inputs: {', '.join(sorted(info.inputs)) or 'none'}",
            hint="Ask a model that takes text: ensemble, tensorrt_llm_bls, or the LLM API's model.",
        )
    if is_streaming and not info.is_decoupled:
        raise StreamingUnsupported(
            f"model '{info.name}' is not decoupled, so it cannot stream",
            hint="Ask for the whole answer (generate, --no-stream), or deploy the model decoupled.",
        )
    if is_streaming and values.get("beam_width", 1) > 1:
        raise InvalidRequest(
            f"beam_width={values['beam_width']} cannot be streamed",
            hint="Use beam_width 1, or ask for the whole answer.",
        )
    given: dict[str, Any] = {_PROMPT: prompt}
    for name, value in values.items():
        wire_name = wire_name_of(info, name)
        if wire_name is not None:
            given[wire_name] = value
        elif name not in _DISPENSABLE and value is not False:
            raise InvalidRequest(
                f"model '{info.name}' has no input '{name}'", hint=f"Its inputs: {', '.join(sorted(info.inputs))}."
            )
    for name, value in tensors.items():
        if name not in info.inputs:
            raise unknown(name, {*info.inputs, *PARAMETERS})
        if name in given:
            raise InvalidRequest(f"input '{name}' is given twice", hint="Once as a parameter and once as a tensor.")
        given[name] = _checked(name, value)
    for name, value in _defaults(info, is_streaming=is_streaming).items():
        given.setdefault(name, value)
    # An empty list of words is the same as none, and a tensor without elements is refused by old servers.
    given = {name: value for name, value in given.items() if not (isinstance(value, tuple) and not value)}
    _fill_required(info, given)
    return tuple(
        encode(name, given[name], spec, is_batched=info.is_batched)
        for name, spec in info.inputs.items()
        if name in given
    )


def wire_name_of(info: ModelInfo, parameter: str) -> str | None:
    """Return what this model calls a parameter, None when it has no such input."""
    return next((name for name in PARAMETERS[parameter].names if name in info.inputs), None)


def _checked(wire_name: str, value: Any) -> Any:
    """Hold a tensor that is a known parameter under the server's own name to the range of that parameter."""
    for name, parameter in PARAMETERS.items():
        if wire_name in parameter.names:
            return check(name, value)
    return value


def _defaults(info: ModelInfo, *, is_streaming: bool) -> dict[str, Any]:
    wanted: dict[str, Any] = {name: True for name in _WANTED if name in info.inputs}
    wanted.update({name: is_streaming for name in _STREAM_NAMES if name in info.inputs})
    # Only whole answers can repeat the prompt; without this a server may do so by default.
    if not is_streaming:
        wanted.update({name: True for name in _NO_ECHO if name in info.inputs})
    return wanted


def _fill_required(info: ModelInfo, given: dict[str, Any]) -> None:
    """Add neutral values for inputs that this model insists on."""
    neutral = {name: each.neutral for each in PARAMETERS.values() for name in each.names}
    for name, spec in info.inputs.items():
        if name in given or spec.is_optional:
            continue
        if neutral.get(name) is None:
            raise InvalidRequest(
                f"model '{info.name}' needs input '{name}' ({spec.dtype} {list(spec.dims)})",
                hint=f"Pass it, for instance with tensors={{'{name}': ...}} or --param {name}=VALUE.",
            )
        given[name] = neutral[name]


def stop_tensors(info: ModelInfo) -> tuple[Tensor, ...]:
    """Return the tensors that ask the token-level model to stop the request of the same id.

    It insists on a prompt and a length even then.
    """
    given = {"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "stop": True}
    return tuple(
        encode(name, given[name], spec, is_batched=info.is_batched)
        for name, spec in info.inputs.items()
        if name in given
    )
