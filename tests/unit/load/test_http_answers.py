"""Answers over HTTP: framing, events, and what OpenAI's and Triton's servers put into them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtbuild_client.load import http1, sse
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.http1 import Events, Http1Error, Response
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.sse import GenerateExchange, OpenAiExchange
from trtbuild_client.load.table import RecordTable

_EVENTS = b'data: {"text_output":"a"}\n\ndata: {"text_output":"b"}\n\n'


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def head(kind: str = "text/event-stream", status: int = 200, more: str = "Transfer-Encoding: chunked\r\n") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}\r\n".encode()


class Running:
    """A request without a connection."""

    def __init__(self, kind: type[Any] = OpenAiExchange, max_tokens: int = 8) -> None:
        self.table = RecordTable()
        self.late: list[Mark] = []
        self.exchange = kind(Job(0, 0, 0, ("x",), max_tokens), 0, lambda each: None, self._late)
        self.exchange.sent_ns = 0

    def _late(self, exchange: Exchange, mark: Mark) -> None:
        self.late.append(mark)
        exchange.late_mark(self.table, mark)

    def stream(self, *events: Any, done: bool = True) -> dict[str, int]:
        """Take events, each at its own second; return the record."""
        self.exchange.receive(head(), 0)
        for second, event in enumerate(events, 1):
            data = b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"
            self.exchange.receive(b"%x\r\n%s\r\n" % (len(data), data), second * 10**9)
        end = b"data: [DONE]\n\n" if done else b""
        tail = (b"%x\r\n%s\r\n" % (len(end), end) if end else b"") + b"0\r\n\r\n"
        self.exchange.receive(tail, (len(events) + 1) * 10**9)
        return self.record()

    def record(self) -> dict[str, int]:
        self.exchange.record(self.table)
        return self.table.row(0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "body",
    [
        _EVENTS,
        _EVENTS.replace(b"\n", b"\r\n"),
        _EVENTS.replace(b"data: ", b"data:"),
        b": ping\n\n" + _EVENTS.replace(b"\n\n", b"\n\n: ping\n\n"),
        b'data: {"text_output":\ndata: "a"}\n\nevent: token\nid: 3\ndata: {"text_output":"b"}\n\n',
    ],
)
def test_events_are_read_whatever_their_pieces_and_line_ends_are(body: bytes, size: int) -> None:
    events = Events()
    found = [event for start in range(0, len(body), size) for event in events.feed(body[start : start + size])]
    assert [json.loads(event)["text_output"] for event in found] == ["a", "b"]
    assert not events.rest.strip()


def test_text_cut_within_a_character_is_joined() -> None:
    body = 'data: {"text_output":"家🙂"}\n\n'.encode()
    for cut in range(1, len(body)):
        events = Events()
        found = events.feed(body[:cut]) + events.feed(body[cut:])
        assert [json.loads(each)["text_output"] for each in found] == ["家🙂"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 10_000])
def test_a_chunked_body_is_put_together(size: int) -> None:
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" + head() + chunked(_EVENTS * 20, 33)
    response, body = Response(), b""
    for start in range(0, len(whole), size):
        body += response.feed(whole[start : start + size])
    assert body == _EVENTS * 20 and response.is_complete and response.keeps_connection


def test_a_body_with_a_length_ends_there() -> None:
    response = Response()
    assert response.feed(head(more="Content-Length: 5\r\nConnection: close\r\n") + b"abc") == b"abc"
    assert response.feed(b"de") == b"de"
    assert response.is_complete and not response.keeps_connection


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "-1", "x"])
def test_a_length_that_is_none_is_as_if_it_were_not_there(length: str) -> None:
    response = Response()
    assert response.feed(f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\nabc".encode("latin-1")) == b"abc"
    assert response.ends_with_connection and not response.is_complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 \xb200 OK\r\n\r\n",
        b"HTTP/1.1 20000 OK\r\n\r\n",
        head() + b"xyz\r\nabc\r\n",
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(Http1Error):
        Response().feed(data)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (head() + b"fffffff\r\ndata", "a chunk of"),
        (head() + b"-1\r\n", "a chunk of"),
        (head(more="") + b"data: " + b"x" * 200, "an event of more than 100 bytes"),
        (head("application/json", more="") + b"x" * 200, "a body of more than 100 bytes"),
    ],
)
def test_what_never_ends_does_not_fill_the_memory(answer: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (http1, sse):
        monkeypatch.setattr(module, "MAX_BYTES", 100)
    running = Running()
    for start in range(0, len(answer), 7):
        if not running.exchange.is_read:
            running.exchange.receive(answer[start : start + 7], 0)
    assert running.exchange.outcome is Outcome.PROTOCOL_ERROR and text in str(running.exchange.error)
    assert not running.exchange.keeps_connection


def test_a_broken_event_fails_the_request_and_keeps_its_tokens() -> None:
    running = Running(GenerateExchange)
    row = running.stream({"text_output": "a"}, b'{"text_output":"c' + b"x" * 500, done=False)
    assert row["outcome"] == Outcome.BAD_EVENT and row["output_tokens"] == 1
    error = running.table.error_of(0)
    assert error is not None and "xxx" in error and len(error) < 350


def test_the_kind_of_a_chunk_is_seen_from_what_it_holds() -> None:
    row = Running().stream(
        {"object": "text_completion", "choices": [{"text": "a"}]},
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 2}},
    )
    assert row["outcome"] == Outcome.OK and row["output_tokens"] == 2 and row["events"] == 2
    assert row["input_tokens"] == 0 and row["counted_by"] == 2


def test_reasoning_counts_for_the_first_token_and_the_answer_has_its_own_time() -> None:
    thinking = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    row = Running().stream(thinking, thinking, {"choices": [{"delta": {"content": "so"}, "finish_reason": "stop"}]})
    assert row["first_content_ns"] == 3 * 10**9 and row["events"] == 3
    row = Running().stream({"choices": [{"delta": {"reasoning": "hm"}, "finish_reason": "length"}]})
    assert row["first_content_ns"] == -1 and row["events"] == 1


def test_several_tokens_in_a_chunk_are_counted_by_a_server_that_says_so() -> None:
    def chunk(text: str, total: int) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": text}}], "usage": {"prompt_tokens": 5, "completion_tokens": total}}

    running = Running()
    row = running.stream(chunk("a", 1), chunk("b", 2), chunk("cde", 5))
    assert running.table.events.tokens.tolist() == [1, 1, 3] and row["output_tokens"] == 5
    assert not row["marks"] & Mark.COUNTED_AT_END


def test_a_total_that_comes_in_the_end_is_taken_and_marked() -> None:
    row = Running().stream(
        {"choices": [{"delta": {"content": "abc"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 3, "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 5}}},
    )  # fmt: skip
    assert row["output_tokens"] == 3 and row["marks"] & Mark.COUNTED_AT_END
    assert (row["accepted_draft_tokens"], row["draft_tokens"]) == (2, 7)


_TOKEN = {"choices": [{"delta": {"content": "a"}}]}
_LAST = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("events", "done", "outcome", "mark"),
    [
        ([_TOKEN, _LAST], True, Outcome.OK, Mark(0)),
        ([_TOKEN, _LAST], False, Outcome.OK, Mark.MISSING_FINAL),
        ([_TOKEN, _TOKEN], False, Outcome.TRUNCATED, Mark(0)),
        ([_TOKEN, {"error": {"message": "overloaded"}}], True, Outcome.ERROR_IN_200, Mark(0)),
        ([_TOKEN, {"error": "overloaded"}], False, Outcome.ERROR_IN_200, Mark(0)),
        ([_TOKEN, [1]], True, Outcome.BAD_EVENT, Mark(0)),
        ([_TOKEN, b"{"], True, Outcome.BAD_EVENT, Mark(0)),
        ([], True, Outcome.BAD_EVENT, Mark(0)),
        ([_LAST, b"[DONE]"], True, Outcome.OK, Mark.DUPLICATE_FINAL),
        ([_LAST, b"[DONE]", _TOKEN], False, Outcome.OK, Mark.LATE_DATA),
        ([b'{"choices":[{"text":"\xe5\xae","finish_reason":"stop"}]}'], True, Outcome.OK, Mark.INVALID_UTF8),
    ],
)
def test_every_end_of_a_stream_has_its_name(events: list[Any], done: bool, outcome: Outcome, mark: Mark) -> None:
    row = Running().stream(*events, done=done)
    assert Outcome(row["outcome"]) is outcome
    assert Mark(row["marks"]) & ~Mark.SHORT == mark


def test_errors_outside_of_a_stream_have_their_names() -> None:
    def answer(data: bytes) -> tuple[Outcome, str | None]:
        running = Running()
        running.exchange.receive(data, 0)
        return Outcome(running.record()["outcome"]), running.table.error_of(0)

    refused = b'{"error":"no such model"}'
    length = f"Content-Length: {len(refused)}\r\n"
    assert answer(head("application/json", 404, length) + refused) == (
        Outcome.HTTP_STATUS,
        'HTTP status 404: {"error":"no such model"}',
    )
    assert answer(head("application/json", 200, length) + refused)[0] is Outcome.ERROR_IN_200
    assert answer(b"SSH-2.0\r\n\r\n")[0] is Outcome.PROTOCOL_ERROR


def test_a_whole_answer_is_one_event() -> None:
    body = json.dumps(
        {"choices": [{"message": {"content": "all of it"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}
    ).encode()  # fmt: skip
    running = Running()
    running.exchange.receive(head("application/json", 200, f"Content-Length: {len(body)}\r\n") + body, 5)
    row = running.record()
    assert (row["outcome"], row["output_tokens"], row["input_tokens"], row["marks"]) == (Outcome.OK, 8, 3, 0)


def test_a_body_that_ends_with_the_connection_is_complete_then() -> None:
    running = Running(GenerateExchange)
    running.exchange.receive(head(more="") + b'data: {"text_output":"a","num_output_tokens":8}\n\n', 1)
    running.exchange.lost(2, "127.0.0.1:1 closed the connection", Outcome.CONNECTION_LOST)
    assert running.record()["outcome"] == Outcome.OK


def test_a_connection_that_ends_within_a_body_loses_the_answer() -> None:
    running = Running(GenerateExchange)
    running.exchange.receive(head() + b"5\r\ndata:", 1)
    running.exchange.lost(2, "127.0.0.1:1 closed the connection", Outcome.CONNECTION_LOST)
    assert running.record()["outcome"] == Outcome.CONNECTION_LOST
