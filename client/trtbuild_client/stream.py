"""One request on its way: reads replies, makes text and a record of them, and gives everything back when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from trtbuild_client.answer import Answer
from trtbuild_client.deadlines import Watchdog
from trtbuild_client.errors import Cancelled, ClientError, DeadlineExceeded, InvalidRequest
from trtbuild_client.plan import Plan
from trtbuild_client.records import Generation, Outcome, StreamChunk

if TYPE_CHECKING:
    from trtbuild_client.wire import Call


class Stream:
    """The pieces of one answer, as an iterator that can be read once.

    The request is sent when reading begins. Leaving the loop, `cancel()`, the end of a `with` block, an error and a stop
    word all cancel what is left on the server. After the end, `generation` and `record` say what happened.

    Args:
        plan: how to read.
        start: sends the request of this stream; gets the seconds it may already have taken.
        abandon: tells the server to stop working on a request id; called at most once.
        on_end: called once when the request is over.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        start: Callable[[Stream, float], Call],
        abandon: Callable[[str], None],
        on_end: Callable[[Stream], None],
    ) -> None:
        self._plan = plan
        self._start = start
        self._abandon = abandon
        self._on_end = on_end
        self._call: Call | None = None
        self._reader: ReferenceType[Generator[StreamChunk, None, None]] | None = None
        self._cancelled = threading.Event()
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
        self._cancelled.set()
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
        answer = self._plan.answer()
        outcome: Outcome = "cancelled"  # what it stays when the reader leaves
        failure: ClientError | None = None
        sent_ns = time.perf_counter_ns()
        try:
            attempt = 0
            while not self._cancelled.is_set():
                try:
                    self._call = self._start(self, (time.perf_counter_ns() - sent_ns) / 1e9)
                    yield from self._pieces(self._call, answer)
                    outcome = "ok"
                    break
                except ClientError as error:
                    if answer.has_begun or not self._plan.retry.allows(error, attempt):
                        raise
                    self._cancelled.wait(self._plan.retry.pause_s(attempt))
                    attempt += 1
        except ClientError as error:
            if not (isinstance(error, Cancelled) and self._cancelled.is_set()):
                outcome, failure = "failed", self._plan.lost(error, answer)
                failure.partial_text = answer.text
                raise failure from failure.__cause__
        finally:
            end_ns = time.perf_counter_ns()
            self._release(answer, outcome, failure)
            self._generation = self._plan.conclude(answer, outcome, failure, sent_ns=sent_ns, end_ns=end_ns)
            self._on_end(self)

    def _pieces(self, call: Call, answer: Answer) -> Iterator[StreamChunk]:
        """Yield new text until the final flag, the end of the RPC, or a stop word."""
        plan, limits = self._plan, self._plan.limits
        if self._cancelled.is_set():  # by another thread, while the request was being sent
            call.cancel()
        index = 0
        watchdog = Watchdog(call.cancel, first_token_s=limits.first_token_s, between_tokens_s=limits.between_tokens_s)
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
                raise plan.late(watchdog.expired) from error
        rest = answer.flush()
        if rest:
            yield StreamChunk(text=rest, index=index, at_ns=time.perf_counter_ns())

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
