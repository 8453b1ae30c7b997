"""Bodies, fields, tokens, ids, framing: what the gateway says yes and no to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from tests.unit.client.fake_triton import tokens
from tests.unit.gateway.running import Running, Triton, command, running

from trtbuild.errors import TrtbuildError
from trtbuild.gateway import requests, sse
from trtbuild.gateway.errors import ApiError
from trtbuild.gateway.fields import IGNORED, REFUSED
from trtbuild.gateway.http_body import parse
from trtbuild.gateway.metrics import Metrics
from trtbuild.gateway.settings import Settings, read_tokens
from trtbuild_client.mock.server import RunningMock

TEXT = {"model": "ensemble", "prompt": "x"}
CHAT = {"model": "ensemble", "messages": [{"role": "user", "content": "x"}]}
TOKEN = "0123456789abcdef"


def refusal(read: Any, body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True), ("top_p", 0), ("top_p", 2.0),
        ("top_p", 100), ("top_k", -1), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", 2**31), ("seed", -1), ("seed", 2**64),
        ("n", 0), ("n", True), ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("stop", ""),
        ("stop", ["a", ""]), ("stop", ["x"] * 17), ("stop", 3), ("stream", 1), ("stream", "true"), ("model", ""), ("prompt", ""),
        ("prompt", []), ("prompt", [1, 2]), ("prompt", [[1]]), ("prompt", 3), ("prompt", "\ud800"), ("stop", "\udfff"),
        ("logprobs", 1), ("logprobs", -1), ("stream_options", {"include_usage": True}), ("min_tokens", -1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_with_its_field(name: str, value: Any) -> None:
    param = refusal(requests.completion, {**TEXT, name: value}).param
    assert param is not None and param.partition(".")[0] == name


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages.0.colour"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, "response_format.json_schema.name"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_is_refused_with_its_field(change: dict[str, Any], param: str) -> None:
    assert refusal(requests.chat, {**CHAT, **change}).param == param


@pytest.mark.parametrize("read", [requests.chat, requests.completion])
def test_fields_follow_the_stated_rule(read: Any) -> None:
    body = CHAT if read is requests.chat else TEXT
    plain = read(body)
    for name in IGNORED:
        assert read({**body, name: "anything"}) == plain
    for name, (neutral, _) in REFUSED.items():
        assert read({**body, name: None}) == plain
        for value in neutral:
            assert read({**body, name: value}) == plain
        error = refusal(read, {**body, name: {"some": "thing"}})
        assert (error.param, error.code) == (name, "unsupported_parameter")
    assert refusal(read, {**body, "best_of": True}).param == "best_of", "true is not 1"
    misspelt = refusal(read, {**body, "max_tokns": 3})
    assert misspelt.code == "unknown_parameter" and "did you mean 'max_tokens'" in misspelt.message
    assert read({**body, "max_tokens": None}) == plain


def test_the_documentation_lists_the_fields_of_each_endpoint() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    table = page.partition("| Endpoint | Fields |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("|") and "---" not in line]
    said = {name.strip(" `"): {*re.findall(r"`(\w+)`", cell)} for name, cell in rows}
    both = said.pop("both") - {"include_usage"}
    assert {path: both | names for path, names in said.items()} == {
        "/v1/chat/completions": {*requests._Chat.__struct_fields__},
        "/v1/completions": {*requests._Completion.__struct_fields__},
    }


def test_the_documentation_names_every_field_that_is_ignored_or_refused() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    missing = [name for name in (*IGNORED, *REFUSED) if f"`{name}`" not in page]
    assert not missing


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [*IGNORED, *REFUSED, "model", "messages", "prompt", "n", "stop", "stream", "stream_options", "max_tokens", "logprobs",
     "response_format", "temperature", "seed", "role", "content", "type", "text", "json_schema", "schema", "name"]
)  # fmt: skip


@given(st.dictionaries(KEYS | st.text(max_size=9), JSON | st.dictionaries(KEYS, JSON, max_size=4), max_size=8))
def test_any_object_is_either_an_ask_or_a_bad_request(body: dict[str, Any]) -> None:
    for read in (requests.chat, requests.completion):
        for each in (body, {**TEXT, **body}, {**CHAT, **body}, {**CHAT, "messages": [body]}):
            try:
                read(each)
            except ApiError as error:
                assert error.status == 400
                json.loads(sse.document(error.document()))


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_either_an_object_or_a_bad_request(raw: bytes) -> None:
    try:
        assert isinstance(parse(raw), dict)
    except ApiError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'"x"', b"{", b"\xff", b"{" * 100_000, b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}", b'{"a": NaN}', b'{"a": -Infinity}'],
    ids=["empty", "list", "text", "cut", "no utf-8", "deep objects", "deep lists", "long number", "nan", "infinity"],
)  # fmt: skip
def test_a_malformed_body_is_a_bad_request_and_the_gateway_lives_on(gateway: Running, raw: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = gateway.post(path, raw)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert gateway.post("/v1/completions", {**TEXT, "max_tokens": 1}).status_code == 200


def test_other_content_types_paths_and_methods_get_openais_error_object(gateway: Running) -> None:
    form = gateway.post("/v1/completions", b"model=x", **{"content-type": "application/x-www-form-urlencoded"})
    for answer, status in (
        (form, 415),
        (gateway.get("/v1/nothing"), 404),
        (gateway.get("/v1/completions"), 405),
        (gateway.post("/v1/embeddings", {}), 404),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]


def test_a_request_keeps_its_id_if_that_is_a_plain_word(gateway: Running) -> None:
    assert gateway.get("/v1/models", **{"x-request-id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for odd in ("a b", "a\x7fb", "x" * 101, ""):
        assert gateway.get("/v1/models", **{"x-request-id": odd}).headers["x-request-id"].startswith("req-")
    assert (
        gateway.post("/v1/completions", {**TEXT, "stream": True}, **{"x-request-id": "s1"}).headers["x-request-id"]
        == "s1"
    )


def test_requests_of_one_id_do_not_get_into_each_others_way(triton: Triton) -> None:
    with running(triton.address) as gateway:
        for _ in range(2):
            gateway.post("/v1/completions", TEXT, **{"x-request-id": "same"})
    first, second = (request.id for request in triton.received)
    assert first != second and first.startswith("same-") and second.startswith("same-")


def test_only_who_has_a_token_may_ask_and_health_is_open(mock: RunningMock) -> None:
    with running(mock.grpc, tokens=(TOKEN, TOKEN + "2")) as gateway:
        for headers in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"},
                        {"authorization": "Bearer"}):  # fmt: skip
            for answer in (gateway.post("/v1/completions", TEXT, **headers), gateway.get("/metrics", **headers)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in answer.text
        assert gateway.get("/health/ready").status_code == 200
        for token in (TOKEN, TOKEN + "2"):
            with gateway.openai(api_key=token) as client:
                assert client.completions.create(model="ensemble", prompt="x", max_tokens=1).choices


def test_tokens_come_from_a_file_or_the_environment_and_are_in_no_message(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n\n  {TOKEN}2 \n")
    assert read_tokens(file, "ignored") == (TOKEN, TOKEN + "2")
    assert read_tokens(None, TOKEN) == (TOKEN,)
    assert read_tokens(None, None) == ()
    assert TOKEN not in repr(Settings(tokens=(TOKEN,)))
    for text, reason in (("", "no token"), ("short", "5 characters"), (TOKEN + " x", "signs"), (TOKEN + "家", "signs")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(TrtbuildError, match=reason) as caught:
            read_tokens(file, None)
        assert text.strip() == "" or text not in str(caught.value)
    with pytest.raises(TrtbuildError, match="cannot be read"):
        read_tokens(tmp_path / "nothing", None)
    with pytest.raises(TrtbuildError, match="characters"):
        read_tokens(None, "")


def test_beyond_loopback_a_token_or_a_clear_word_is_needed() -> None:
    with pytest.raises(TrtbuildError, match="reachable from other machines"):
        Settings(host="0.0.0.0")
    Settings(host="0.0.0.0", tokens=(TOKEN,))
    Settings(host="0.0.0.0", allows_anyone=True)
    for host in ("127.0.0.1", "::1", "localhost"):
        Settings(host=host)


def test_metrics_are_prometheus_text_with_few_labels(gateway: Running) -> None:
    gateway.post("/v1/completions", {**TEXT, "max_tokens": 4, "stream": True})
    gateway.get("/some/path/nobody/knows")
    answer = gateway.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert all(
        line.startswith("#") or (len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0) for line in lines
    )
    assert gateway.metric('requests_total{endpoint="completions",status="200"}') >= 1
    assert gateway.metric("completion_tokens_total") >= 4
    assert gateway.metric('first_token_seconds_count{endpoint="completions"}') >= 1
    assert "nobody" not in answer.text


def test_a_histogram_counts_each_time_up_to_its_bound() -> None:
    metrics = Metrics()
    for value_s in (0.01, 0.3, 1e9):
        metrics.observe("request_seconds", value_s, endpoint="chat")
    text = metrics.text(in_flight=2)
    assert 'request_seconds_bucket{endpoint="chat",le="0.01"} 1' in text
    assert 'request_seconds_bucket{endpoint="chat",le="0.5"} 2' in text
    assert 'request_seconds_bucket{endpoint="chat",le="+Inf"} 3' in text
    assert "in_flight 2" in text


def test_a_stream_reads_the_same_however_its_bytes_are_cut(triton: Triton) -> None:
    triton.answer(*tokens("家🙂", 'a\nb\r\n"\\', "\u2028 é", "data: x\n\n"))
    expected = '家🙂a\nb\r\n"\\\u2028 édata: x\n\n'
    with running(triton.address) as gateway:
        raw = gateway.post("/v1/completions", {**TEXT, "stream": True}).content
    assert "家🙂".encode() in raw, "text is sent as UTF-8"
    first = raw.index("家".encode())
    cuts = [[raw[:at], raw[at:]] for at in range(first - 3, first + 12)]
    cuts += [[raw[at : at + size] for at in range(0, len(raw), size)] for size in (1, 2, 3, 7, len(raw))]
    for pieces in cuts:
        events = [event.data for event in SSEDecoder().iter_bytes(iter(pieces))]
        assert events[-1] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == expected


def test_characters_cut_between_responses_of_the_server_come_whole(gateway: Running) -> None:
    body = {**TEXT, "prompt": "[mock fault=cut_utf8]", "max_tokens": 24, "stream": True}
    with gateway.openai() as client:
        pieces = [chunk.choices[0].text for chunk in client.completions.create(**body)]
    assert "家" in "".join(pieces) and not any("\ufffd" in piece for piece in pieces)


def test_text_of_any_language_passes_under_the_posix_locale(triton: Triton) -> None:
    triton.answer(*tokens("Яблоко", " 🙂"))
    posix = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with command("--url", triton.address, environment=posix) as (_, url):
        running_ = Running(url, None)  # type: ignore[arg-type]
        with running_.openai() as client:
            answer = client.completions.create(model="ensemble", prompt="Яблоко 🙂")
    assert triton.inputs()["text_input"][2][4:] == "Яблоко 🙂".encode()
    assert answer.choices[0].text == "Яблоко 🙂"
