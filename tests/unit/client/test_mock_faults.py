"""Faults on purpose: each does what its description says, for whom it is meant and for nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

import grpc
import pytest
from tests.unit.client.test_mock_server import ask, events, expected, infer, replies

from trtbuild_client import Client, ClientError, InvalidRequest
from trtbuild_client.hpack import Decoder, HpackError, encode
from trtbuild_client.mock.distributions import constant, parse_counts, parse_ns
from trtbuild_client.mock.faults import KINDS, Fault, FaultShare, directives, parse_share
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.schedule import plan
from trtbuild_client.mock.server import RunningMock, running


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    """A mock without faults of its own; prompts ask for them."""
    with running() as server:
        yield server


def texts(messages: list[Any]) -> list[str]:
    """Return the text of every response that has some, without its length."""
    return [each.infer_response.raw_output_contents[0][4:].decode() for each in messages if each.infer_response.outputs]


def finals(messages: list[Any]) -> int:
    return sum(each.infer_response.parameters["triton_final_response"].bool_param for each in messages)


@pytest.mark.parametrize(("kind", "name"), [("error", "r1"), ("error_without_id", "<id_unknown>")])
def test_an_error_comes_as_a_message_of_the_stream_after_the_tokens_before_it(
    mock: RunningMock, kind: str, name: str
) -> None:
    found = list(replies(mock, infer("r1", f"[mock fault={kind} at=2]", 5)))
    assert texts(found) == [expected(1), expected(2)[len(expected(1)) :]]
    assert found[-1].error_message == f"[request id: {name}] the mock was told to fail"
    assert finals(found) == 0


def test_an_error_within_an_event_stream_leaves_the_status_alone(mock: RunningMock) -> None:
    body = {"text_input": "[mock fault=error at=1]", "max_tokens": 3, "stream": True}
    status, answer = ask(mock, "/v2/models/ensemble/generate_stream", body)
    assert (status, [sorted(each)[0] for each in events(answer)]) == (200, ["model_name", "error"])


@pytest.mark.parametrize(("kind", "status"), [("error", 500), ("http_200_error", 200), ("busy", 503)])
def test_an_error_before_the_first_token_has_a_status(mock: RunningMock, kind: str, status: int) -> None:
    for path in ("generate", "generate_stream"):
        code, body = ask(mock, f"/v2/models/ensemble/{path}", {"text_input": f"[mock fault={kind}]", "max_tokens": 3})
        assert code == status
        assert "error" in json.loads(body)


@pytest.mark.parametrize("kind", ["reset", "drop"])
def test_a_broken_stream_breaks_after_the_tokens_before_it(mock: RunningMock, kind: str) -> None:
    stream = replies(mock, infer("", f"[mock fault={kind} at=1]", 5))
    assert texts([next(stream)]) == [expected(1)]
    with pytest.raises(grpc.RpcError):
        next(stream)
    body = {"text_input": f"[mock fault={kind} at=1]", "max_tokens": 3, "stream": True}
    with pytest.raises((OSError, HTTPException)):
        ask(mock, "/v2/models/ensemble/generate_stream", body)


@pytest.mark.parametrize(("kind", "number"), [("no_final", 0), ("duplicate_final", 2)])
def test_the_end_is_said_as_often_as_the_fault_says(mock: RunningMock, kind: str, number: int) -> None:
    found = list(replies(mock, infer("", f"[mock fault={kind}]", 3)))
    assert "".join(texts(found)) == expected(3)
    assert finals(found) == number


def test_silence_lasts_until_the_client_gives_up(mock: RunningMock) -> None:
    with Client(mock.grpc, between_tokens_timeout_s=0.2) as client, pytest.raises(ClientError, match="further token"):
        list(client.stream("[mock fault=stall at=2]", max_tokens=5, request_id="silent"))
    entries = {each["request_id"]: each for each in mock.schedule()["requests"]}
    assert (entries["silent"]["fault"], sum(entries["silent"]["tokens"])) == ("stall", 2)


def test_characters_are_divided_but_not_lost(mock: RunningMock) -> None:
    found = list(replies(mock, infer("", "[mock fault=cut_utf8]", 24)))
    pieces = [each.infer_response.raw_output_contents[0][4:] for each in found if each.infer_response.outputs]
    assert b"".join(pieces).decode() == expected(24)
    broken = [piece for piece in pieces if piece.decode("utf-8", "ignore").encode() != piece]
    assert len(broken) >= 4


def test_the_last_character_may_be_cut(mock: RunningMock) -> None:
    with Client(mock.grpc) as client:
        assert client.generate("[mock fault=truncated_utf8]", max_tokens=3).text == expected(3) + "\ufffd"
    _, body = ask(mock, "/v2/models/ensemble/generate", {"text_input": "[mock fault=truncated_utf8]", "max_tokens": 3})
    with pytest.raises(UnicodeDecodeError):
        body.decode()


@pytest.mark.parametrize(("text", "tokens"), [("truncated", 4), ("truncated at=3", 3)])
def test_an_answer_may_be_shorter_than_asked_for(mock: RunningMock, text: str, tokens: int) -> None:
    with Client(mock.grpc) as client:
        assert client.generate(f"[mock fault={text}]", max_tokens=8).num_output_tokens == tokens


def test_what_is_no_message_is_sent_as_one(mock: RunningMock) -> None:
    with pytest.raises(grpc.RpcError):
        list(replies(mock, infer("", "[mock fault=broken_event at=1]", 3)))
    body = {"text_input": "[mock fault=broken_event]", "max_tokens": 3}
    assert b'{"text_output":"cdata: ' in ask(mock, "/v2/models/ensemble/generate_stream", body)[1]


def test_a_request_may_be_taken_up_late() -> None:
    fault = FaultShare(Fault("slow_accept", delay_ns=100_000_000), 1.0)
    with running(MockOptions(faults=(fault,))) as mock, Client(mock.grpc) as client:
        client.generate("x", max_tokens=1)
        (entry,) = mock.schedule()["requests"]
    assert entry["started_ns"] - entry["received_ns"] >= 100_000_000


def test_shares_of_the_requests_are_met_by_number_whatever_the_order() -> None:
    options = MockOptions(faults=(parse_share("error@2=0.3"), parse_share("reset=0.2")), seed=7)
    kinds = [
        None
        if (fault := plan(options, index, "x", max_tokens=4, input_tokens=1, is_cached=False).fault) is None
        else fault
        for index in range(2000)
    ]
    again = [plan(options, index, "x", max_tokens=4, input_tokens=1, is_cached=False).fault for index in range(2000)]
    assert kinds == again
    assert kinds.count(Fault("error", 2)) == pytest.approx(600, abs=60)
    assert kinds.count(Fault("reset")) == pytest.approx(400, abs=60)


def test_every_fault_leaves_the_server_usable(mock: RunningMock) -> None:
    for kind in KINDS:
        if kind not in ("stall", "slow_accept"):
            with pytest.raises((grpc.RpcError, StopIteration)):
                stream = replies(mock, infer("", f"[mock fault={kind}]", 2))
                while True:
                    next(stream)
    with Client(mock.grpc) as client:
        assert client.generate("x", max_tokens=3).text == expected(3)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("nonsense=0.1", "unknown fault 'nonsense'"),
        ("error", "KIND=SHARE"),
        ("error=1.5", "KIND=SHARE"),
        ("error=-1", "KIND=SHARE"),
    ],
)
def test_what_is_no_fault_is_refused(given: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        parse_share(given)


def test_shares_may_not_add_up_to_more_than_all() -> None:
    with pytest.raises(InvalidRequest, match="add up to 1.2"):
        MockOptions(faults=(parse_share("error=0.6"), parse_share("reset=0.6")))


def test_a_prompt_with_an_unknown_wish_is_refused(mock: RunningMock) -> None:
    with Client(mock.grpc) as client, pytest.raises(ClientError, match="unknown fault 'boom'"):
        client.generate("[mock fault=boom]", max_tokens=1)
    assert directives("say [mock a=1 b] and [mock c=2]") == {"a": "1", "b": ""}


@pytest.mark.parametrize(
    "text", ["20", "ms", "-1ms", "uniform:1ms", "lognormal:1ms", "list:", "constant:1ms,2ms", "nan"]
)
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_ns(text)


def test_times_and_counts_are_read_with_their_units() -> None:
    assert parse_ns("20ms") == constant(20e6)
    assert parse_ns("list:1ms,2us,3s").numbers == (1e6, 2e3, 3e9)
    assert parse_ns("lognormal:20ms,0.5").numbers == (20e6, 0.5)
    assert parse_counts("list:1,1,3").numbers == (1, 1, 3)
    with pytest.raises(InvalidRequest):
        parse_counts("0")


def test_header_blocks_of_the_standard_are_read() -> None:
    """RFC 7541, appendices C.4 (requests with Huffman coding) and C.5 (eviction from a table of 256 bytes)."""
    decoder = Decoder()
    first = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    assert decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == first
    assert decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf")) == [*first, (b"cache-control", b"no-cache")]
    third = decoder.decode(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"))
    assert third[-1] == (b"custom-key", b"custom-value")
    small = Decoder(256)
    small.decode(
        bytes.fromhex(
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470"
            "733a2f2f7777772e6578616d706c652e636f6d"
        )
    )
    assert small.decode(bytes.fromhex("4803333037c1c0bf"))[:2] == [(b":status", b"307"), (b"cache-control", b"private")]


def test_what_is_written_is_read_again() -> None:
    headers = [(b"grpc-message", b"x" * 300), (b":status", b"200"), (b"empty", b"")]
    assert Decoder().decode(encode(headers)) == headers


@pytest.mark.parametrize("block", ["ff", "00", "408825a849e95ba97d", "bf", "3fffffffff0f"])
def test_broken_header_blocks_are_refused(block: str) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(bytes.fromhex(block))
