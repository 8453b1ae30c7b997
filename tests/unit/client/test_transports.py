"""What holds for every client: threads or event loop, gRPC or HTTP. The server is the mock, so what it did is known."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.asking import KINDS, Ask, Asker
from tests.unit.client.test_mock_server import expected

from trtbuild_client import (
    AsyncClient,
    Cancelled,
    Client,
    ClientError,
    ConnectError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Retry,
    ServerBusy,
    ServerError,
    Tls,
    Unauthorized,
)
from trtbuild_client.connection import connection
from trtbuild_client.mock.distributions import constant
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    """A mock without faults of its own; prompts ask for them."""
    with running() as server:
        yield server


def test_answers_come_whole_and_in_pieces(ask: Ask) -> None:
    assert ask().generate("hello there", max_tokens=24).text == expected(24)
    pieces, generation = ask().stream("hello there", max_tokens=24)
    assert "".join(pieces) == generation.text == expected(24)
    assert len(pieces) == 24
    assert (generation.finish_reason, generation.num_output_tokens) == ("length", 24)


@pytest.mark.parametrize("release", ["0.17", "0.19", "1.2"])
def test_names_of_every_release_are_used(ask: Ask, release: str) -> None:
    with running(MockOptions(release=release)) as old:
        answer = ask(old).generate("x", max_tokens=4, seed=3, min_tokens=4, top_k=5, stop_words=["never"])
    assert answer.text == expected(4)


def test_the_llm_api_model_is_asked_by_its_names_and_its_text_is_not_repeated(ask: Ask) -> None:
    with running(MockOptions(variant="llmapi")) as server:
        asker = ask(server, model="tensorrt_llm")
        pieces, generation = asker.stream(
            "x", max_tokens=6, temperature=0.5, top_p=0.9, seed=1, return_perf_metrics=True
        )
        whole = asker.generate("a prompt", max_tokens=6, stop_words=["never"])
    assert "".join(pieces) == whole.text == expected(6)
    assert (generation.finish_reason, whole.finish_reason) == ("length", "length")
    assert generation.record.server is not None
    assert generation.record.server.queue_ns is not None and generation.record.server.queue_ns >= 0
    assert generation.record.server.kv_cache_alloc_total_blocks is None


def test_a_bls_that_accumulates_tokens_is_recognized(ask: Ask) -> None:
    with running(MockOptions(has_cumulative_bls=True)) as server:
        pieces, _ = ask(server, model="tensorrt_llm_bls").stream("x", max_tokens=5)
    assert "".join(pieces) == expected(5)


def test_models_that_are_not_decoupled_answer_whole() -> None:
    """Over gRPC by ModelInfer, over HTTP by generate."""
    with running(MockOptions(is_decoupled=False)) as server:
        for kind in KINDS:
            assert Asker(kind, server, {}).generate("x", max_tokens=4).text == expected(4)
            with pytest.raises(InvalidRequest, match="not decoupled"):
                Asker(kind, server, {}).stream("x", max_tokens=4)


@pytest.mark.parametrize("fault", ["no_final", "duplicate_final", "cut_utf8"])
def test_the_end_is_found_and_every_character_is_whole(ask: Ask, fault: str) -> None:
    """A JSON document cannot be cut within a character; the mock sends the raw bytes nevertheless, as Triton does."""
    pieces, generation = ask().stream(f"[mock fault={fault}]", max_tokens=24)
    assert "".join(pieces) == expected(24)
    assert (generation.record.outcome, generation.num_output_tokens) == ("ok", 24)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("error at=2", ServerError, "told to fail"),
        ("error_without_id at=2", ServerError, "told to fail"),
        ("error", ServerError, "told to fail"),
        ("http_200_error", ServerError, "told to fail"),
        ("busy", ServerBusy, "queue"),
        ("reset at=2", ClientError, "127.0.0.1"),
        ("drop at=2", ConnectError, "127.0.0.1"),
        ("broken_event at=2", ClientError, "."),
    ],
)
def test_a_failure_is_of_its_kind_and_keeps_what_had_come(
    ask: Ask, fault: str, error: type[ClientError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        ask().stream(f"[mock fault={fault}]", max_tokens=6)
    assert caught.value.hint
    assert caught.value.partial_text == (expected(2) if "at=2" in fault else "")


def test_a_whole_answer_fails_as_a_stream_does(ask: Ask) -> None:
    for fault in ("error", "http_200_error", "drop", "broken_event"):
        with pytest.raises(ClientError):
            ask().generate(f"[mock fault={fault}]", max_tokens=6)


def test_leaving_a_stream_cancels_it_on_the_server(ask: Ask, mock: RunningMock) -> None:
    started = time.monotonic()
    pieces, generation = ask().stream("[mock itl=100ms]", leave_after=2, max_tokens=400, request_id=f"left-{id(ask)}")
    assert time.monotonic() - started < 10  # all of it would take 40 s
    assert (len(pieces), generation.finish_reason) == (2, "cancelled")
    ended = {entry["request_id"]: entry["outcome"] for entry in _settled(mock)}
    assert ended[f"left-{id(ask)}"] == "cancelled"


def _settled(mock: RunningMock) -> list[dict[str, Any]]:
    """Return the recorded requests as soon as none runs; the server learns of a cancellation a moment later."""
    for _ in range(200):
        entries: list[dict[str, Any]] = mock.schedule()["requests"]
        if all(entry["outcome"] != "running" for entry in entries):
            return entries
        time.sleep(0.05)
    raise AssertionError("a request never ended")


def test_a_running_request_can_be_cancelled_by_its_id(mock: RunningMock) -> None:
    for scheme, address in (("grpc", mock.grpc), ("http", mock.http)):
        with Client(f"{scheme}://{address}") as client:
            stream = client.stream("[mock fault=stall at=1]", max_tokens=5, request_id="mine")
            reader = iter(stream)
            next(reader)
            threading.Timer(0.1, client.cancel, ["mine"]).start()
            assert list(reader) == []
            assert stream.generation.finish_reason == "cancelled"
            assert not client.cancel("mine")

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            stream = client.stream("[mock fault=stall at=1]", max_tokens=5, request_id="mine")
            async for _ in stream:
                asyncio.get_running_loop().call_later(0.1, client.cancel, "mine")
            assert stream.generation.finish_reason == "cancelled"
            task = asyncio.ensure_future(client.generate("[mock fault=stall at=1]", max_tokens=5, request_id="other"))
            while "other" not in client._running:
                await asyncio.sleep(0.01)
            client.cancel_all()
            with pytest.raises(Cancelled):
                await task

    for url in (f"grpc://{mock.grpc}", f"http://{mock.http}"):
        asyncio.run(main(url))


def test_a_cancelled_task_is_cancelled_and_its_request_too(mock: RunningMock) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            task = asyncio.ensure_future(client.generate("[mock fault=stall]", max_tokens=5, request_id="task"))
            while "task" not in client._running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert "task" not in client._running

    for url in (f"grpc://{mock.grpc}", f"http://{mock.http}"):
        asyncio.run(main(url))
        assert all(entry["outcome"] == "cancelled" for entry in _settled(mock) if entry["request_id"] == "task")


@pytest.mark.parametrize(
    ("prompt", "limits", "phase"),
    [
        ("[mock fault=stall]", {"first_token_timeout_s": 0.3}, "first_token"),
        ("[mock fault=stall at=1]", {"between_tokens_timeout_s": 0.3}, "between_tokens"),
        ("[mock fault=stall at=1]", {"timeout_s": 0.5}, "total"),
    ],
)
def test_every_phase_has_a_deadline_of_its_own(ask: Ask, prompt: str, limits: dict[str, float], phase: str) -> None:
    """Tolerance: never early, and at most 5 s late on a busy machine."""
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="within 0") as caught:
        ask(**limits).stream(prompt, max_tokens=4)
    assert caught.value.phase == phase
    assert min(limits.values()) <= time.monotonic() - started < min(limits.values()) + 5


def test_a_slow_reader_does_not_pass_a_deadline_between_tokens(mock: RunningMock) -> None:
    for url in (f"grpc://{mock.grpc}", f"http://{mock.http}"):
        with Client(url, between_tokens_timeout_s=0.4) as client:
            for index, _ in enumerate(client.stream("x", max_tokens=3)):
                if index == 0:
                    threading.Event().wait(0.6)


def test_a_closed_port_is_found_at_once_and_silence_at_the_deadline(ask: Ask, mock: RunningMock) -> None:
    class Nowhere:
        grpc = http = "127.0.0.1:1"

    started = time.monotonic()
    with pytest.raises(ConnectError, match="127.0.0.1:1") as caught:
        ask(Nowhere()).generate("x")  # type: ignore[arg-type]  # has what the asker needs of a mock
    assert caught.value.is_unsent
    assert time.monotonic() - started < 10
    with socket.create_server(("127.0.0.1", 0)) as silent:

        class Silent:
            grpc = http = f"127.0.0.1:{silent.getsockname()[1]}"

        with pytest.raises(ConnectError, match="within 0.5 s|no connection"):
            ask(Silent(), connect_timeout_s=0.5).generate("x")  # type: ignore[arg-type]  # likewise


def test_what_was_never_taken_up_is_sent_again(ask: Ask) -> None:
    """The first request is refused (queue full); with the mock's only place free again, a later attempt succeeds."""
    options = MockOptions(max_concurrency=1, max_queue=0, ttft_ns=constant(300_000_000))
    with running(options) as server, Client(server.grpc) as other:
        holder = threading.Thread(target=lambda: list(other.stream("x", max_tokens=1)))
        holder.start()
        while not server.schedule()["requests"]:
            threading.Event().wait(0.01)
        answer = ask(server, retry=Retry(attempts=60, first_s=0.05, most_s=0.1)).generate("x", max_tokens=3)
        holder.join()
        entries = server.schedule()["requests"]
    assert answer.text == expected(3)
    assert [entry["outcome"] for entry in entries].count("failed") >= 1


