"""Answers that are none: whatever JSON comes, one request fails by name and the run goes on."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.load.asked import Asked

from trtbuild_client.counts import MOST
from trtbuild_client.load.json_answers import Completion, Generated, Reader
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.sse import GenerateExchange, HttpExchange, OpenAiExchange
from trtbuild_client.mock.server import running
from trtbuild_client.text import encoded

Cli = Callable[..., tuple[int, str, str]]
_DONE = b"[DONE]"
_TOKEN = {"choices": [{"delta": {"content": "a"}}]}
_LAST = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}


def streamed(kind: type[HttpExchange], *events: Any) -> tuple[Outcome, str, dict[str, int]]:
    """Return what becomes of a stream of events: values, or bytes as they are."""
    asked = Asked(kind)
    raw = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    body = b"".join(b"data: %s\n\n" % each for each in raw)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    asked.exchange.receive(head.encode() + body, 1)
    return asked.record()


def whole(kind: type[HttpExchange], body: bytes) -> tuple[Outcome, str, dict[str, int]]:
    """Return what becomes of an answer that is not streamed."""
    asked = Asked(kind)
    asked.exchange.receive(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body, 1)
    return asked.record()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"object": "error", "message": "boom", "type": "InternalServerError", "param": None, "code": 500}, "boom (code 500)"),
        ({"object": "error", "message": "boom"}, "boom"),
        ({"error": {"message": "boom", "type": "x", "code": 500}}, "boom (code 500)"),
        ({"error": {"message": "boom", "code": "context_length_exceeded"}}, "boom (code context_length_exceeded)"),
        ({"error": "boom"}, "boom"),
        ({"error": "boom", "code": 500}, "boom (code 500)"),
        ({"error": {"detail": "boom"}}, '{"error": {"detail": "boom"}}'),
        ({"error": True}, '{"error": true}'),
        ({"message": "boom", "code": 500}, "boom (code 500)"),
        ({"object": "error"}, '{"object": "error"}'),
    ],
)  # fmt: skip
def test_every_form_of_an_error_is_an_error(event: dict[str, Any], text: str) -> None:
    expected = Outcome.ERROR_IN_200, f"an error with HTTP status 200: {text}"
    assert streamed(OpenAiExchange, event, _DONE)[:2] == expected
    assert streamed(OpenAiExchange, _TOKEN, event, _DONE)[:2] == expected
    assert whole(OpenAiExchange, json.dumps(event).encode())[:2] == expected
    if "error" in event:
        assert streamed(GenerateExchange, {"text_output": "a"}, event)[:2] == expected


@pytest.mark.parametrize(
    "events",
    [
        (),
        ({"choices": [{"delta": None}]},),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]},),
        ({"choices": []}, {"choices": None}),
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 0}},),
        ({},),
    ],
)
def test_what_never_was_an_answer_is_none(events: tuple[Any, ...]) -> None:
    outcome, error, _ = streamed(OpenAiExchange, *events, _DONE)
    assert (outcome, error) == (
        Outcome.BAD_EVENT,
        "an answer without text or reason to finish",
    )
    for event in events:
        assert whole(OpenAiExchange, json.dumps(event).encode())[0] is Outcome.BAD_EVENT


def test_an_object_without_outputs_is_no_answer_of_triton() -> None:
    expected = Outcome.BAD_EVENT, "an answer without text_output or num_output_tokens"
    assert whole(GenerateExchange, b"{}")[:2] == expected
    assert streamed(GenerateExchange, {"model_name": "m"}, {"model_name": "m"})[:2] == expected


def test_an_answer_of_no_tokens_is_one() -> None:
    for outcome, _, row in (
        streamed(OpenAiExchange, {"choices": [{"delta": {}, "finish_reason": "stop"}]}, _DONE),
        whole(OpenAiExchange, b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}'),
        streamed(OpenAiExchange, {"choices": [{"text": "", "finish_reason": "length"}]}, {"choices": [], "usage": {"completion_tokens": 0}}, _DONE),
        streamed(GenerateExchange, {"text_output": "", "num_output_tokens": 0}),
        streamed(GenerateExchange),  # no response but the end, as of a decoupled model that sends none
        whole(GenerateExchange, b'{"text_output":""}'),
    ):  # fmt: skip
        assert outcome is Outcome.OK and Mark(row["marks"]) == Mark.EMPTY
        assert row["output_tokens"] == 0


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"usage": {"completion_tokens": "5"}}, "usage.completion_tokens is '5': expected int | null, got str"),
        ({"usage": {"completion_tokens": -7}}, "usage.completion_tokens is -7: expected int >= 0"),
        ({"usage": {"completion_tokens": 1e30}}, "usage.completion_tokens is 1e+30: expected int | null, got float"),
        ({"usage": {"completion_tokens": MOST + 1}}, f"usage.completion_tokens is {MOST + 1}: expected int <= {MOST}"),
        ({"usage": {"completion_tokens": True}}, "usage.completion_tokens is True: expected int | null, got bool"),
        ({"usage": {"prompt_tokens": [1]}}, "usage.prompt_tokens is [1]: expected int | null, got array"),
        ({"usage": {"completion_tokens_details": 3}}, "usage.completion_tokens_details is 3: expected object | null, got int"),
        ({"usage": 5}, "usage is 5: expected object | null, got int"),
        ({"choices": 5}, "choices is 5: expected array | null, got int"),
        ({"choices": [5]}, "choices[0] is 5: expected object, got int"),
        ({"choices": [{"delta": {"content": 5}}]}, "choices[0].delta.content is 5: expected str | null, got int"),
        ({"choices": [{"text": ["a"]}]}, "choices[0].text is ['a']: expected str | null, got array"),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"x": 1}}}]}}]}, "arguments is {'x': 1}: expected str | null, got object"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_fails_its_request_by_name(event: dict[str, Any], text: str) -> None:
    outcome, error, row = streamed(OpenAiExchange, _TOKEN, event, _LAST, _DONE)
    assert outcome is Outcome.BAD_EVENT and error.startswith("an event whose ") and error.endswith(text)
    assert row["output_tokens"] == 1
    event["id"] = "\udcff"  # bytes that are no UTF-8 are read another way, which is as strict
    assert text in streamed(OpenAiExchange, json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogateescape"))[1]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"text_output": 5}, "an event whose text_output is 5: expected str | array | null, got int"),
        ({"text_output": "a", "num_output_tokens": -4}, "an event whose num_output_tokens is -4: expected int >= 0"),
        ({"text_output": "a", "num_output_tokens": 99999999999}, f"an event whose num_output_tokens is 99999999999: expected int <= {MOST}"),
        ({"text_output": "a", "num_output_tokens": "x"}, "num_output_tokens is 'x', no count"),
        ({"text_output": "a", "num_input_tokens": "99999999999"}, "num_input_tokens is '99999999999', no count"),
        ({"text_output": "a", "total_draft_tokens": 0.5}, "an event whose total_draft_tokens is 0.5: expected int | str | null, got float"),
    ],
)  # fmt: skip
def test_a_response_of_another_type_fails_its_request_by_name(event: dict[str, Any], text: str) -> None:
    assert streamed(GenerateExchange, event)[:2] == (Outcome.BAD_EVENT, text)
    assert whole(GenerateExchange, json.dumps(event).encode())[:2] == (Outcome.BAD_EVENT, text)


def test_statistics_come_as_texts_too_and_a_text_that_is_no_number_was_not_measured() -> None:
    event = {"text_output": ["a", "of another beam"], "num_output_tokens": "3", "kv_cache_reused_blocks": "None", "total_draft_tokens": "7"}  # fmt: skip
    outcome, _, row = streamed(GenerateExchange, event)
    assert outcome is Outcome.OK
    assert (row["output_tokens"], row["reused_blocks"], row["draft_tokens"]) == (3, -1, 7)


def test_sums_are_counts_too() -> None:
    usage = {
        "completion_tokens_details": dict.fromkeys(("accepted_prediction_tokens", "rejected_prediction_tokens"), MOST)
    }
    outcome, error, _ = streamed(OpenAiExchange, _LAST, {"choices": [], "usage": usage}, _DONE)
    assert outcome is Outcome.BAD_EVENT and "usage.completion_tokens_details" in error
    many = {"text_output": "a", "num_output_tokens": MOST}
    outcome, error, row = streamed(GenerateExchange, many, many)
    assert outcome is Outcome.BAD_EVENT and "tokens in one answer" in error and row["output_tokens"] == MOST


@pytest.mark.parametrize(
    "raw",
    [b"[" * 100_000, b'{"id":' + b"[" * 100_000, b'{"error":' + b"[" * 900 + b"]" * 900 + b"}", b'{"usage":{"completion_tokens":' + b"9" * 5000 + b"}}", b""],
)  # fmt: skip
def test_depth_and_length_break_nothing(raw: bytes) -> None:
    outcome, error, _ = streamed(OpenAiExchange, raw, _DONE)
    assert outcome in (Outcome.BAD_EVENT, Outcome.ERROR_IN_200) and len(error) < 400


def test_halves_of_characters_are_text_that_is_no_utf8() -> None:
    event = b'{"choices":[{"delta":{"content":"\\ud83d"},"finish_reason":"stop"}],"logprobs":NaN}'
    outcome, _, row = streamed(OpenAiExchange, event, _DONE)
    assert outcome is Outcome.OK and Mark.INVALID_UTF8 in Mark(row["marks"])
    assert encoded("\udce5") == b"\xe5"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def some(*names: str, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects with these fields, each of its own kind or any."""
    fields = {**dict.fromkeys(names, _JSON), **{name: each | _JSON for name, each in known.items()}}
    return st.fixed_dictionaries({}, optional=fields)


