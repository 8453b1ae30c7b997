"""Whatever a caller passes: a wrong value or type ends in an InvalidRequest that names it, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.client.asking import Ask
from tests.unit.client.test_mock_server import expected

from trtbuild_client import AsyncClient, Client, InvalidRequest, Retry, Tls
from trtbuild_client.connection import Connection
from trtbuild_client.durations import LONGEST_S
from trtbuild_client.load.http2 import _grpc_timeout
from trtbuild_client.mock.server import RunningMock, running
from trtbuild_client.parameters import validate


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    """A mock without faults."""
    with running() as server:
        yield server


TIMEOUTS = [0, -1, float("nan"), float("inf"), 1e300, 10**400, 10**5000, LONGEST_S + 1, "5", True]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": None}, "url=None is of type NoneType"),
        ({"url": "\ud800:80"}, "no text that can be sent"),
        ({"url": b"127.0.0.1:8001"}, "url=.* is of type bytes"),
        ({"model": None}, "model=None"),
        ({"model": "\udcff"}, "no text that can be sent"),
        ({"retry": 5}, "retry=5 is of type int"),
        ({"tls": True, "url": "grpcs://a:1"}, "tls=True"),
        ({"token": 5}, "token=5"),
        ({"headers": 5}, "headers=5"),
        ({"headers": {5: "a"}}, "a name in headers"),
        ({"headers": {"a": 5}}, r"headers\['a'\]=5"),
        ({"max_message_bytes": 1.5}, "max_message_bytes=1.5"),
        ({"max_message_bytes": 0}, "max_message_bytes=0"),
        *(({name: value}, name) for value in TIMEOUTS for name in ("timeout_s", "connect_timeout_s", "keepalive_s")),
        *(({name: 1e300}, name) for name in ("first_token_timeout_s", "between_tokens_timeout_s")),
    ],
)
def test_a_client_refuses_what_cannot_be(kind: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        kind(**arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Retry(attempts=-1), "attempts=-1"),
        (lambda: Retry(attempts=101), "attempts=101"),
        (lambda: Retry(attempts=1.5), "attempts=1.5"),  # type: ignore[arg-type]
        (lambda: Retry(attempts=True), "attempts=True"),
        (lambda: Retry(first_s=None), "first_s=None"),  # type: ignore[arg-type]
        (lambda: Retry(most_s=float("inf")), "most_s=inf"),
        (lambda: Tls(ca="ca.pem"), "ca='ca.pem' is of type str"),  # type: ignore[arg-type]
        (lambda: Tls(server_name=5), "server_name=5"),  # type: ignore[arg-type]
        (lambda: Tls(cert=Path("a")), "needs its key"),
        (lambda: Connection("a:1", max_message_bytes=2**31), "max_message_bytes=2147483648"),
    ],
)
def test_what_a_client_is_made_of_refuses_what_cannot_be(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make()


def test_no_further_attempt_is_an_allowed_number() -> None:
    assert Retry(attempts=0) == Retry()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"request_id": 5}, "request_id=5 is of type int"),
        ({"request_id": "\ud800"}, "request_id=.* no text that can be sent"),
        ({"tensors": 5}, "tensors=5 is of type int"),
        ({"tensors": {5: 1}}, "a name in tensors"),
        ({"tensors": {"no_such": 1}}, "no_such"),
        ({"tensors": {"temperature": 10**400}}, "temperature="),
        ({"temperature": 10**400}, "temperature="),
        ({"temperature": 10**5000}, "temperature=<an integer of 16610 bits>"),
        ({"max_tokens": 10**5000}, "max_tokens="),
        *(({"timeout_s": value}, "timeout_s=") for value in TIMEOUTS),
    ],
)
def test_a_request_refuses_what_cannot_be(ask: Ask, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ask().generate("x", **arguments)
    with pytest.raises(InvalidRequest, match=said):
        ask().stream("x", **arguments)


@pytest.mark.parametrize("prompt", [5, None, b"x", "\ud800"])
def test_a_prompt_that_is_no_text_is_refused(ask: Ask, prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        ask().generate(prompt)


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array([1.0, 2.0]), Decimal("sNaN"), 1 + 2j, object()])
@pytest.mark.parametrize("name", ["temperature", "top_k"])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}="):
        validate({name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    found = validate({"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.array(4)})
    assert found == {"temperature": 0.5, "top_k": 3, "seed": 4}


def test_a_batch_takes_prompts_from_anywhere(ask: Ask) -> None:
    for prompts in ((str(number) for number in range(3)), {"a": 1, "b": 2, "c": 3}, ("a", "b", "c"), iter([])):
        answers = ask().batch(prompts, max_tokens=3, concurrency=2)
        assert [each.text for each in answers] in ([expected(3)] * 3, [])


@pytest.mark.parametrize(
    ("prompts", "concurrency", "said"),
    [
        ("x", 1, "prompts is one str"), (b"x", 1, "prompts is one bytes"), (5, 1, "prompts=5"), (None, 1, "prompts=None"),
        (["x"], 0, "concurrency=0"), (["x"], 1.5, "concurrency=1.5"), (["x"], 10**9, "concurrency=1000000000"),
    ],
)  # fmt: skip
def test_a_batch_refuses_what_cannot_be(ask: Ask, prompts: Any, concurrency: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ask().batch(prompts, concurrency=concurrency)


def test_a_prompt_of_a_batch_that_is_no_text_fails_alone(ask: Ask) -> None:
    answers = ask().batch(["a", 5, "b"], max_tokens=3)
    assert [each.error is None for each in answers] == [True, False, True]
    assert isinstance(answers[1].error, InvalidRequest)


def test_the_longest_deadline_is_one(ask: Ask) -> None:
    options = {f"{name}timeout_s": LONGEST_S for name in ("", "connect_", "first_token_", "between_tokens_")}
    asker = ask(**options, keepalive_s=LONGEST_S)
    assert asker.generate("x", max_tokens=3).text == expected(3)
    assert asker.stream("x", max_tokens=3, timeout_s=LONGEST_S)[1].text == expected(3)


def test_no_deadline_is_none(ask: Ask) -> None:
    assert ask(timeout_s=None).generate("x", max_tokens=3).text == expected(3)


@pytest.mark.parametrize(
    ("timeout_s", "written"), [(0.0001, b"1m"), (1.5, b"1500m"), (99_999.999, b"99999999m"), (LONGEST_S, b"2073600S")]
)
def test_a_timeout_is_written_in_the_eight_digits_of_grpc(timeout_s: float, written: bytes) -> None:
    assert _grpc_timeout(timeout_s) == written
