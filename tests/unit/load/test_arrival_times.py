"""Arrivals are stamped by the system: a client that looks late at its sockets measures no later for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from trtbuild_client.connection import connection
from trtbuild_client.load import connections, driver
from trtbuild_client.load.connections import Connection
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.table import RecordTable


class Watched:
    """A watcher that watches nothing."""

    def __init__(self) -> None:
        self.clock_offset_ns = driver._clock_offset_ns()
        self.believed_from_ns = time.perf_counter_ns() - 10**9

    def watch(self, connection: Connection, mask: int) -> None:
        """Nothing to do."""

    def unwatch(self, connection: Connection) -> None:
        """Nothing to do."""

    def free(self, connection: Connection) -> None:
        """Nothing to do."""


class Reader(Connection):
    """Keeps what comes, and when."""

    def __init__(self, address: tuple[str, int], watcher: Watched) -> None:
        super().__init__(connection(f"{address[0]}:{address[1]}"), None, watcher, 0)
        self.came: list[tuple[bytes, int]] = []

    def receive(self, data: bytes, now_ns: int) -> None:
        """Keep it."""
        self.came.append((data, now_ns))

    def pending(self) -> bytes:
        """Nothing is to be sent."""
        return b""

    def ended(self, now_ns: int, text: str, outcome: Outcome) -> None:
        """Nothing ran."""


def wait_for_stamps(reader: Reader, server: socket.socket) -> None:
    """Linux begins to stamp packets a moment after the first socket that asks for it; until then it takes the time of reading."""
    for _ in range(200):
        server.send(b"?")
        time.sleep(0.01)
        now_ns = time.perf_counter_ns()
        reader.on_event(1, now_ns)
        if reader.came.pop()[1] < now_ns - 5_000_000:
            return
    raise AssertionError("the system stamps no packets")


@pytest.fixture
def pair() -> Iterator[tuple[Reader, socket.socket, Watched]]:
    watcher = Watched()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = Reader(listener.getsockname(), watcher)
        server, _ = listener.accept()
        with server:
            wait_for_stamps(reader, server)
            yield reader, server, watcher
            reader.close(0)


@pytest.mark.parametrize("late_s", [0.15, 1.5])
def test_what_is_read_late_has_the_time_at_which_it_came(
    pair: tuple[Reader, socket.socket, Watched], late_s: float
) -> None:
    reader, server, _ = pair
    before_ns = time.perf_counter_ns()
    server.send(b"token")
    after_ns = time.perf_counter_ns()
    time.sleep(late_s)
    reader.on_event(1, time.perf_counter_ns())
    ((data, came_ns),) = reader.came
    assert data == b"token"
    assert before_ns - 1_000_000 <= came_ns <= after_ns + 1_000_000


def test_a_clock_that_was_set_meanwhile_is_not_believed(pair: tuple[Reader, socket.socket, Watched]) -> None:
    reader, server, watcher = pair
    for off_ns in (3_600 * 10**9, -3_600 * 10**9):
        watcher.clock_offset_ns += off_ns
        server.send(b"token")
        now_ns = time.perf_counter_ns()
        reader.on_event(1, now_ns)
        assert reader.came.pop() == (b"token", now_ns)
        watcher.clock_offset_ns -= off_ns


def test_data_before_a_break_are_taken(
    pair: tuple[Reader, socket.socket, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading fills its buffer, the second one finds the connection broken."""
    reader, server, _ = pair
    monkeypatch.setattr(connections, "_READ_BYTES", 5)
    server.send(b"token")
    reader.on_event(0, time.perf_counter_ns())  # connected
    server.send(b"token")

    def broken() -> bytes:
        raise ConnectionResetError

    recv = reader.sock.recvmsg
    reader.sock = type("Broken", (), {"recvmsg": recv, "recv": lambda *_: broken(), "close": reader.sock.close})()
    reader.on_event(1, time.perf_counter_ns())
    assert [data for data, _ in reader.came] == [b"token", b"token"]


def test_the_offset_between_the_clocks_is_right_within_a_reading() -> None:
    offset_ns = driver._clock_offset_ns()
    before = time.perf_counter_ns()
    seen = time.time_ns() + offset_ns
    assert before - 5_000_000 < seen < time.perf_counter_ns() + 5_000_000


def test_a_request_is_in_order_even_where_the_clock_of_the_day_was_set_back() -> None:
    ended: list[Exchange] = []
    exchange = Exchange(Job(0, 0, 0, ("a",), 3), 90, ended.append)
    exchange.sent_ns, exchange.first_content_ns = 100, 95
    for at_ns in (95, 130, 120):
        exchange.arrived(at_ns, 1, b"a")
    exchange.finish(110)
    exchange.arrived(140, 1, b"late")  # in a message that came together with the end
    table = RecordTable()
    exchange.record(table)
    row = table.row(0)
    assert table.event_ns(0).tolist() == [100, 130, 130] and row["output_tokens"] == 3
    assert (row["first_content_ns"], row["end_ns"]) == (100, 130) and exchange.answer == "aaa"
