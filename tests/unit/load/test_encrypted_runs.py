"""Load tests of servers that are encrypted, guarded, or known by several addresses."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.connection import Tls
from trtbuild_client.errors import ConnectError, InvalidRequest, Unauthorized
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.outcomes import Outcome
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.run import Run, run
from trtbuild_client.load.target import Target
from trtbuild_client.load.workload import Limits, Turn
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

Cli = Callable[..., tuple[int, str, str]]
_ONE = Dataset([(Turn("hello", 6),)], "test")
_APIS = ("triton-grpc", "triton-http", "openai-chat", "openai-completions")


def go(target: Target, *, requests: int = 6, concurrency: int = 2) -> Run:
    return run(target.open()[0], Plan(concurrency=concurrency, limits=Limits(requests=requests)), _ONE)


def url(mock: RunningMock, api: str, *, is_encrypted: bool) -> str:
    s = "s" if is_encrypted else ""
    return f"grpc{s}://{mock.grpc}" if api == "triton-grpc" else f"http{s}://{mock.http}"


@pytest.mark.parametrize("api", _APIS)
def test_encrypted_servers_are_measured_and_strangers_are_not_believed(api: str, certificates: Path) -> None:
    options = MockOptions(tls_cert=certificates / "server.pem", tls_key=certificates / "server.key")
    with running(options) as mock:
        where = url(mock, api, is_encrypted=True)
        target = Target(where, "ensemble", api=api, tls=Tls(ca=certificates / "ca.pem"))
        done = go(target, requests=40, concurrency=4)
        assert set(done.table.columns["outcome"]) == {Outcome.OK} and len(done.table) == 40
        assert done.table.columns["output_tokens"].tolist() == [6] * 40
        stranger = Target(where, "ensemble", api=api, tls=Tls(ca=certificates / "other.pem"))
        with pytest.raises(ConnectError):
            stranger.max_seq_len()
        if api.startswith("openai"):  # Triton is asked what the model is before anything is sent
            failed = go(stranger, requests=2)
            assert set(failed.table.columns["outcome"]) == {Outcome.CONNECT_FAILED}
            assert "certificate is not accepted" in failed.table.errors[0]
        assert len(mock.schedule()["requests"]) == 40


@pytest.mark.parametrize("api", _APIS)
def test_a_client_certificate_is_shown(api: str, certificates: Path) -> None:
    options = MockOptions(
        tls_cert=certificates / "server.pem", tls_key=certificates / "server.key", tls_ca=certificates / "ca.pem"
    )
    own = Tls(ca=certificates / "ca.pem", cert=certificates / "client.pem", key=certificates / "client.key")
    with running(options) as mock:
        done = go(Target(url(mock, api, is_encrypted=True), "ensemble", api=api, tls=own))
    assert set(done.table.columns["outcome"]) == {Outcome.OK}


def test_a_server_without_tls_ends_the_handshake_and_that_is_said(certificates: Path) -> None:
    tls = Tls(ca=certificates / "ca.pem")
    with running() as mock:
        done = go(Target(url(mock, "openai-chat", is_encrypted=True), "ensemble", api="openai-chat", tls=tls))
        assert set(done.table.columns["outcome"]) == {Outcome.CONNECT_FAILED}
        assert f"no TLS with {mock.http}" in done.table.errors[0]
        for api in ("triton-grpc", "triton-http"):
            with pytest.raises(ConnectError):
                Target(url(mock, api, is_encrypted=True), "ensemble", api=api, tls=tls).open()


@pytest.mark.parametrize("transport", ["lean", "grpcio"])
@pytest.mark.parametrize("api", _APIS)
def test_tokens_and_headers_go_with_every_request(api: str, transport: str) -> None:
    with running(MockOptions(token="s3cret")) as mock:
        where = url(mock, api, is_encrypted=False)
        for given in ({"token": "s3cret"}, {"headers": {"Authorization": "Bearer s3cret"}}):
            target = Target(where, "ensemble", api=api, transport=transport, **given)  # type: ignore[arg-type]
            assert target.max_seq_len() is None and "s3cret" not in repr(target)
            done = go(target)
            assert set(done.table.columns["outcome"]) == {Outcome.OK}
        stranger = Target(where, "ensemble", api=api, transport=transport, token="wr0ng")
        with pytest.raises(Unauthorized) as caught:
            stranger.max_seq_len()
        assert "wr0ng" not in str(caught.value)


def test_the_command_takes_certificates_and_tokens(certificates: Path, cli: Cli, tmp_path: Path) -> None:
    options = MockOptions(tls_cert=certificates / "server.pem", tls_key=certificates / "server.key", token="s3cret")
    load = ("--requests", 4, "--output-tokens", 3, "--allow-invalid", "--json")
    access = ("--tls-ca", certificates / "ca.pem", "--token", "s3cret")
    out = tmp_path / "r.json"
    with running(options) as mock:
        for where in (mock.grpc, f"grpcs://{mock.grpc}", f"https://{mock.http}"):
            code, text, err = cli("bench", "--url", where, *access, *load, "-o", out)
            assert code == 0, err
            assert json.loads(text)["runs"][0]["requests"]["ok"] == 4
            assert "s3cret" not in text + out.read_text()
        code, _, err = cli("bench", "--url", mock.grpc, "--tls-ca", certificates / "ca.pem", *load)
        assert code == 1 and "bearer token" in err
        code, _, err = cli("bench", "--url", f"http://{mock.http}", *access, *load)
        assert code == 2 and "not encrypted" in err
        code, _, err = cli("bench", "--url", mock.grpc, *access, "--transport", "lean", *load)
        assert code == 2 and "lean" in err


@pytest.mark.parametrize("api", ["triton-grpc", "triton-http"])
def test_every_address_of_a_name_is_tried(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is often ::1 first, where the server does not listen."""
    with running() as mock:
        port = int(url(mock, api, is_encrypted=False).rpartition(":")[2])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            closed = listener.getsockname()
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", closed),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

        def addresses(host: str, port: int, *rest: Any, **named: Any) -> Any:
            assert host == "two.example"
            return found

        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        scheme = "grpc" if api == "triton-grpc" else "http"
        done = go(Target(f"{scheme}://two.example:{port}", "ensemble", api=api))
    assert set(done.table.columns["outcome"]) == {Outcome.OK}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("api", _APIS)
def test_ipv6_addresses_are_written_in_brackets(api: str) -> None:
    with running(MockOptions(host="::1")) as mock:
        port = (mock.grpc if api == "triton-grpc" else mock.http).rpartition(":")[2]
        scheme = "grpc" if api == "triton-grpc" else "http"
        target = Target(f"{scheme}://[::1]:{port}", "ensemble", api=api)
        assert target.server().address == f"[::1]:{port}"
        done = go(target)
    assert set(done.table.columns["outcome"]) == {Outcome.OK}


@pytest.mark.parametrize(
    "where",
    [
        "http://[::1:80",
        "http://u:p@h:80",
        "http://h:80/v1?x=1",
        "h:8001/path",
        "h:0x1f41",
        ":8001",
        "grpc://",
        "http://h:80#x",
    ],
)
def test_urls_with_more_than_an_address_are_refused(where: str) -> None:
    with pytest.raises(InvalidRequest):
        Target(where, "m").open()


@pytest.mark.parametrize("name", ["x y", "", ":path", "ümlaut"])
def test_headers_that_no_protocol_can_carry_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        Target("127.0.0.1:1", "m", headers={name: "1"}).open()