@pytest.mark.parametrize("fault", ["error", "drop", "reset", "drop at=1", "error at=1", "broken_event"])
def test_what_may_have_been_taken_up_is_never_sent_again(ask: Ask, fault: str) -> None:
    with running() as server:
        with pytest.raises(ClientError):
            ask(server, retry=Retry(attempts=5, first_s=0.01)).stream(f"[mock fault={fault}]", max_tokens=3)
        assert len(server.schedule()["requests"]) == 1


def test_attempts_end_and_stay_within_the_deadline(ask: Ask) -> None:
    with running() as server:
        with pytest.raises(ServerBusy):
            ask(server, retry=Retry(attempts=3, first_s=0.01)).generate("[mock fault=busy]")
        assert len(server.schedule()["requests"]) == 4
        with pytest.raises(DeadlineExceeded, match="over several attempts|no complete answer"):
            ask(server, retry=Retry(attempts=100, first_s=0.2), timeout_s=0.5).generate("[mock fault=busy]")


def test_pauses_are_drawn_below_a_bound_that_doubles() -> None:
    retry = Retry(attempts=9, first_s=0.1, most_s=0.5)
    for attempt, most_s in enumerate((0.1, 0.2, 0.4, 0.5, 0.5)):
        pauses = [retry.pause_s(attempt) for _ in range(200)]
        assert 0 <= min(pauses) < max(pauses) <= most_s