_PART = some("content", "reasoning", "role", tool_calls=st.lists(some(function=some("arguments")), max_size=2))
_EVENT = some(
    "error", "object", "message", "code", "text_output", "num_output_tokens", "num_input_tokens", "kv_cache_reused_blocks", "total_draft_tokens",
    choices=st.lists(some("text", "finish_reason", delta=_PART, message=_PART), max_size=2),
    usage=some("prompt_tokens", "completion_tokens", completion_tokens_details=some("accepted_prediction_tokens", "rejected_prediction_tokens")),
)  # fmt: skip


@given(events=st.lists(_EVENT | _JSON | st.binary(max_size=8), max_size=4), has_end=st.booleans())
def test_no_json_whatever_breaks_a_run(events: list[Any], has_end: bool) -> None:
    for kind in (OpenAiExchange, GenerateExchange):
        clean = [each.replace(b"\n", b"").replace(b"\r", b"") if isinstance(each, bytes) else each for each in events]
        outcome, error, row = streamed(kind, *clean, *([_DONE] if has_end else []))
        assert (outcome is Outcome.OK) == (not error)
        assert 0 <= row["output_tokens"] <= MOST
        for event in events:
            whole(kind, event if isinstance(event, bytes) else json.dumps(event).encode())


@given(event=_EVENT)
def test_both_ways_of_reading_give_the_same(event: dict[str, Any]) -> None:
    for kind in (Completion, Generated):
        read = []
        for more in (b"}", b', "id": "\xff"}' if event else b'"id": "\xff"}'):
            raw = json.dumps(event).encode()[:-1] + more
            try:
                read.append(repr(Reader(kind).read(raw)))
            except Exception as error:
                read.append(type(error).__name__ + str(error)[:20])
        assert read[0] == read[1]


