"""One request on its way: reads replies, makes text and a record of them, and gives everything back when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from trtbuild_client.answer import Answer
from trtbuild_client.deadlines import Watchdog
from trtbuild_client.errors import Cancelled, ClientError, DeadlineExceeded, InvalidRequest, Phase
from trtbuild_client.records import Generation, Outcome, RequestRecord, StreamChunk
from trtbuild_client.text import ASSEMBLERS, TextMode

if TYPE_CHECKING:
    from trtbuild_client.wire import Call


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is to be read.

    Attributes:
        values: the checked parameters it was sent with.
        is_streaming: whether tokens were asked for as they come.
        first_token_s: seconds until the first token, None for no limit.
        between_tokens_s: seconds from one token to the next, None for no limit.
        warnings: found while the request was made.
    """

    request_id: str
    model: str
    address: str
    values: dict[str, Any]
    text_mode: TextMode
    is_streaming: bool
    first_token_s: float | None
    between_tokens_s: float | None
    warnings: tuple[str, ...]


class Stream:
    """The pieces of one answer, as an iterator that can be read once.

    The request is sent when reading begins. Leaving the loop, `cancel()`, the end of a `with` block, an error and a stop
    word all cancel what is left on the server. After the end, `generation` and `record` say what happened.

    Args:
        plan: how to read.
        start: sends the request of this stream.
        abandon: tells the server to stop working on a request id; called at most once.
        on_end: called once when the request is over.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        start: Callable[[Stream], Call],
        abandon: Callable[[str], None],
        on_end: Callable[[Stream], None],
    ) -> None:
        self._plan = plan
        self._start = start
        self._abandon = abandon
        self._on_end = on_end
        self._call: Call | None = None
        self._reader: ReferenceType[Generator[StreamChunk, None, None]] | None = None
        self._is_cancelled = False
        self._abandoned = threading.Lock()
        self._generation: Generation | None = None

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self._plan.request_id

    @property
    def generation(self) -> Generation:
        """The answer, or as much of it as came.

        Raises:
            InvalidRequest: the stream has not been read to its end.
        """
        if self._generation is None:
            raise InvalidRequest("the answer is not there yet", hint="Read the stream to its end, or leave its loop.")
        return self._generation

    def cancel(self) -> None:
        """Give the request up, from any thread; the reading loop then ends and `finish_reason` is "cancelled"."""
        self._is_cancelled = True
        if self._call is not None and self._generation is None:
            self._call.cancel()
            self._abandon_once()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reader = self._reader() if self._reader is not None else None
        if reader is not None:
            reader.close()

    def __iter__(self) -> Iterator[StreamChunk]:
        if self._reader is not None:
            raise InvalidRequest("a stream can be read only once", hint="Its answer is in `generation`.")
        reader = self._read()
        self._reader = ref(reader)  # no more than a weak one: the end of the loop must end the generator
        return reader

    def _read(self) -> Generator[StreamChunk, None, None]:
        answer = Answer(self._plan.values, ASSEMBLERS[self._plan.text_mode]())
        outcome: Outcome = "cancelled"  # what it stays when the reader leaves
        failure: ClientError | None = None
        sent_ns = time.perf_counter_ns()
        try:
            if not self._is_cancelled:
                self._call = self._start(self)
                yield from self._pieces(self._call, answer)
                outcome = "ok"
        except ClientError as error:
            if not (isinstance(error, Cancelled) and self._is_cancelled):
                outcome, failure = "failed", error
                error.partial_text = answer.text
                raise
        finally:
            end_ns = time.perf_counter_ns()
            self._release(answer, outcome, failure)
            self._generation = self._conclude(answer, outcome, failure, sent_ns=sent_ns, end_ns=end_ns)
            self._on_end(self)

    def _pieces(self, call: Call, answer: Answer) -> Iterator[StreamChunk]:
        """Yield new text until the final flag, the end of the RPC, or a stop word."""
        plan = self._plan
        if self._is_cancelled:  # by another thread, while the request was being sent
            call.cancel()
        index = 0
        watchdog = Watchdog(call.cancel, first_token_s=plan.first_token_s, between_tokens_s=plan.between_tokens_s)
        with watchdog:
            try:
                for reply in call:
                    at_ns = time.perf_counter_ns()
                    seen = len(answer.events)
                    text = answer.take(reply, at_ns)
                    if len(answer.events) > seen:
                        watchdog.token_arrived()
                    if text:
                        watchdog.pause()  # the reader's time is not the server's
                        yield StreamChunk(text=text, index=index, at_ns=at_ns)
                        watchdog.token_arrived()
                        index += 1
                    if reply.is_final or (answer.is_stopped and plan.is_streaming):
                        break
            except Cancelled as error:
                if watchdog.expired is None:
                    raise
                raise self._late(watchdog.expired) from error
        rest = answer.flush()
        if rest:
            yield StreamChunk(text=rest, index=index, at_ns=time.perf_counter_ns())

    def _late(self, phase: Phase) -> DeadlineExceeded:
        plan = self._plan
        limit_s = plan.first_token_s if phase == "first_token" else plan.between_tokens_s
        assert limit_s is not None
        what = "first" if phase == "first_token" else "further"
        return DeadlineExceeded(
            f"no {what} token from model '{plan.model}' on {plan.address} within {limit_s:g} s",
            phase=phase,
            timeout_s=limit_s,
            hint=f"Raise {phase}_timeout_s, or look at the server's load.",
        )

    def _release(self, answer: Answer, outcome: Outcome, failure: ClientError | None) -> None:
        """Close the call; tell the server to stop where it may still be working."""
        if self._call is None:
            return
        if outcome == "ok" and not (answer.is_stopped and self._plan.is_streaming):
            self._call.finish()
            return
        self._call.cancel()
        if failure is None or isinstance(failure, DeadlineExceeded):
            self._abandon_once()

    def _abandon_once(self) -> None:
        if self._abandoned.acquire(blocking=False):
            self._abandon(self.request_id)

    def _conclude(
        self, answer: Answer, outcome: Outcome, failure: ClientError | None, *, sent_ns: int, end_ns: int
    ) -> Generation:
        plan = self._plan
        record = RequestRecord(
            request_id=plan.request_id,
            model=plan.model,
            streamed=plan.is_streaming,
            max_tokens=plan.values["max_tokens"],
            sent_ns=sent_ns,
            end_ns=end_ns,
            events=tuple(answer.events),
            outcome=outcome,
            counted_by=answer.counted_by,
            input_tokens=answer.input_tokens,
            error=None if failure is None else type(failure).__name__,
            error_message=None if failure is None else failure.message,
            server=answer.server,
        )
        return answer.generation(record, plan.warnings)
