"""What callers get when something fails, and what reaches the server when they leave."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.unit.client.fake_triton import data, end, failure
from tests.unit.gateway.running import PATIENCE_S, Running, Triton, command, running, wait_until

from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock
from trtbuild_client.mock.server import running as running_mock

SECRET = "the-password-is-swordfish"


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "ensemble", "prompt": prompt, "max_tokens": 8, **more}


@pytest.mark.parametrize("fault", ["error", "error_without_id", "reset", "broken_event"])
def test_a_stream_that_fails_half_way_keeps_its_text_and_ends_with_an_error(gateway: Running, fault: str) -> None:
    texts: list[str] = []
    before = gateway.metric("failed_streams_total")
    with gateway.openai() as client, pytest.raises(openai.APIError) as caught:
        for chunk in client.completions.create(**body(f"[mock fault={fault} at=3]"), stream=True):
            texts.append(chunk.choices[0].text)
    assert texts == [" the", " sky", " is"]
    assert isinstance(caught.value.body, dict) and caught.value.body["type"] == "server_error"
    raw = gateway.post("/v1/completions", body(f"[mock fault={fault} at=3]", stream=True))
    assert raw.status_code == 200
    assert b"[DONE]" not in raw.content, "a failed stream must not look complete"
    wait_until(lambda: gateway.metric("failed_streams_total") == before + 2, "counted")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("error at=0", 502, "upstream_error"), ("busy", 503, "server_busy"), ("reset at=0", 503, "cancelled")],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_its_own_status(
    gateway: Running, fault: str, status: int, code: str, stream: bool
) -> None:
    answer = gateway.post("/v1/completions", body(f"[mock fault={fault}]", stream=stream))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)
    assert "127.0.0.1" not in answer.text, "addresses behind the gateway are nobody's business"


@pytest.mark.parametrize("stream", [False, True])
def test_one_failed_answer_of_several_fails_the_request_and_gives_the_others_up(triton: Triton, stream: bool) -> None:
    gone = threading.Event()

    def script(request: Any, session: Any) -> Iterator[Any]:
        if request.id.endswith("-1"):
            yield failure("boom")
        session.hold()
        gone.set()

    triton.scripts["ensemble"] = script
    with running(triton.address) as gateway:
        answer = gateway.post("/v1/completions", body("x", n=2, stream=stream))
        assert answer.status_code == 502
        assert gone.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("the prompt has 300 tokens, and prompt and answer together at most 256", "context_length_exceeded"),
        ("Prompt length (300) exceeds maximum input length (256).", "context_length_exceeded"),
        ("QUERY is empty", "invalid_value"),
    ],
)
def test_what_is_the_requests_own_fault_is_a_bad_request(triton: Triton, text: str, code: str) -> None:
    triton.answer(failure(text))
    with running(triton.address) as gateway:
        answer = gateway.post("/v1/completions", body("x"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert text in answer.json()["error"]["message"]


def test_silence_ends_in_a_timeout(mock: RunningMock) -> None:
    with running(mock.grpc, first_token_timeout_s=0.3, between_tokens_timeout_s=0.3) as gateway:
        assert gateway.post("/v1/completions", body("[mock fault=stall at=0]")).status_code == 504
        assert gateway.post("/v1/completions", body("[mock fault=stall at=0]", stream=True)).status_code == 504
        late = gateway.post("/v1/completions", body("[mock fault=stall at=2]", stream=True))
        assert late.status_code == 200
        last = json.loads(late.text.strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "timeout"
    with running(mock.grpc, timeout_s=0.5) as gateway:
        assert gateway.post("/v1/completions", body("[mock fault=stall at=0]")).status_code == 504
        late = gateway.post("/v1/completions", body("[mock fault=stall at=2]", stream=True))
        assert json.loads(late.text.strip().rpartition("data: ")[2])["error"]["code"] == "timeout"
        assert gateway.gateway.gate.in_flight == 0


def outcome(mock: RunningMock, prompt_tokens: int) -> str:
    """Return how the mock's latest request with so many prompt tokens ended."""
    entries = [each for each in mock.schedule()["requests"] if each["input_tokens"] == prompt_tokens]
    return entries[-1]["outcome"] if entries else "none"


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_cancels_its_request_on_the_server(
    gateway: Running, mock: RunningMock, stream: bool
) -> None:
    size = 41 + stream  # words in the prompt, by which the mock's record is found
    prompt = "[mock itl=50ms] " + " ".join(["x"] * (size - 2))
    before = gateway.metric("disconnects_total")
    opened = socket.create_connection(gateway.url.removeprefix("http://").split(":"))
    raw = json.dumps(body(prompt, max_tokens=2000, stream=stream)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    opened.sendall(head.encode() + raw)
    wait_until(lambda: outcome(mock, size) == "running", "the request never came to the server")
    if stream:
        assert opened.recv(10)
    opened.close()
    wait_until(lambda: outcome(mock, size) == "cancelled", "the server works on for nobody")
    wait_until(lambda: gateway.metric("disconnects_total") == before + 1, "counted")
    assert gateway.gateway.gate.in_flight == 0


def test_leaving_openais_stream_cancels_the_request_on_the_server(gateway: Running, mock: RunningMock) -> None:
    with gateway.openai() as client:
        prompt = "[mock itl=20ms] " + " ".join(["x"] * 52)
        for _ in client.completions.create(model="ensemble", prompt=prompt, max_tokens=2000, stream=True):
            break
    wait_until(lambda: outcome(mock, 54) == "cancelled", "the server works on for nobody")


def test_fifty_streams_of_which_half_leave_are_all_right(gateway: Running, mock: RunningMock) -> None:
    prompt = "[mock itl=10ms] " + " ".join(["x"] * 63)

    async def main() -> list[str]:
        async with gateway.async_openai() as client:

            async def ask(number: int) -> str:
                stream = await client.completions.create(
                    model="ensemble", prompt=prompt, max_tokens=30 if number % 2 else 3000, stream=True
                )
                text = ""
                async with stream:
                    async for chunk in stream:
                        text += chunk.choices[0].text
                        if number % 2 == 0 and len(text) > 20:
                            break
                return text

            return await asyncio.gather(*(ask(number) for number in range(50)))

    texts = asyncio.run(main())
    assert len(set(texts[1::2])) == 1 and len(texts[1]) > 60
    wait_until(lambda: gateway.gateway.gate.in_flight == 0, "room was not given back")

    def ends() -> list[str]:
        return [each["outcome"] for each in mock.schedule()["requests"] if each["input_tokens"] == 65][-50:]

    wait_until(lambda: sorted(ends()) == ["cancelled"] * 25 + ["ok"] * 25, "each request has the end of its caller")


def test_memory_does_not_grow_with_requests_that_were_answered_or_left(tokenizer_dir: Path) -> None:
    def resident_kib(pid: int) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    async def load(url: str) -> None:
        async with httpx2.AsyncClient(timeout=20) as client:

            async def ask(number: int) -> None:
                content = json.dumps(body("x" * 2000, max_tokens=40, stream=True, n=1 + number % 2))
                kind = {"content-type": "application/json"}
                async with client.stream("POST", f"{url}/v1/completions", content=content, headers=kind) as answer:
                    async for _ in answer.aiter_bytes():
                        if number % 3 == 0:
                            break

            for _ in range(4):
                await asyncio.gather(*(ask(number) for number in range(25)))

    with running_mock(MockOptions(kept_requests=10)) as mock, command("--url", mock.grpc, "-q") as (process, url):
        asyncio.run(load(url))
        before = resident_kib(process.pid)
        for _ in range(3):
            asyncio.run(load(url))
        assert resident_kib(process.pid) - before < 6 * 1024, "KiB for 300 requests more"


def test_a_body_that_is_too_long_is_refused_announced_or_not(mock: RunningMock) -> None:
    with running(mock.grpc, max_body_bytes=1000) as gateway:
        assert gateway.post("/v1/completions", body("x" * 500)).status_code == 200
        answer = gateway.post("/v1/completions", body("x" * 1500))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        chunks = iter([b"x" * 600, b"x" * 600])
        kind = {"content-type": "application/json"}
        assert httpx2.post(f"{gateway.url}/v1/completions", content=chunks, headers=kind).status_code == 413


def test_a_body_that_never_arrives_gives_its_room_back(mock: RunningMock) -> None:
    with running(mock.grpc, body_timeout_s=0.3, max_in_flight=1) as gateway:
        with socket.create_connection(gateway.url.removeprefix("http://").split(":")) as opened:
            opened.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert b" 408 " in opened.recv(1000)
        assert gateway.post("/v1/completions", body("x")).status_code == 200


def test_more_answers_than_there_is_room_for_are_sent_away_until_there_is(mock: RunningMock) -> None:
    with running(mock.grpc, max_in_flight=2) as gateway, gateway.openai() as client:
        stream = client.completions.create(**body("[mock itl=50ms]", max_tokens=1000), stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**body("x", n=2))
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert client.completions.create(**body("x")).choices, "there is room for one"
        never = gateway.post("/v1/completions", body("x", n=3))
        assert never.status_code == 400, "coming back would not help"
        stream.close()
        wait_until(lambda: gateway.gateway.gate.in_flight == 0, "room was not given back")
        assert len(client.completions.create(**body("x", n=2)).choices) == 2


def test_a_server_that_is_not_there_makes_the_gateway_live_and_not_ready(unused: str) -> None:
    with running(unused) as gateway:
        assert gateway.get("/health/live").status_code == 200
        assert gateway.get("/health/ready").status_code == gateway.get("/health").status_code == 503
        answer = gateway.post("/v1/completions", body("x"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unreachable")
        assert answer.headers["retry-after"]


def test_a_server_that_comes_later_is_used_without_starting_the_gateway_again(unused: str) -> None:
    with running(unused) as gateway:
        assert gateway.post("/v1/completions", body("x")).status_code == 503
        with running_mock(MockOptions(grpc_port=int(unused.rpartition(":")[2]))):
            wait_until(lambda: gateway.get("/health/ready").status_code == 200, "ready")
            assert gateway.post("/v1/completions", body("x")).status_code == 200


@pytest.fixture
def unused() -> str:
    """An address on which nobody listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{opened.getsockname()[1]}"


def test_a_wrong_model_behind_is_the_gateways_fault_and_not_the_callers(mock: RunningMock) -> None:
    with running(mock.grpc, model="nope") as gateway:
        answer = gateway.post("/v1/completions", {"model": "nope", "prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_model")


def test_sigterm_lets_a_stream_end_and_takes_nothing_new(mock: RunningMock) -> None:
    with command("--url", mock.grpc) as (process, url):
        content = json.dumps(body("[mock itl=20ms]", max_tokens=60, stream=True))
        kind = {"content-type": "application/json"}
        with httpx2.stream("POST", f"{url}/v1/completions", content=content, headers=kind, timeout=20) as answer:
            pieces = answer.iter_bytes()
            first = next(pieces)
            process.send_signal(signal.SIGTERM)
            rest = b"".join(pieces)
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert process.wait(PATIENCE_S) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health/live")


def test_what_runs_longer_than_the_drain_time_is_cut_and_cancelled_on_the_server(mock: RunningMock) -> None:
    with command("--url", mock.grpc, "--drain-timeout", "1s") as (process, url):
        content = json.dumps(body("[mock itl=50ms] " + "x " * 70, max_tokens=5000, stream=True))
        kind = {"content-type": "application/json"}
        with httpx2.stream("POST", f"{url}/v1/completions", content=content, headers=kind, timeout=20) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            process.send_signal(signal.SIGTERM)
            text = b"".join(pieces)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert b'"code":"draining"' in text and b"[DONE]" not in text
    wait_until(lambda: outcome(mock, 72) == "cancelled", "the server works on for nobody")


def test_no_log_holds_a_prompt_an_answer_or_a_token(mock: RunningMock, tokenizer_dir: Path, triton: Triton) -> None:
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(logging.Formatter("%(name)s %(message)s").format(record))

    keep, token = Keep(), "a-token-of-some-length"
    root, own = logging.getLogger(), logging.getLogger("trtbuild.gateway")
    levels = root.level, own.level, own.propagate
    root.addHandler(keep)
    root.setLevel(logging.DEBUG)
    own.setLevel(logging.DEBUG)
    own.propagate = True
    triton.answer(failure(f"internal error: {SECRET}"))
    chat = {"model": "ensemble", "messages": [{"role": "user", "content": SECRET}]}
    try:
        for address in (mock.grpc, triton.address):
            with running(address, tokenizer_dir=tokenizer_dir, tokens=(token,), timeout_s=5) as gateway:
                auth = {"authorization": f"Bearer {token}"}
                gateway.post("/v1/chat/completions", chat, **auth)
                for fault in ("error at=2", "stall at=2", "reset at=1", "busy", "no_such_fault"):
                    gateway.post("/v1/completions", body(f"{SECRET} [mock fault={fault}]", stream=True), **auth)
                gateway.post("/v1/completions", {**body(SECRET), SECRET: 1, "stop": [SECRET, 3]}, **auth)
                gateway.post("/v1/completions", body(SECRET, temperature=SECRET), **auth)
                gateway.post("/v1/completions", body(SECRET, model=SECRET), **auth)
                gateway.post("/v1/completions", f'{{"prompt": "{SECRET}'.encode(), **auth)
                gateway.post(f"/v1/{SECRET}", {}, **auth)
                gateway.get(f"/v1/models/{SECRET}", **auth)
                gateway.get(
                    "/v1/models", authorization=f"Bearer {token}x", **{"x-request-id": f"{SECRET}\n"[:-1] + " x"}
                )
                broken = gateway.gateway.generator
                gateway.gateway.generator = _raises  # type: ignore[method-assign]
                assert gateway.post("/v1/completions", body(SECRET), **auth).status_code == 500
                gateway.gateway.generator = broken  # type: ignore[method-assign]
    finally:
        root.removeHandler(keep)
        root.setLevel(levels[0])
        own.setLevel(levels[1])
        own.propagate = levels[2]
    text = "\n".join(each for each in records if not each.startswith(("httpx2 ", "httpcore2.", "httpcore ")))
    assert "trtbuild.gateway completions 400" in text and "RuntimeError at" in text, "else the test proves nothing"
    assert SECRET not in text and "swordfish" not in text
    assert token not in text
    assert " sky" not in text


def _raises() -> Any:
    raise RuntimeError(f"a defect that quotes {SECRET}")


def test_a_caller_that_stops_reading_holds_nothing_beyond_the_timeout(
    triton: Triton, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton.answer(*[data("x" * 1_000_000)] * 40, end())
    log = logging.getLogger("trtbuild.gateway")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    with running(triton.address, timeout_s=3.0) as gateway, socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = gateway.url.removeprefix("http://").split(":")
        opened.connect((host, int(port)))
        raw = json.dumps(body("x", stream=True)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
        opened.sendall(head.encode() + raw)
        wait_until(lambda: gateway.metric("failed_streams_total") == 1, "the request never ends")
        assert gateway.gateway.gate.in_flight == 0
    assert "the caller does not read" in caplog.text, "else the test proves nothing"


def test_a_server_that_is_still_loading_is_asked_again_what_it_can(triton: Triton, tokenizer_dir: Path) -> None:
    triton.behind("tensorrt_llm", guided_decoding_backend="xgrammar")
    asked = {
        "model": "ensemble",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_object"},
    }
    triton.loading.add("tensorrt_llm")
    with running(triton.address, tokenizer_dir=tokenizer_dir) as gateway:
        assert gateway.post("/v1/chat/completions", asked).status_code == 503
        triton.loading.clear()
        assert gateway.post("/v1/chat/completions", asked).status_code == 200


def test_a_guarded_server_is_asked_with_the_gateways_own_token() -> None:
    with running_mock(MockOptions(token="tritons-own-token")) as guarded:
        with running(guarded.grpc, reach={"token": "tritons-own-token"}) as gateway:
            assert gateway.post("/v1/completions", body("x"), authorization="Bearer anything").status_code == 200
        with running(guarded.grpc) as gateway:
            answer = gateway.post("/v1/completions", body("x"), authorization="Bearer tritons-own-token")
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_refused")


def test_a_server_behind_http_answers_fails_and_is_cancelled_alike(mock: RunningMock) -> None:
    with running(f"http://{mock.http}") as gateway, gateway.openai() as client:
        chunks = list(client.completions.create(**body("x", max_tokens=24), stream=True))
        whole = client.completions.create(**body("x", max_tokens=24)).choices[0].text
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole and "家" in whole
        assert gateway.post("/v1/completions", body("[mock fault=error at=0]")).status_code == 502
        for _ in client.completions.create(**body("[mock itl=20ms] " + "x " * 80, max_tokens=2000), stream=True):
            break
    wait_until(lambda: outcome(mock, 82) == "cancelled", "the server works on for nobody")
