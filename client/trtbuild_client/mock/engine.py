"""Works requests off: admission, pacing, faults. Knows no protocol: what it sends goes to a `Sink`."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock.counters import Counters
from trtbuild_client.mock.ledger import Entry, Ledger
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.schedule import Piece, Schedule, plan

#: Prompts that the cache remembers.
_CACHED_PROMPTS = 4096
_NS = 1_000_000_000
#: A break takes with it what the client has not read yet; so it comes a moment after what was to arrive.
_BREAK_AFTER_S = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """One request, whatever protocol it came by.

    Attributes:
        request_id: may be empty.
        input_tokens: tokens of the prompt.
        is_streaming: one response after the other, else one at the end.
        timeout_ns: longest time in the queue, None for any.
    """

    request_id: str
    model: str
    protocol: str
    prompt: str
    max_tokens: int
    input_tokens: int
    is_streaming: bool
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the server would say it.

    Attributes:
        status: gRPC status name.
        has_id: the text names the request.
        is_200: over HTTP its status says that all is well.
    """

    text: str
    status: str = "INTERNAL"
    has_id: bool = True
    is_200: bool = False


class Sink(Protocol):
    """Where an answer goes."""

    def send(self, pieces: Sequence[Piece], *, has_end: bool, entry: Entry) -> None:
        """Send responses that are due, and note in `entry.sent_ns` when; `has_end`: the answer ends with them."""

    def finish(self, *, times: int) -> None:
        """Say `times` times that the answer is complete (0: close without saying so)."""

    def fail(self, failure: Failure) -> None:
        """Say that the request failed; this ends it."""

    def garble(self) -> None:
        """Send what is no message."""

    def reset(self, *, is_connection: bool) -> None:
        """Break the stream, or the connection under it."""


