"""Events and HTTP responses out of byte streams, however they are divided."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.test_mock_server import expected

from trtbuild_client import Client, ServerError
from trtbuild_client.events import EventParser, documents
from trtbuild_client.http_documents import reply
from trtbuild_client.http_wire import ResponseParser
from trtbuild_client.mock.server import running
from trtbuild_client.tensors import encode
from trtbuild_client.wire import ModelInfo, TensorSpec

INFO = ModelInfo("m", {}, {"text_output": TensorSpec("BYTES", (-1,))}, 8, True)
A, B = b'data: {"text_output":"a"}', b'data: {"text_output":"b"}'
LEGAL = {
    "plain": A + b"\n\n" + B + b"\n\n",
    "crlf": A + b"\r\n\r\n" + B + b"\r\n\r\n",
    "cr": A + b"\r\r" + B + b"\r\r",
    "no space": (A + b"\n\n" + B + b"\n\n").replace(b"data: ", b"data:"),
    "comment": b": ping\n\n" + A + b"\n\n: ping\n" + B + b"\n\n",
    "two lines of data in one event": A + b"\n" + B + b"\n\n",
    "one document in two lines": b'data: {"text_output":\ndata: "a"}\n\n' + B + b"\n\n",
    "other fields": b"event: token\nid: 1\nretry: 5\n" + A + b"\n\n" + B + b"\n\n",
    "no blank line at the end": A + b"\n\n" + B,
}


def texts(stream: bytes, size: int) -> list[str]:
    """Return the texts of a stream that arrives in pieces of a size."""
    parser = EventParser()
    found = [data for at in range(0, len(stream), size) for data in parser.push(stream[at : at + size])] + parser.end()
    arrays = [reply(each, INFO, "host").outputs["text_output"] for data in found for each in documents(data)]
    return [bytes(array.ravel()[0]).decode() for array in arrays]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("form", LEGAL)
def test_every_legal_form_is_read_however_it_is_divided(form: str, size: int) -> None:
    assert texts(LEGAL[form], size) == ["a", "b"]


def test_characters_and_escapes_may_be_cut_at_every_byte() -> None:
    for document in ('{"text_output":"家🙂"}', '{"text_output":"\\u5bb6\\ud83d\\ude42"}'):
        stream = f"data: {document}\n\n".encode()
        for at in range(len(stream)):
            parser = EventParser()
            found = parser.push(stream[:at]) + parser.push(stream[at:])
            assert [json.loads(data) for data in found] == [{"text_output": "家🙂"}]


def test_a_broken_event_is_quoted_in_part_only() -> None:
    broken = b'data: {"text_output":"cdata: {"text_output":"' + b"x" * 1000 + b'"}\n\n'
    with pytest.raises(ServerError, match="cdata") as caught:
        texts(LEGAL["plain"] + broken, 5)
    assert len(caught.value.message) < 300


def test_bytes_that_are_no_text_are_kept() -> None:
    (document,) = documents(b'{"text_output":"a\xf0\x9f"}')
    assert bytes(reply(document, INFO, "host").outputs["text_output"][0]) == b"a\xf0\x9f"


def response(body: bytes, sizes: list[int]) -> bytes:
    """Return a response in chunks of these sizes."""
    chunks, at = b"", 0
    for size in [*sizes, len(body)]:
        part = body[at : at + size]
        at += size
        if part:
            chunks += b"%x;ext=1\r\n%b\r\n" % (len(part), part)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\ntrailer: x\r\n\r\n"


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.integers(1, 9), max_size=9),
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
)
def test_chunks_give_their_body_however_they_are_divided(body: bytes, sizes: list[int], steps: list[int]) -> None:
    data, parser, got, at, turn = response(body, sizes), ResponseParser(10_000), b"", 0, 0
    while at < len(data):
        assert not parser.is_done
        step = steps[turn % len(steps)]
        got += parser.push(data[at : at + step])
        at, turn = at + step, turn + 1
    assert (got, parser.is_done, parser.is_reusable) == (body, True, True)


def test_a_body_has_its_length_or_lasts_until_the_connection_ends() -> None:
    parser = ResponseParser(100)
    assert parser.push(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Nope\r\nContent-Length: 3\r\n\r\nab") == b"ab"
    assert not parser.eof()
    assert parser.push(b"c") == b"c" and parser.is_done and parser.head is not None and parser.head.status == 404
    parser = ResponseParser(100)
    assert parser.push(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nabc") == b"abc"
    assert not parser.is_done
    assert parser.eof() and not parser.is_reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(ServerError, match="HTTP response cannot be read"):
        ResponseParser(100).push(data)


@pytest.mark.parametrize(("is_batched", "shapes"), [(True, [(1, 3), (1, 1)]), (False, [(3,), (1,)])])
def test_ids_and_their_number_have_the_batch_dimension_the_model_has(
    is_batched: bool, shapes: list[tuple[int, ...]]
) -> None:
    ids = encode("input_ids", [0, 1, 2], TensorSpec("INT32", (-1,)), is_batched=is_batched)
    length = encode("input_lengths", 3, TensorSpec("INT32", (1,)), is_batched=is_batched)
    assert [ids.shape, length.shape] == shapes


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_one_client_serves_many_threads_and_may_be_closed_in_another(scheme: str) -> None:
    failures: list[BaseException] = []
    with running() as mock:
        client = Client(f"{scheme}://{mock.http if scheme == 'http' else mock.grpc}")

        def work() -> None:
            try:
                for _ in range(5):
                    assert client.generate("x", max_tokens=4).text == expected(4)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        closer = threading.Thread(target=client.close)
        closer.start()
        closer.join()
    assert failures == []
