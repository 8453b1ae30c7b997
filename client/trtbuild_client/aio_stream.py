"""One request on its way in an event loop; `stream` is the same for threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from trtbuild_client.answer import Answer
from trtbuild_client.deadlines import less
from trtbuild_client.errors import Cancelled, ClientError, DeadlineExceeded, InvalidRequest, Phase
from trtbuild_client.plan import Plan
from trtbuild_client.records import Generation, Outcome, StreamChunk

if TYPE_CHECKING:
    from trtbuild_client.aio import AsyncClient
    from trtbuild_client.wire import AsyncCall, WireRequest


class AsyncStream:
    """The pieces of one answer, as an asynchronous iterator that can be read once.

    The request is made and sent when reading begins. `cancel()`, an error, a stop word, the end of an `async with` block and the
    cancellation of the reading task all cancel what is left on the server. Whoever leaves the loop early uses `async
    with`, since Python closes an abandoned asynchronous generator at some later time.

    Args:
        client: sends, and keeps the list of what runs.
        ready: makes the request.
    """

    def __init__(self, client: AsyncClient, ready: Callable[[], Awaitable[tuple[Plan, WireRequest]]]) -> None:
        self._client = client
        self._ready = ready
        self._call: AsyncCall | None = None
        self._reader: AsyncGenerator[StreamChunk, None] | None = None
        self._is_cancelled = asyncio.Event()
        self._is_abandoned = False
        self._generation: Generation | None = None
        self._plan: Plan | None = None

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
        """Give the request up; the reading loop then ends and `finish_reason` is "cancelled"."""
        self._is_cancelled.set()
        if self._call is not None and self._generation is None:
            self._call.cancel()
            self._abandon_once()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            await self._reader.aclose()

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        if self._reader is not None:
            raise InvalidRequest("a stream can be read only once", hint="Its answer is in `generation`.")
        self._reader = self._read()
        return self._reader

    async def _read(self) -> AsyncGenerator[StreamChunk, None]:
        plan, request = await self._ready()
        self._plan = plan
        answer = plan.answer()
        outcome: Outcome = "cancelled"  # what it stays when the reader leaves
        failure: ClientError | None = None
        sent_ns = time.perf_counter_ns()
        try:
            attempt = 0
            while not self._is_cancelled.is_set():
                try:
                    spent_s = (time.perf_counter_ns() - sent_ns) / 1e9
                    self._call = await self._client._begin(self, less(request, spent_s, plan.address))
                    async for chunk in self._pieces(self._call, answer, plan):
                        yield chunk
                    outcome = "ok"
                    break
                except ClientError as error:
                    if answer.has_begun or not plan.retry.allows(error, attempt):
                        raise
                    await _pause(self._is_cancelled, plan.retry.pause_s(attempt))
                    attempt += 1
        except ClientError as error:
            if not (isinstance(error, Cancelled) and self._is_cancelled.is_set()):
                outcome, failure = "failed", plan.lost(error, answer)
                failure.partial_text = answer.text
                raise failure from failure.__cause__
        finally:
            end_ns = time.perf_counter_ns()
            is_clean = outcome == "ok" and not (answer.is_stopped and plan.is_streaming)
            if self._call is not None and not is_clean:
                self._call.cancel()
                if failure is None or isinstance(failure, DeadlineExceeded):
                    self._abandon_once()
            self._generation = plan.conclude(answer, outcome, failure, sent_ns=sent_ns, end_ns=end_ns)
            self._client._end(self, plan.request_id)
            if self._call is not None and is_clean:
                await self._call.finish()

    async def _pieces(self, call: AsyncCall, answer: Answer, plan: Plan) -> AsyncIterator[StreamChunk]:
        """Yield new text until the final flag, the end of the RPC, or a stop word."""
        if self._is_cancelled.is_set():
            call.cancel()
        index = 0
        with _Timer(call.cancel) as timer:
            timer.start("first_token", plan.limits.first_token_s)
            try:
                async for reply in call:
                    at_ns = time.perf_counter_ns()
                    seen = len(answer.events)
                    text = answer.take(reply, at_ns)
                    if len(answer.events) > seen:
                        timer.start("between_tokens", plan.limits.between_tokens_s)
                    if text:
                        timer.stop()  # the reader's time is not the server's
                        yield StreamChunk(text=text, index=index, at_ns=at_ns)
                        timer.start("between_tokens", plan.limits.between_tokens_s)
                        index += 1
                    if reply.is_final or (answer.is_stopped and plan.is_streaming):
                        break
            except Cancelled as error:
                if timer.expired is None:
                    raise
                raise plan.late(timer.expired) from error
        rest = answer.flush()
        if rest:
            yield StreamChunk(text=rest, index=index, at_ns=time.perf_counter_ns())

    def _abandon_once(self) -> None:
        if not self._is_abandoned and self._plan is not None:
            self._is_abandoned = True
            self._client._abandon(self._plan.request_id)


class _Timer:
    """Cancels a call when a limit passes; a timer of the event loop, no task."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.expired: Phase | None = None
        self._cancel = cancel
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> _Timer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, phase: Phase, limit_s: float | None) -> None:
        """Begin to wait."""
        self.stop()
        if limit_s is not None:
            self._handle = asyncio.get_running_loop().call_later(limit_s, self._expire, phase)

    def stop(self) -> None:
        """Wait no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expire(self, phase: Phase) -> None:
        self.expired = phase
        self._cancel()


async def _pause(is_cancelled: asyncio.Event, pause_s: float) -> None:
    try:
        await asyncio.wait_for(is_cancelled.wait(), pause_s)
    except asyncio.TimeoutError:
        pass
