"""A server that costs less than the client it serves: answers of an OpenAI-like endpoint that were made before, sent on schedule by one loop.

    python benchmarks/client_replay.py TTFT_MS ITL_MS TOKENS

It prints HOST:PORT of its HTTP endpoint. Whatever is asked for, the answer has TOKENS events; GET /mock/schedule says when each was meant to be sent
and was, in the form of `trtbuild mock`. Nothing else of HTTP is understood: requests come one after the other on a connection.
"""

from __future__ import annotations

import heapq
import json
import re
import select
import socket
import sys
import time

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_ID = re.compile(rb"x-request-id: *([^\r]+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(*events: object) -> bytes:
    """Return events as one chunk of an answer."""
    text = b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n\n" for each in events
    )
    return b"%x\r\n%s\r\n" % (len(text), text)


class Replay:
    """The loop.

    Args:
        ttft_ns, itl_ns: from a request to its first event, and from one to the next.
        tokens: events of an answer.
    """

    def __init__(self, ttft_ns: int, itl_ns: int, tokens: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._ttft_ns, self._itl_ns = ttft_ns, itl_ns
        event = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
        middle = chunk(event)
        self._parts = [_HEAD + middle, *[middle] * (tokens - 2), middle + chunk(usage, b"[DONE]") + b"0\r\n\r\n"]
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._asked: dict[int, bytes] = {}
        self._due: list[
            tuple[int, int, int, dict[str, object], list[int]]
        ] = []  # when, order, descriptor, record, sent
        self._records: list[dict[str, object]] = []

    def run(self) -> None:
        """Serve until the process is ended."""
        self._epoll.register(self.listener.fileno(), select.EPOLLIN)
        while True:
            wait_s = (self._due[0][0] - time.perf_counter_ns()) / 1e9 if self._due else 1.0
            if wait_s > 0:
                select.select([self._epoll], (), (), wait_s)
            for fd, _ in self._epoll.poll(0):
                if fd == self.listener.fileno():
                    self._accept()
                else:
                    self._read(fd)
            while self._due and self._due[0][0] <= time.perf_counter_ns():
                self._send(*heapq.heappop(self._due))

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[connection.fileno()] = connection
        self._asked[connection.fileno()] = b""
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> None:
        connection = self._sockets[fd]
        data = connection.recv(1 << 16)
        if not data:
            self._epoll.unregister(fd)
            self._sockets.pop(fd).close()
            return
        asked = self._asked[fd] + data
        head, end, body = asked.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            self._asked[fd] = asked
            return
        self._asked[fd] = b""
        if head.startswith(b"GET"):
            is_known = b"/mock/schedule" in head
            text = json.dumps({"requests": self._records}).encode() if is_known else b"{}"
            status = b"200 OK" if is_known else b"404 Not Found"
            connection.sendall(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text))
            return
        name = _ID.search(head)
        first_ns = time.perf_counter_ns() + self._ttft_ns
        intended = [first_ns + index * self._itl_ns for index in range(len(self._parts))]
        sent: list[int] = []
        record: dict[str, object] = {
            "request_id": name[1].decode() if name else "",
            "intended_ns": intended,
            "sent_ns": sent,
        }
        self._records.append(record)
        heapq.heappush(self._due, (first_ns, len(self._records), fd, record, sent))

    def _send(self, due_ns: int, order: int, fd: int, record: dict[str, object], sent: list[int]) -> None:
        number = len(sent)
        sent.append(time.perf_counter_ns())
        self._sockets[fd].send(self._parts[number])
        if number + 1 < len(self._parts):
            heapq.heappush(self._due, (due_ns + self._itl_ns, order, fd, record, sent))


if __name__ == "__main__":
    server = Replay(*(round(float(text) * 1e6) for text in sys.argv[1:3]), int(sys.argv[3]))
    print(f"127.0.0.1:{server.listener.getsockname()[1]}", flush=True)
    server.run()