def test_a_batch_keeps_its_order_and_each_failure_to_itself(ask: Ask) -> None:
    prompts = [f"[mock tokens={index + 1} ttft={60 - 5 * index}ms]" for index in range(12)]
    prompts[3] = "[mock fault=error at=1]"
    prompts[7] = "[mock fault=boom]"
    results = ask().batch(prompts, concurrency=5, max_tokens=20)
    assert [result.error is not None for result in results] == [index in (3, 7) for index in range(12)]
    assert [result.text for result in results if result.generation] == [
        expected(n + 1) for n in range(12) if n not in (3, 7)
    ]
    with pytest.raises(ServerError):
        _ = results[3].text


def test_a_batch_never_has_more_in_flight_than_allowed(ask: Ask) -> None:
    with running(MockOptions(max_concurrency=3, max_queue=0, itl_ns=constant(1_000_000))) as server:
        results = ask(server).batch(["x"] * 20, concurrency=3, max_tokens=3)
        assert ask(server).batch([], concurrency=3) == []
    # More than three at once would be refused by the server.
    assert [result.error for result in results] == [None] * 20
    for concurrency in (0, True, 1.5):
        with pytest.raises(InvalidRequest, match="concurrency"):
            ask().batch(["x"], concurrency=concurrency)
    with pytest.raises(InvalidRequest, match="one str"):
        ask().batch("x")