@contextmanager
def server_of(bodies: Callable[[int], bytes]) -> Iterator[str]:
    """Answer request after request with a stream of events; give the address."""
    asked = iter(range(10**9))
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            with lock:
                body = bodies(next(asked))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("processes", [1, 2])
def test_one_odd_answer_costs_a_run_nothing_but_that_request(processes: int, tmp_path: Path, cli: Cli) -> None:
    good = b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in (_TOKEN, _LAST)) + b"data: [DONE]\n\n"
    odd = b'data: {"choices":[],"usage":{"completion_tokens":"5"}}\n\ndata: [DONE]\n\n'
    with server_of(lambda number: odd if number == 19 else good) as address:
        code, out, err = cli(
            "bench", "--url", address, "--api", "openai-chat", "--model", "m", "--requests", 20, "--concurrency", 2, "--warmup", 0,
            "--processes", processes, "--prompt", "x", "--output-tokens", 2, "--allow-invalid", "-o", tmp_path / "r.json",
        )  # fmt: skip
    assert "Traceback" not in err and "unexpected" not in err and "No such" not in err
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["runs"][0]["requests"]["by_outcome"] == {"ok": 19, "bad_event": 1}, (code, out, err)
    assert "usage.completion_tokens is '5'" in json.dumps(found)


@pytest.mark.parametrize("api", ["triton-grpc", "triton-http", "openai-chat", "openai-completions"])
def test_answers_of_no_tokens_say_nothing_of_who_counts(api: str, tmp_path: Path, cli: Cli) -> None:
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text('{"prompt":"[mock tokens=0]","max_tokens":10}\n{"prompt":"usual","max_tokens":20}\n')
    with running() as mock:
        url = mock.grpc if api == "triton-grpc" else f"http://{mock.http}"
        code, _, err = cli(
            "bench", "--url", url, "--api", api, "--dataset", dataset, "--requests", 2, "--allow-invalid", "-o", tmp_path / "r.json"
        )  # fmt: skip
    assert code == 0, err
    found = json.loads((tmp_path / "r.json").read_text())["runs"][0]
    assert found["requests"]["ok"] == 2 and found["requests"]["marks"]["empty"] == 1
    assert found["tokens"]["counted_by"] == ("usage" if api.startswith("openai") else "server")
    assert not any("does not count" in each for each in found["warnings"])


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions"])
def test_a_whole_answer_of_no_tokens_is_one(api: str, tmp_path: Path, cli: Cli) -> None:
    with running() as mock:
        code, _, err = cli(
            "bench", "--url", f"http://{mock.http}", "--api", api, "--no-stream", "--prompt", "[mock tokens=0]", "--requests", 1, "--allow-invalid",
            "-o", tmp_path / "r.json",
        )  # fmt: skip
    assert code == 0, err
    found = json.loads((tmp_path / "r.json").read_text())["runs"][0]
    assert found["requests"]["ok"] == 1 and found["tokens"]["counted_by"] is None
