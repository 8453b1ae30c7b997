"""The loop that sends, reads and records: one thread, one epoll, any number of requests.

Times of arrival are those at which the system received the data (or, where it does not say: those at which it said that a socket has
some), so that neither work on one answer nor a busy machine delays the time of another. A request's clock starts when it was due: at its
time on the schedule (open loop), when the loop saw that its turn came (closed loop), or, for the first request of each worker of a closed
loop, when the loop got to it: workers have no schedule, and beginning forty at once takes some milliseconds. What was sent late was sent
late: `sent_ns - due_ns` is the client's own part, and is reported.
"""

from __future__ import annotations

import gc
import heapq
import select
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

from trtbuild_client.load.connections import Connection
from trtbuild_client.load.conversation import Conversation, Endpoint
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.strain import Strain
from trtbuild_client.load.table import RecordTable
from trtbuild_client.load.timeouts import missed, span, sweep_ns
from trtbuild_client.load.workload import Workload

_TICK_NS = 500_000_000
#: The longest sleep of the loop; a sleep that is longer than asked for shows that the process was stopped, or the machine is busy.
_MAX_SLEEP_NS = 10_000_000
#: After so much sending in a row sockets are looked at, though more is due.
_SENDING_NS = 1_000_000
#: What is read cannot have come before sockets were last looked at; times of arrival may be this much earlier before they are not believed.
_BELIEVED_NS = 1_000_000_000
#: epoll counts milliseconds; a wait that ends within so much is left to select, which counts microseconds.
_FINE_NS = 2_000_000
#: After the last answer.
_LISTEN_NS = 200_000_000
#: Before a conversation goes on after its server could not be reached.
_BACKOFF_NS = 100_000_000
#: Later than any time of a run.
_NEVER = 1 << 62
_UNREACHABLE = (Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECTION_LOST, Outcome.SERVER_GOING_AWAY)


