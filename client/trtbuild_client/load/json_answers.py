"""JSON that servers answer with, held to its types. What is read of it is declared here; all else is skipped."""

from __future__ import annotations

import json
import re
import reprlib
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from trtbuild_client.counts import MOST
from trtbuild_client.errors import ServerError

#: Of what came, at most so much is quoted.
_QUOTED_BYTES = 200
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


class Function(msgspec.Struct):
    """The function of a tool call (platform.openai.com/docs/api-reference/chat/streaming, as all below up to `Completion`)."""

    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """One of `tool_calls`."""

    function: Function | None = None


class Part(msgspec.Struct):
    """`delta` of a chunk, `message` of a whole completion; reasoning has one name with vLLM and SGLang, another with OpenRouter."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """One of `choices`; `text` is that of /v1/completions."""

    delta: Part | None = None
    message: Part | None = None
    text: str | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct):
    """Of `usage`: draft tokens, as OpenAI's predicted outputs count them."""

    accepted_prediction_tokens: _Count | None = None
    rejected_prediction_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """Counts of a whole answer, or of it so far."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    completion_tokens_details: Details | None = None


class Completion(msgspec.Struct):
    """A chunk, or a whole completion; or an error: {"error": ...}, or its fields at the top with `object` "error" (vLLM, trtllm-serve)."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None


class Generated(msgspec.Struct):
    """A response of Triton's generate or generate_stream (docs/protocol/extension_generate.md); statistics of the LLM API's model are texts."""

    text_output: str | list[str] | None = None
    num_output_tokens: _Count | str | None = None
    num_input_tokens: _Count | str | None = None
    kv_cache_reused_blocks: _Count | str | None = None
    kv_cache_alloc_total_blocks: _Count | str | None = None
    total_draft_tokens: _Count | str | None = None
    total_accepted_draft_tokens: _Count | str | None = None
    error: Any = None
    code: Any = None


Kind = TypeVar("Kind", bound=msgspec.Struct)


class Reader(Generic[Kind]):
    """Reads answers of one kind."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, raw: bytes) -> Kind:
        """Return what is declared of a JSON object. Bytes that are no UTF-8 come as surrogates: Triton writes those of a text as they are.

        Raises:
            ServerError: it is none, or a field has another type; the message names it and its value, or quotes 200 bytes.
        """
        try:
            return self._decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return self._read_loosely(raw)

    def _read_loosely(self, raw: bytes) -> Kind:
        """Read what is no UTF-8, lone surrogates, and NaN too; or say what is wrong."""
        try:
            document = json.loads(raw.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            raise _wrong(f"an event that is no JSON ({error}): {quoted(raw)}") from error
        if not isinstance(document, dict):
            raise _wrong(f"an event that is no JSON object: {quoted(raw)}")
        try:
            return msgspec.convert(document, self._kind)
        except msgspec.ValidationError as error:
            expected, _, path = str(error).replace("`", "").partition(" - at $")
            value, name = _found(document, path), path.removeprefix(".")
            raise _wrong(f"an event whose {name} is {reprlib.repr(value)}: {expected.lower()}") from error


def error_text(said: Any, code: Any, raw: bytes) -> str:
    """Return an error as a server says it, with its code: `said` is a text, or an object with `message`; the event itself where it is neither."""
    if isinstance(said, dict):
        said, code = said.get("message"), said.get("code", code)
    text = said[:_QUOTED_BYTES] if isinstance(said, str) and said else quoted(raw)
    return f"{text} (code {code})" if isinstance(code, int) or (isinstance(code, str) and len(code) < 40) else text


def quoted(raw: bytes) -> str:
    """Return the beginning of what came."""
    return raw[:_QUOTED_BYTES].decode("utf-8", "replace")


def _found(document: Any, path: str) -> Any:
    for name, index in _STEP.findall(path):
        document = document[name] if name else document[int(index)]
    return document


def _wrong(text: str) -> ServerError:
    return ServerError(text, hint="Is this the API that --api names?")