class Engine:
    """Everything the endpoints share.

    Attributes:
        ledger: what was done and when.
        counters: numbers per model, for statistics and metrics.
        active: requests that are worked on.
    """

    def __init__(self, options: MockOptions) -> None:
        self.options = options
        self.ledger = Ledger(options.kept_requests)
        self.counters = Counters()
        self.active = 0
        self._ready_ns = time.monotonic_ns() + options.ready_after_ns
        self._queue: deque[asyncio.Future[None]] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._prompts: OrderedDict[str, None] = OrderedDict()

    @property
    def is_ready(self) -> bool:
        """Whether the models have loaded; the server is live before."""
        return time.monotonic_ns() >= self._ready_ns

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    def start(self, job: Job, sink: Sink) -> asyncio.Task[None]:
        """Begin a request; cancelling the task gives it up."""
        entry = self.ledger.open(job.request_id, job.model, job.protocol, time.monotonic_ns())
        task = asyncio.get_running_loop().create_task(self._run(job, sink, entry))
        if job.request_id:
            self._running[job.request_id] = task
            task.add_done_callback(lambda done: self._forget(job.request_id, done))
        return task

    def stop(self, request_id: str) -> bool:
        """Cancel a request as `stop=true` does; return whether it was running."""
        task = self._running.get(request_id)
        return task is not None and task.cancel("stop")

    def clear(self) -> None:
        """Forget requests and prompts."""
        self.ledger.clear()
        self._prompts.clear()

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._running.get(request_id) is task:
            del self._running[request_id]

    async def _run(self, job: Job, sink: Sink, entry: Entry) -> None:
        is_cached = self.options.has_prompt_cache and job.prompt in self._prompts
        entry.input_tokens, entry.is_cached = job.input_tokens, is_cached
        try:
            schedule = plan(
                self.options, entry.index, job.prompt,
                max_tokens=job.max_tokens, input_tokens=job.input_tokens, is_cached=is_cached,
            )  # fmt: skip
        except InvalidRequest as error:
            self._end(entry, "failed")
            sink.fail(Failure(str(error), "INVALID_ARGUMENT"))
            return
        fault = schedule.fault
        entry.fault = None if fault is None else fault.kind
        try:
            if fault is not None and fault.kind == "slow_accept":
                await asyncio.sleep(fault.delay_ns / _NS)
            refusal = Failure("Exceeds maximum queue size", "UNAVAILABLE") if entry.fault == "busy" else None
            refusal = refusal or await self._take_turn(job)
            if refusal is not None:
                self._end(entry, "failed")
                sink.fail(refusal)
                return
            try:
                entry.started_ns = time.monotonic_ns()
                if schedule.pieces:
                    entry.first_token_ns = entry.started_ns + schedule.pieces[0].due_ns
                self._remember(job.prompt)
                await self._answer(job, schedule, sink, entry)
            finally:
                self._give_turn()
        except asyncio.CancelledError as cancelled:
            self._end(entry, "cancelled")
            if cancelled.args == ("stop",):
                sink.finish(times=1)
        except BaseException:
            self._end(entry, "failed")
            raise

    async def _answer(self, job: Job, schedule: Schedule, sink: Sink, entry: Entry) -> None:
        pieces = schedule.pieces if job.is_streaming else _joined(schedule.pieces)
        stop_at, act = _interruption(schedule, pieces, sink)
        if self.options.is_burst and pieces[:stop_at]:
            await self._send(pieces[:stop_at], stop_at == len(pieces), sink, entry)
        else:
            for number, piece in enumerate(pieces[:stop_at], 1):
                await self._send((piece,), number == len(pieces), sink, entry)
        if act is None:
            sink.finish(times={"no_final": 0, "duplicate_final": 2}.get(entry.fault or "", 1))
            self._end(entry, "ok")
            return
        lasting = act()
        if lasting is not None:
            await lasting
        self._end(entry, "failed")

    async def _send(self, pieces: Sequence[Piece], has_end: bool, sink: Sink, entry: Entry) -> None:
        due_ns = entry.started_ns + pieces[0].due_ns
        delay_ns = due_ns - time.monotonic_ns()
        # Give way even when nothing is to be waited for: requests on one stream interleave, and cancelling must work.
        await asyncio.sleep(max(delay_ns, 0) / _NS)
        for piece in pieces:
            entry.tokens.append(piece.tokens)
            entry.intended_ns.append(entry.started_ns + piece.due_ns)
        sink.send(pieces, has_end=has_end, entry=entry)

    async def _take_turn(self, job: Job) -> Failure | None:
        """Wait until there is room; return why there will be none."""
        limit, most = self.options.max_concurrency, self.options.max_queue
        if limit is None or (self.active < limit and not self._queue):
            self.active += 1
            return None
        if most is not None and len(self._queue) >= most:
            return Failure("Exceeds maximum queue size", "UNAVAILABLE")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await asyncio.wait([turn], timeout=None if job.timeout_ns is None else job.timeout_ns / _NS)
        except asyncio.CancelledError:
            if turn.done():
                self._give_turn()
            raise
        finally:
            if turn in self._queue:
                self._queue.remove(turn)
        return None if turn.done() else Failure("Request timeout expired", "UNAVAILABLE")

    def _give_turn(self) -> None:
        """Let the next one in."""
        self.active -= 1
        if self._queue:
            self.active += 1  # counted at once, so that nobody comes in between
            self._queue.popleft().set_result(None)

    def _remember(self, prompt: str) -> None:
        self._prompts[prompt] = None
        self._prompts.move_to_end(prompt)
        if len(self._prompts) > _CACHED_PROMPTS:
            self._prompts.popitem(last=False)

    def _end(self, entry: Entry, outcome: str) -> None:
        if entry.outcome == "running":
            entry.outcome, entry.end_ns = outcome, time.monotonic_ns()
            self.counters.count(entry)


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the whole answer as one response."""
    if not pieces:
        return ()
    tokens = sum(piece.tokens for piece in pieces)
    return (Piece(pieces[-1].due_ns, tokens, 0, b"".join(piece.text for piece in pieces)),)


def _interruption(
    schedule: Schedule, pieces: Sequence[Piece], sink: Sink
) -> tuple[int, Callable[[], Awaitable[object] | None] | None]:
    """Return how many responses are sent, and what happens then; None stands for the normal end."""
    acts: dict[str, Callable[[], Awaitable[object] | None]] = {
        "error": lambda: sink.fail(Failure("the mock was told to fail")),
        "error_without_id": lambda: sink.fail(Failure("the mock was told to fail", has_id=False)),
        "http_200_error": lambda: sink.fail(Failure("the mock was told to fail", is_200=True)),
        "reset": lambda: _break(sink, is_connection=False),
        "drop": lambda: _break(sink, is_connection=True),
        "broken_event": sink.garble,
        "stall": lambda: asyncio.Event().wait(),
    }
    fault = schedule.fault
    if fault is None or fault.kind not in acts:
        return len(pieces), None
    at_tokens, stop_at, sent = fault.at_tokens or 0, 0, 0
    while stop_at < len(pieces) and sent + pieces[stop_at].tokens <= at_tokens:
        sent += pieces[stop_at].tokens
        stop_at += 1
    return stop_at, acts[fault.kind]


async def _break(sink: Sink, *, is_connection: bool) -> None:
    await asyncio.sleep(_BREAK_AFTER_S)
    sink.reset(is_connection=is_connection)