def test_a_chat_is_made_text_by_a_template_or_by_a_server_that_is_said_to_have_one(ask: Ask, mock: RunningMock) -> None:
    def template(messages: Any) -> str:
        return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>[mock tokens=2]"

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert ask().chat(messages, template=template, max_tokens=9).text == expected(2)
    user = [{"role": "user", "content": "[mock tokens=3] Hi"}]
    assert ask().chat(user, template="user", max_tokens=9).text == expected(3)
    assert ask().chat(user, template="messages", max_tokens=9).text == expected(3)
    with pytest.raises(InvalidRequest, match="1 message\\(s\\) \\(user\\), and nothing says that the server applies"):
        ask().chat(user)
    with pytest.raises(
        InvalidRequest, match="2 message\\(s\\) \\(system, user\\), and the server's chat template takes"
    ):
        ask().chat(messages, template="user")
    with pytest.raises(InvalidRequest, match="one of 'messages', 'user', 'none'"):
        ask().chat(messages, template="mine")
    for wrong in ("hi", [], [{"role": "user"}], ["hi"], [{"role": "user", "content": None}]):
        with pytest.raises(InvalidRequest):
            ask().chat(wrong)
    with pytest.raises(InvalidRequest, match="tokenize=False"):
        ask().chat(messages, template=lambda _: [1, 2])


def test_a_token_is_sent_with_every_request_and_told_to_nobody(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(MockOptions(token="s3cret")) as server:
        assert ask(server, token="s3cret").generate("x", max_tokens=2).text == expected(2)
        for options in ({}, {"token": "wr0ng"}):
            with pytest.raises(Unauthorized) as caught:
                ask(server, **options).check_ready() if not options else ask(server, **options).generate("x")
            assert "wr0ng" not in str(caught.value) + repr(caught.value)
    assert "s3cret" not in caplog.text and "wr0ng" not in caplog.text
    assert "s3cret" not in repr(connection("127.0.0.1:1", token="s3cret", headers={"x-key": "s3cret"}))


@pytest.mark.parametrize("name", ["bad\nname", "", "ümlaut"])
def test_headers_that_cannot_be_sent_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="header"):
        Client("127.0.0.1:1", headers={name: "x"})
    with pytest.raises(InvalidRequest, match="header 'authorization'"):
        Client("127.0.0.1:1", token="two\r\nlines")


def test_messages_that_are_too_long_are_refused_in_both_directions(ask: Ask) -> None:
    with pytest.raises(InvalidRequest, match="more than max_message_bytes=20000"):
        ask(max_message_bytes=20_000).generate("x" * 40_000, max_tokens=2)
    # grpc.aio does not say why.
    with pytest.raises(ClientError, match="max_message_bytes|Internal error from Core"):
        ask(max_message_bytes=20_000).generate("x", max_tokens=20_000)


def test_an_unknown_model_is_named(ask: Ask) -> None:
    with pytest.raises(ModelNotFound, match="nope"):
        ask(model="nope").generate("x")
    with pytest.raises(ModelNotFound, match="nope"):
        ask(model="nope").check_ready()
    ask().check_ready()


def test_text_of_any_kind_arrives_as_it_was_sent(ask: Ask, mock: RunningMock) -> None:
    """The mock repeats the prompt in front of a whole answer when it is not told otherwise."""
    for prompt in ("Яблоко 🙂", 'quote " backslash \\ line\nfeed \x00 end', "[mock tokens=1] \u2028"):
        text = ask().generate(prompt, max_tokens=1, exclude_input_in_output=False).text
        assert text == prompt + expected(1)