class Driver:
    """Runs a workload against an endpoint.

    Args:
        endpoint: where to send.
        workload: what to send and when.
        on_tick: called twice a second with the driver, for progress and for rules that stop the run early: it does when True is returned.
        table: where requests are recorded.

    Attributes:
        strain: how busy this process was.
        clock_offset_ns, believed_from_ns: see `connections.Watcher`; the offset is looked at again with every sweep, since the clock of the
            day is adjusted.
        peak: most requests in flight at the same time.
        sent: requests sent.
        connections_opened: connections made.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        workload: Workload,
        *,
        on_tick: Callable[[Driver], bool] = lambda driver: False,
        table: RecordTable | None = None,
    ) -> None:
        self.table = RecordTable() if table is None else table
        self.strain = Strain()
        self.peak = self.sent = self.connections_opened = 0
        self.started_ns = 0
        self.clock_offset_ns = self.believed_from_ns = 0
        self.active: dict[Exchange, Connection] = {}
        self._endpoint = endpoint
        self._work = workload
        self._limits = workload.limits
        self._is_closed = workload.starts is None
        self._starts = _starts(workload)
        self._on_tick = on_tick
        self._epoll = select.epoll()
        self._epoll_list = [self._epoll]
        self._by_fd: dict[int, Connection] = {}
        self._idle: deque[Connection] = deque()
        self._conversations: dict[Exchange, Conversation] = {}
        self._due: list[tuple[int, int, Conversation]] = []  # a heap: time, order, conversation
        self._order = 0
        self._next_start = 0
        self._next_session = 0
        self._ended: deque[Exchange] = deque()
        self._is_stopping = False
        self._last_sent_ns = self._last_end_ns = 0
        self._end_ns = _NEVER  # nothing is due later
        self._sweep_ns = sweep_ns(workload.limits)

    # Watcher

    def watch(self, connection: Connection, mask: int) -> None:
        """See `connections.Watcher`."""
        if connection.fd in self._by_fd:
            self._epoll.modify(connection.fd, mask)
        else:
            self._by_fd[connection.fd] = connection
            self._epoll.register(connection.fd, mask)

    def unwatch(self, connection: Connection) -> None:
        """See `connections.Watcher`."""
        if self._by_fd.pop(connection.fd, None) is not None:
            try:
                self._epoll.unregister(connection.fd)
            except OSError:  # a socket that is closed is forgotten by the system itself
                pass

    def free(self, connection: Connection) -> None:
        """See `connections.Watcher`."""
        if not connection.is_idle and not connection.is_closed and self._endpoint.can_take(connection):
            connection.is_idle = True
            self._idle.append(connection)

    # The run

    def run(self, epoch_ns: int | None = None) -> RecordTable:
        """Run to the end and return the records.

        Args:
            epoch_ns: when the run begins; now if not given.

        Raises:
            KeyboardInterrupt: it was interrupted; requests that ran are recorded as cancelled.
        """
        thresholds = gc.get_threshold()
        gc.freeze()  # what is there stays; looking at it again would stop the loop for milliseconds
        gc.set_threshold(100_000, 50, 100)
        self.started_ns = time.perf_counter_ns() if epoch_ns is None else epoch_ns
        if self._limits.duration_ns is not None:
            self._end_ns = self.started_ns + self._limits.duration_ns
        self.clock_offset_ns = _clock_offset_ns()
        self.strain.start(self.started_ns)
        try:
            self._loop()
        except KeyboardInterrupt:
            self.cancel(time.perf_counter_ns())
            raise
        finally:
            self.strain.stop()
            for connection in list(self._by_fd.values()):
                connection.close(time.perf_counter_ns())
            self._epoll.close()
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        return self.table

    def cancel(self, now_ns: int) -> None:
        """Give up all that runs, and begin nothing more."""
        self._give_up_all(Outcome.CANCELLED, now_ns, "given up by the client")

    def _give_up_all(self, outcome: Outcome, now_ns: int, text: str) -> None:
        self._is_stopping = True
        for exchange, connection in list(self.active.items()):
            self._give_up(exchange, connection, outcome, now_ns, text)
        self._settle(now_ns)

    def _loop(self) -> None:
        by_fd, unseen = self._by_fd, self.strain.unseen
        clock = time.perf_counter_ns
        next_sweep = next_tick = 0
        begun_ns = now_ns = clock()
        while True:
            self.believed_from_ns = now_ns - _BELIEVED_NS
            wait_ns = max(min(self._next_due_ns() - begun_ns, _MAX_SLEEP_NS), 0)
            ready = self._wait(wait_ns)
            now_ns = clock()
            for fd, mask in ready:
                connection = by_fd.get(fd)
                if connection is not None:
                    connection.on_event(mask, now_ns)
            if self._ended:
                self._settle(now_ns)
            if now_ns >= next_sweep:
                next_sweep = now_ns + self._sweep_ns
                self._sweep(now_ns)
            self._send_due()
            if now_ns >= next_tick:
                next_tick = now_ns + _TICK_NS
                if self._on_tick(self):
                    self.cancel(clock())
            # Whether something was ready or not: a sleep that was longer than it could be was a stop, and it goes on until now.
            since_ns = min(begun_ns + wait_ns, now_ns)
            begun_ns = clock()
            unseen(begun_ns - since_ns, begun_ns)
            if self._is_over():
                return

    def _wait(self, wait_ns: int) -> list[tuple[int, int]]:
        """Return what is ready, after at most `wait_ns`."""
        if wait_ns <= 0:
            return self._epoll.poll(0)
        if wait_ns >= _FINE_NS and wait_ns % 1_000_000 == 0:
            return self._epoll.poll(wait_ns / 1e9)
        if wait_ns > _FINE_NS:
            return self._epoll.poll((wait_ns - 1_000_000) // 1_000_000 / 1e3)
        select.select(self._epoll_list, (), (), wait_ns / 1e9)
        return self._epoll.poll(0)

    def _next_due_ns(self) -> int:
        due = self._due[0][0] if self._due else _NEVER
        if self._next_start < len(self._starts) and not self._is_stopping:
            due = min(due, self.started_ns + self._starts[self._next_start])
        return due

    def _is_over(self) -> bool:
        if self.active or self._ended:
            return False
        if not self._is_stopping and self._more_comes():
            return False
        # What a server still says after the end of its last answers is listened to: a second end, late tokens.
        is_quiet = all(connection.is_settled for connection in self._by_fd.values())
        return is_quiet or time.perf_counter_ns() > self._last_end_ns + _LISTEN_NS

    # Sending

    def _conversation(self) -> Conversation:
        index = self._next_session
        self._next_session += 1
        sessions = self._work.sessions
        number = self._work.offset + index * self._work.stride
        return Conversation(number, sessions[index % len(sessions)])

    def _later(self, due_ns: int, conversation: Conversation) -> None:
        if due_ns <= self._end_ns:
            self._order += 1
            heapq.heappush(self._due, (due_ns, self._order, conversation))

    def _more_comes(self) -> bool:
        return bool(self._due) or self._next_start < len(self._starts)

    def _send_due(self) -> None:
        """Send all whose time has come; the rest in the next turn when that takes long."""
        now_ns = time.perf_counter_ns()
        until_ns = now_ns + _SENDING_NS
        begins_one = True  # in every turn a worker begins, however busy those are that have begun
        while now_ns < until_ns:
            if self._is_stopping or self._all_are_sent():
                self._due.clear()
                self._next_start = len(self._starts)
            due = self._take_due(now_ns, begins_one=begins_one)
            if due is None:
                return
            self._send(*due)
            begins_one = False
            now_ns = time.perf_counter_ns()

    def _take_due(self, now_ns: int, *, begins_one: bool) -> tuple[int, Conversation] | None:
        """Return since when a conversation is due, and it; None when none is."""
        starts, due = self._starts, self._due
        while self._next_start < len(starts) and self.started_ns + starts[self._next_start] <= now_ns:
            if self._is_closed and due and due[0][0] <= now_ns and not begins_one:
                break  # its clock runs already
            start_ns = self.started_ns + starts[self._next_start]
            self._next_start += 1
            if self._is_closed:
                return now_ns, self._conversation()
            self._later(start_ns, self._conversation())
        if due and due[0][0] <= now_ns:
            due_ns, _, conversation = heapq.heappop(due)
            return due_ns, conversation
        return None

    def _all_are_sent(self) -> bool:
        return self._limits.requests is not None and self.sent >= self._limits.requests

    def _send(self, due_ns: int, conversation: Conversation) -> None:
        turn = conversation.session[conversation.turn]
        conversation.messages = (*conversation.messages, turn.text)
        number = self._work.offset + self.sent * self._work.stride
        planned = turn.planned_tokens if conversation.turn == 0 else -1
        job = Job(number, conversation.index, conversation.turn, conversation.messages, turn.max_tokens, planned)
        exchange = self._endpoint.exchange(job, due_ns, self._ended.append, self._late)
        if number < self._work.warmup_requests or due_ns < self.started_ns + self._work.warmup_ns:
            exchange.marks |= Mark.WARMUP
        self._conversations[exchange] = conversation
        self.sent += 1
        now_ns = time.perf_counter_ns()
        exchange.sent_ns = exchange.last_ns = self._last_sent_ns = now_ns
        connection = self._connection(exchange, now_ns)
        if connection is not None:
            self.active[exchange] = connection
            connection.active += 1
            self.peak = max(self.peak, len(self.active))
            exchange.sent_ns = time.perf_counter_ns()
            connection.begin(exchange)
            self.free(connection)

    def _connection(self, exchange: Exchange, now_ns: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            connection.is_idle = False
            if not connection.is_closed and self._endpoint.can_take(connection):
                return connection
        exchange.marks |= Mark.NEW_CONNECTION
        self.connections_opened += 1
        try:
            return self._endpoint.connect(self, now_ns + self._limits.connect_ns)
        except OSError as error:
            exchange.end(Outcome.CONNECT_FAILED, now_ns, str(error))
            return None

    # Ending

    def _settle(self, now_ns: int) -> None:
        """Let conversations go on, and record what has ended; in this order, so that recording makes no request late."""
        while self._ended:
            ended = list(self._ended)
            self._ended.clear()
            self._last_end_ns = now_ns
            for exchange in ended:
                connection = self.active.pop(exchange, None)
                if connection is not None:
                    connection.active -= 1
                    self.free(connection)
                self._go_on(exchange, self._conversations.pop(exchange), now_ns)
            self._send_due()
            for exchange in ended:
                exchange.record(self.table)

    def _go_on(self, exchange: Exchange, conversation: Conversation, now_ns: int) -> None:
        backoff_ns = _BACKOFF_NS if exchange.outcome in _UNREACHABLE else 0
        conversation.turn += 1
        if exchange.outcome is Outcome.OK and conversation.turn < len(conversation.session):
            conversation.messages = (*conversation.messages, exchange.answer)
            think_ns = conversation.session[conversation.turn].think_ns
            self._later(max(exchange.end_ns + think_ns, now_ns), conversation)
        elif self._is_closed and not self._is_stopping:  # a conversation whose answer failed cannot go on
            self._later(now_ns + backoff_ns, self._conversation())

    def _late(self, exchange: Exchange, mark: Mark) -> None:
        exchange.late_mark(self.table, mark)

    def _sweep(self, now_ns: int) -> None:
        """Look for deadlines that have passed."""
        self.clock_offset_ns = _clock_offset_ns()
        limits = self._limits
        for exchange, connection in list(self.active.items()):
            found = missed(exchange, limits, now_ns)
            if found is not None:
                self._give_up(exchange, connection, found[0], now_ns, f"{found[0].label}: {found[1]}")
        for connection in list(self._by_fd.values()):
            connection.check(now_ns)
        if limits.drain_ns is not None and now_ns > self._sending_ended_ns() + limits.drain_ns:
            outcome = Outcome.TIMEOUT_DRAIN
            text = f"{outcome.label}: no end within {span(limits.drain_ns)} after the last request"
            self._give_up_all(outcome, now_ns, text)
        self._settle(now_ns)

    def _sending_ended_ns(self) -> int:
        """Return when the last request was sent, or could have been."""
        if self._all_are_sent():
            return self._last_sent_ns
        if self._more_comes():
            return _NEVER
        # A worker of a closed loop whose answer comes sends again until the time is over.
        return max(self._last_sent_ns, self._end_ns) if self._is_closed else self._last_sent_ns

    def _give_up(self, exchange: Exchange, connection: Connection, outcome: Outcome, now_ns: int, text: str) -> None:
        exchange.end(outcome, now_ns, text)
        connection.give_up(exchange)


def _starts(workload: Workload) -> Sequence[int]:
    """Return when conversations begin: on the schedule, or the workers of a closed loop; nanoseconds after the start of the run."""
    starts: Sequence[int] | None = workload.starts
    if starts is None:
        starts = [index * workload.ramp_ns // workload.concurrency for index in range(workload.concurrency)]
    duration_ns = workload.limits.duration_ns
    return starts if duration_ns is None else starts[: bisect_right(starts, duration_ns)]


def _clock_offset_ns() -> int:
    """Return `time.perf_counter_ns` minus `time.time_ns`, right within the time between two readings of a clock."""
    return max(time.perf_counter_ns() - time.time_ns() for _ in range(3))
