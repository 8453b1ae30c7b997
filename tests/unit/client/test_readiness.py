"""A server that loads its models is live and not ready: nobody takes one for the other, and who wants to wait can."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.asking import KINDS, Asker

from trtbuild.serve.health import is_ready
from trtbuild_client.errors import ConnectError, InvalidRequest, ModelNotFound, NotReady
from trtbuild_client.load.target import Target
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import running
from trtbuild_client.readiness import wait_until_ready

Cli = Callable[..., tuple[int, str, str]]
_NEVER_NS = 3600 * 10**9
_SOON_NS = 600_000_000


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_server_that_loads_is_live_and_not_ready() -> None:
    with running(MockOptions(ready_after_ns=_NEVER_NS)) as mock:
        host, _, port = mock.http.rpartition(":")
        assert status(f"http://{mock.http}/v2/health/live") == 200
        assert status(f"http://{mock.http}/v2/health/ready") == 400
        assert status(f"http://{mock.http}/v2/models/ensemble/ready") == 400
        assert not is_ready(host, int(port), None)
    with running() as mock:
        host, _, port = mock.http.rpartition(":")
        assert is_ready(host, int(port), None) and status(f"http://{mock.http}/v2/health/live") == 200


@pytest.mark.parametrize("kind", KINDS)
def test_every_client_says_that_the_model_is_not_ready(kind: str) -> None:
    with running(MockOptions(ready_after_ns=_NEVER_NS)) as mock:
        asker = Asker(kind, mock, {})
        with pytest.raises(NotReady):
            asker.check_ready()
        with pytest.raises(NotReady):
            asker.generate("x")
        assert mock.schedule()["requests"] == []


@pytest.mark.parametrize("api", ["triton-grpc", "triton-http", "openai-chat", "openai-completions"])
@pytest.mark.parametrize("transport", ["lean", "grpcio"])
def test_every_load_test_says_that_the_model_is_not_ready(api: str, transport: str) -> None:
    with running(MockOptions(ready_after_ns=_NEVER_NS)) as mock:
        url = mock.grpc if api == "triton-grpc" else f"http://{mock.http}"
        with pytest.raises(NotReady):
            Target(url, "ensemble", api=api, transport=transport).max_seq_len()


@pytest.mark.parametrize(
    ("command", "api"),
    [("probe", None), ("generate", None), ("bench", None), ("bench", "triton-http"), ("bench", "openai-chat")],
)
def test_commands_wait_where_they_are_told_to(command: str, api: str | None, cli: Cli) -> None:
    given: dict[str, tuple[object, ...]] = {
        "probe": ("--requests", 2, "--warmup", 0),
        "generate": ("hello",),
        "bench": ("--requests", 2, "--allow-invalid", *(() if api is None else ("--api", api))),
    }
    with running(MockOptions(ready_after_ns=_SOON_NS)) as mock:
        url = mock.grpc if api is None else f"http://{mock.http}"
        code, _, err = cli(command, *given[command], "--url", url, "--wait", "20s")
        assert code == 0, err
    with running(MockOptions(ready_after_ns=_NEVER_NS)) as mock:
        url = mock.grpc if api is None else f"http://{mock.http}"
        code, _, err = cli(command, *given[command], "--url", url)
        assert code == 1 and any(each in err for each in ("not ready", "no available versions", "503")), err
        assert "waited" not in err
        code, _, err = cli(command, *given[command], "--url", url, "--wait", "0.3s")
        assert code == 1 and "It was waited for 0.3 s" in err


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there_yet_is_waited_for(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as grpc, socket.create_server(("127.0.0.1", 0)) as http:
        ports = grpc.getsockname()[1], http.getsockname()[1]
    there: Any = SimpleNamespace(grpc=f"127.0.0.1:{ports[0]}", http=f"127.0.0.1:{ports[1]}")
    options = MockOptions(grpc_port=ports[0], http_port=ports[1])
    with ExitStack() as stack:
        later = threading.Timer(0.4, lambda: stack.enter_context(running(options)))
        later.start()
        with pytest.raises(ConnectError):
            Asker(kind, there, {}).check_ready()
        wait_until_ready(Asker(kind, there, {}).check_ready, 20)
        later.join()


def test_waiting_ends_at_its_time_and_at_what_it_cannot_mend() -> None:
    def fail(error: Exception) -> Callable[[], None]:
        def ask() -> None:
            raise error

        return ask

    start = time.monotonic()
    with pytest.raises(NotReady) as caught:
        wait_until_ready(fail(NotReady("loading", hint="Wait.")), 0.4)
    assert 0.4 <= time.monotonic() - start < 2 and caught.value.hint == "It was waited for 0.4 s. Wait."
    for error in (ModelNotFound("x", hint=""), InvalidRequest("x", hint="")):
        with pytest.raises(type(error)):
            wait_until_ready(fail(error), 60)