def test_http_connections_are_used_again(mock: RunningMock) -> None:
    with Client(f"http://{mock.http}") as client:
        client.generate("x", max_tokens=2)
        transport: Any = client._transport
        (kept,) = transport._idle
        for _ in range(3):
            client.generate("x", max_tokens=2)
            list(client.stream("x", max_tokens=2))
        assert transport._idle == [] or transport._idle == [kept] or len(transport._idle) == 1


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    with running() as server:
        client = Client(f"http://{server.http}", retry=Retry(attempts=2))
        client.generate("x", max_tokens=2)
        for each in list(server.server._connections):
            server.loop.call_soon_threadsafe(each.close)
        threading.Event().wait(0.2)
        assert client.generate("x", max_tokens=2).text == expected(2)
        client.close()


def test_ids_and_timeouts_reach_the_server_in_its_own_unit(mock: RunningMock) -> None:
    from trtbuild_client import http_documents
    from trtbuild_client.wire import WireRequest

    document = json.loads(http_documents.body(WireRequest("m", "id-1", (), 5.0)))
    assert document == {"id": "id-1", "timeout": 5_000_000}


def test_tls_is_spoken_and_strangers_are_not_believed(ask: Ask, certificates: Path) -> None:
    options = MockOptions(tls_cert=certificates / "server.pem", tls_key=certificates / "server.key")
    with running(options) as server:
        assert ask(server, tls=Tls(ca=certificates / "ca.pem")).stream("x", max_tokens=3)[0] == [
            expected(1),
            " sky",
            " is",
        ]
        with pytest.raises(ConnectError):
            ask(server, tls=Tls(ca=certificates / "other.pem"), connect_timeout_s=5).generate("x")


def test_a_client_shows_its_certificate_where_it_is_asked_for(ask: Ask, certificates: Path) -> None:
    options = MockOptions(
        tls_cert=certificates / "server.pem", tls_key=certificates / "server.key", tls_ca=certificates / "ca.pem"
    )
    own = Tls(ca=certificates / "ca.pem", cert=certificates / "client.pem", key=certificates / "client.key")
    with running(options) as server:
        assert ask(server, tls=own).generate("x", max_tokens=3).text == expected(3)
        with pytest.raises(ConnectError):
            ask(server, tls=Tls(ca=certificates / "ca.pem"), connect_timeout_s=5).generate("x")


def test_a_server_may_be_known_by_another_name(ask: Ask, certificates: Path) -> None:
    options = MockOptions(tls_cert=certificates / "named.pem", tls_key=certificates / "named.key")
    with running(options) as server:
        named = Tls(ca=certificates / "ca.pem", server_name="llm.example")
        assert ask(server, tls=named).generate("x", max_tokens=3).text == expected(3)
        with pytest.raises(ConnectError):
            ask(server, tls=Tls(ca=certificates / "ca.pem"), connect_timeout_s=5).generate("x")


def test_tls_files_that_cannot_be_used_are_refused(ask: Ask, mock: RunningMock, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"TLS file|TLS files"):
        ask(tls=Tls(ca=tmp_path / "missing.pem")).generate("x")
    with pytest.raises(InvalidRequest, match="needs its key"):
        Tls(cert=tmp_path / "cert.pem")
    with pytest.raises(InvalidRequest, match="not encrypted"):
        Client("http://127.0.0.1:1", tls=Tls())


def test_a_request_that_is_given_up_while_the_client_is_closed_ends_quietly(
    mock: RunningMock, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader's thread may close the client while another thread is still telling the server to stop."""
    for scheme, address in (("grpc", mock.grpc), ("http", mock.http)):
        client = Client(f"{scheme}://{address}")
        stream = client.stream("[mock fault=stall at=1]", max_tokens=5)
        reader = iter(stream)
        next(reader)
        transport = client._transport
        start = transport.start

        def closed(*given: Any, client: Client = client, start: Any = start) -> Any:
            client.close()
            return start(*given)

        transport.start = closed  # type: ignore[method-assign]
        stream.cancel()
        assert list(reader) == []
    assert "given up" not in caplog.text
