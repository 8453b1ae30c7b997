"""What has come of one answer so far: text, token arrivals, counts, the server's own numbers. Knows no transport."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from trtbuild_client.counts import count
from trtbuild_client.errors import ServerError
from trtbuild_client.records import CountedBy, FinishReason, Generation, RequestRecord, ServerStats, TokenEvent
from trtbuild_client.text import Assembler, StopCutter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trtbuild_client.wire import Reply

_TEXT = "text_output"
#: What the LLM API's model calls a measurement (all_models/llmapi/tensorrt_llm/config.pbtxt at 1.0).
_LLM_API_NAMES = {"kv_cache_reused_blocks": "kv_cache_reused_block"}
_SERVER_FIELDS = tuple(each.name for each in fields(ServerStats))


class Answer:
    """Collects the replies to one request.

    Args:
        values: the checked parameters of the request.
        assembler: makes text of the bytes of each reply.

    Attributes:
        events: arrivals of tokens.
        is_stopped: a stop word was found; everything after it is ignored.
        input_tokens: prompt tokens as the server counts them, None if it does not.
        server: the server's own measurements, None unless asked for and given.
    """

    def __init__(self, values: Mapping[str, Any], assembler: Assembler) -> None:
        self.events: list[TokenEvent] = []
        self.is_stopped = False
        self.input_tokens: int | None = None
        self.server: ServerStats | None = None
        self._values = values
        self._assembler = assembler
        self._cutter = self._new_cutter()
        self._texts: list[str] = []
        self._beams: tuple[str, ...] = ()
        self._log_probs: list[float] = []
        self._cum_log_prob: float | None = None
        self._outputs: Mapping[str, NDArray[np.generic]] = {}
        self._has_begun = False
        self._has_outputs = False
        self._has_counts = False
        self._has_uncounted = False

    @property
    def has_begun(self) -> bool:
        """Whether the server has sent anything."""
        return self._has_begun

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def counted_by(self) -> CountedBy:
        """Who counted the tokens in `events`; where no output came at all, that there are none is no lower bound."""
        is_counted = self._has_counts and not self._has_uncounted
        return "server" if is_counted or not self._has_outputs else "chunks"

    def take(self, reply: Reply, at_ns: int) -> str:
        """Add one reply that arrived at `at_ns`; return the text that is new and certain.

        `num_output_tokens` is the number of tokens in this reply. Without it, a reply with text counts as one token. A
        number after replies without one is that of the whole answer: some servers count in the last reply only.

        Raises:
            ServerError: an output is not what it should be; the message names it and its value.
        """
        self._has_begun = True
        if not reply.outputs or self.is_stopped:
            return ""
        self._has_outputs = True
        self._outputs = {name: array for name, array in reply.outputs.items() if name != _TEXT}
        pieces: list[bytes] = list(reply.outputs[_TEXT].ravel()) if _TEXT in reply.outputs else []
        if pieces and not isinstance(pieces[0], bytes):
            raise _odd(_TEXT, pieces[0], "no text")
        text = self._assembler.push(pieces[0]) if pieces else ""
        self._count(text, at_ns)
        if len(pieces) > 1:
            self._beams = tuple(self._new_cutter().push(piece.decode("utf-8", "replace"))[0] for piece in pieces)
        self._take_extras()
        return self._add(text)

    def flush(self) -> str:
        """Return the text that was held back, after the last reply."""
        if self.is_stopped:
            return ""
        rest = self._add(self._assembler.flush())
        if not self.is_stopped:
            held = self._cutter.flush()
            self._texts.append(held)
            rest += held
        return rest

    def generation(self, record: RequestRecord, warnings: tuple[str, ...]) -> Generation:
        """Return the answer as it is now."""
        wants_log_probs = bool(self._values.get("return_log_probs"))
        return Generation(
            text=self.text,
            record=record,
            finish_reason=self._finish_reason(record),
            beams=self._beams or (self.text,),
            log_probs=tuple(self._log_probs) if wants_log_probs else None,
            cum_log_prob=self._cum_log_prob,
            outputs=self._outputs,
            warnings=(*warnings, *self._doubts(record, wants_log_probs=wants_log_probs)),
        )

    def _new_cutter(self) -> StopCutter:
        return StopCutter(self._values.get("stop_words", ()))

    def _count(self, text: str, at_ns: int) -> None:
        said = self._counted("num_output_tokens")
        tokens = int(bool(text)) if said is None else said
        if said is not None and self._has_uncounted:
            tokens -= sum(event.tokens for event in self.events)
            self._has_uncounted = False
        self._has_counts |= said is not None
        if tokens > 0:
            self.events.append(TokenEvent(at_ns, tokens))
            self._has_uncounted |= said is None

    def _take_extras(self) -> None:
        input_tokens = self._counted("num_input_tokens")
        if input_tokens is not None:
            self.input_tokens = input_tokens
        if self._values.get("return_log_probs"):
            self._log_probs += self._floats("output_log_probs")
            self._cum_log_prob = next(iter(self._floats("cum_log_probs")), None)
        if self._values.get("return_perf_metrics"):
            found: dict[str, Any] = {
                name: value for name in _SERVER_FIELDS if (value := self._measurement(name)) is not None
            }
            self.server = ServerStats(**found) if found else self.server

    def _scalar(self, name: str) -> Any:
        """Return the only value of an output, None when the reply lacks it; 0 is a value."""
        array = self._outputs.get(name)
        if array is None or array.size == 0:
            return None
        first = array.ravel()[0]
        return first if isinstance(first, bytes) else first.item()

    def _counted(self, name: str) -> int | None:
        """Return an output that counts, None when the reply lacks it."""
        value = self._scalar(name)
        return None if value is None else count(name, value)

    def _floats(self, name: str) -> list[float]:
        """Return the last dimension of an output, of the first beam; nothing when the reply lacks it."""
        array = self._outputs.get(name)
        if array is None or array.size == 0:
            return []
        if array.dtype.kind not in "fiu":
            raise _odd(name, array.ravel()[0], "no number")
        row: list[float] = array.reshape(-1, array.shape[-1] if array.ndim else 1)[0].tolist()
        return row

    def _measurement(self, name: str) -> int | float | None:
        """Return one of the server's own numbers; the LLM API's model sends them as texts, and calls one differently."""
        value = self._scalar(name)
        if value is None and name in _LLM_API_NAMES:
            value = self._scalar(_LLM_API_NAMES[name])
        if not isinstance(value, bytes):
            return value  # type: ignore[no-any-return]  # numpy's item() is int or float here
        try:
            number = float(value)
            return number if name == "acceptance_rate" else int(value)
        except ValueError:  # "None": it did not measure this
            return None

    def _add(self, text: str) -> str:
        certain, self.is_stopped = self._cutter.push(text)
        self._texts.append(certain)
        return certain

    def _finish_reason(self, record: RequestRecord) -> FinishReason | None:
        if record.outcome != "ok":
            return "cancelled" if record.outcome == "cancelled" else None
        if self.is_stopped:
            return "stop"
        said = self._scalar("finish_reason")
        if said in (b"length", b"stop"):
            return "length" if said == b"length" else "stop"
        if record.counted_by != "server" or self._values.get("beam_width", 1) > 1:
            return None
        return "length" if record.output_tokens >= record.max_tokens else "stop"

    def _doubts(self, record: RequestRecord, *, wants_log_probs: bool) -> list[str]:
        doubts = []
        doubt = self._assembler.doubt()
        if doubt is not None:
            doubts.append(doubt)
        if wants_log_probs and record.counted_by == "server" and len(self._log_probs) != record.output_tokens:
            doubts.append(f"the server sent {len(self._log_probs)} log probabilities for {record.output_tokens} tokens")
        if self._log_probs and not any(self._log_probs):
            doubts.append("all log probabilities are 0: greedy decoding normalizes them away")
        return doubts


def _odd(name: str, value: object, what: str) -> ServerError:
    return ServerError(
        f"output '{name}' is {reprlib.repr(value)}, {what}", hint="Does the model follow TensorRT-LLM's outputs?"
    )
