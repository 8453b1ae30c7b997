"""Bodies of requests: what may be in them, and what they ask for.

Ranges are those of OpenAI's API reference (https://platform.openai.com/docs/api-reference/chat/create, .../completions/create);
`top_k`, `min_tokens` and `repetition_penalty` are additions for what TensorRT-LLM has besides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from trtbuild.gateway import messages
from trtbuild.gateway.errors import refused, unsupported
from trtbuild.gateway.fields import settle
from trtbuild.gateway.messages import Strict

#: Most stop texts of one request; OpenAI allows 4.
_MAX_STOPS = 16
_MAX_PROMPTS = 64
#: What a completion gets that names no length (OpenAI's API reference).
COMPLETION_MAX_TOKENS = 16
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _StreamOptions(Strict, frozen=True, kw_only=True):
    include_usage: bool | None = None
    #: Padding against guessing lengths from encrypted traffic; there is none here, which is what false asks for.
    include_obfuscation: bool | None = None


class _Schema(Strict, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] = msgspec.field(name="schema")
    strict: bool | None = None


class _Format(Strict, frozen=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Common(Strict, frozen=True, kw_only=True):
    model: _Text
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    max_tokens: _Count | None = None
    stop: _Text | Annotated[list[_Text], Meta(max_length=_MAX_STOPS)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None


class _Chat(_Common, frozen=True, kw_only=True):
    messages: Annotated[list[messages.Message], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: _Format | None = None


class _Completion(_Common, frozen=True, kw_only=True):
    prompt: _Text | Annotated[list[_Text], Meta(min_length=1, max_length=_MAX_PROMPTS)]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None


@dataclass(frozen=True, slots=True)
class Guide:
    """What the answer must be, as TensorRT-LLM's guided decoding takes it.

    Attributes:
        kind: guided_decoding_guide_type; "json" needs no text (Triton model repository specification, section 8).
    """

    kind: Literal["json", "json_schema"]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request asks for, whichever endpoint it came to.

    Attributes:
        prompts: texts to continue; empty for a chat.
        messages: of a chat, role and content each.
        sampling: parameters by the client's names, as far as they were given.
    """

    model: str
    prompts: tuple[str, ...] = ()
    messages: tuple[Mapping[str, str], ...] = ()
    n: int = 1
    is_stream: bool = False
    wants_usage: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    wants_logprobs: bool = False
    guide: Guide | None = None

    @property
    def is_chat(self) -> bool:
        """Whether it came as a chat."""
        return bool(self.messages)

    @property
    def answers(self) -> int:
        """How many answers are to be made."""
        return self.n * max(len(self.prompts), 1)


def chat(body: Mapping[str, Any]) -> Ask:
    """Return what a chat asks for.

    Raises:
        ApiError: 400, with the field at fault.
    """
    parsed = _parse(_Chat, {**body, "messages": messages.without_nulls(body.get("messages"))})
    if parsed.max_tokens is not None and parsed.max_completion_tokens not in (None, parsed.max_tokens):
        raise refused("max_tokens and max_completion_tokens differ; give one", param="max_completion_tokens")
    if parsed.top_logprobs is not None and not parsed.logprobs:
        raise refused("top_logprobs needs logprobs: true", param="top_logprobs")
    _no_alternatives(parsed.top_logprobs, "top_logprobs")
    conversation = tuple(messages.plain(each) for each in parsed.messages)
    length = parsed.max_completion_tokens or parsed.max_tokens
    return _ask(
        parsed, length, messages=conversation, wants_logprobs=parsed.logprobs, guide=_guide(parsed.response_format)
    )


def completion(body: Mapping[str, Any]) -> Ask:
    """Return what a completion asks for.

    Raises:
        ApiError: 400, with the field at fault.
    """
    parsed = _parse(_Completion, body)
    _no_alternatives(parsed.logprobs, "logprobs")
    prompts = (parsed.prompt,) if isinstance(parsed.prompt, str) else tuple(parsed.prompt)
    length = parsed.max_tokens or COMPLETION_MAX_TOKENS
    return _ask(parsed, length, prompts=prompts, wants_logprobs=parsed.logprobs is not None)


def _ask(parsed: _Common, max_tokens: int | None, **more: Any) -> Ask:
    if parsed.stream_options is not None and not parsed.stream:
        raise refused("stream_options needs stream: true", param="stream_options")
    stops = (parsed.stop,) if isinstance(parsed.stop, str) else tuple(parsed.stop or ())
    ask = Ask(
        model=parsed.model,
        n=parsed.n,
        is_stream=parsed.stream,
        wants_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        max_tokens=max_tokens,
        stop=stops,
        seed=parsed.seed,
        sampling={name: value for name in _SAMPLING if (value := getattr(parsed, name)) is not None},
        **more,
    )
    _check_text(ask)
    return ask


Model = TypeVar("Model", bound=Struct)
#: What msgspec says of a value: the fault, and its place, e.g. $.stop[0].
_FAULT = re.compile(r"(?P<fault>.*?)(?: - at `\$(?P<place>.*)`)?", re.DOTALL)
#: The key that a fault of a whole object is about.
_KEY = re.compile(r"^Object (?:contains unknown|missing required) field `(.*)`$")


def _parse(kind: type[Model], body: Mapping[str, Any]) -> Model:
    settled = settle(body, kind.__struct_encode_fields__)
    try:
        return msgspec.convert(settled, kind)
    except msgspec.ValidationError as error:
        found = _FAULT.fullmatch(str(error))
        assert found is not None  # the place is optional, the fault is anything
        place = re.sub(r"\[(\d+)\]", r".\1", found["place"] or "") + "".join(
            f".{name}" for name in _KEY.findall(found["fault"])
        )
        where = place.lstrip(".")[:128]
        raise refused(f"'{where}': {found['fault']}" if where else found["fault"], param=where or None) from None


def _no_alternatives(number: int | None, name: str) -> None:
    if number:
        raise unsupported(
            f"'{name}' must be 0: the server gives the log probability of the chosen tokens only", param=name
        )


def _guide(wanted: _Format | None) -> Guide | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Guide("json")
    if wanted.json_schema is None:
        raise refused("response_format of type json_schema needs 'json_schema'", param="response_format.json_schema")
    return Guide("json_schema", json.dumps(wanted.json_schema.schema_, ensure_ascii=False))


def _check_text(ask: Ask) -> None:
    """Refuse what is no Unicode text: JSON can carry half a character (a lone surrogate)."""
    guides = (ask.guide.text,) if ask.guide is not None else ()
    fields = {
        "prompt": ask.prompts,
        "messages": tuple(text for message in ask.messages for text in message.values()),
        "stop": ask.stop,
        "response_format": guides,
    }
    for name, texts in fields.items():
        for text in texts:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise refused(f"'{name}' holds a lone surrogate at character {error.start}", param=name) from None
