"""Ports: taken ones are named, free ones are found."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve.ports import FREE_RANGE, Ports, resolve


def test_zero_is_replaced_by_different_free_ports_below_the_range_of_clients() -> None:
    ports = resolve("127.0.0.1", Ports(0, 0, 0))
    chosen = list(ports.named().values())
    assert len(set(chosen)) == 3
    assert all(port in FREE_RANGE for port in chosen)
    assert FREE_RANGE.stop <= 32768


def test_given_ports_are_kept(free_ports: Ports) -> None:
    assert resolve("127.0.0.1", free_ports) == free_ports


@pytest.fixture
def free_ports() -> Ports:
    """Three ports that can be bound."""
    return resolve("127.0.0.1", Ports())


@pytest.mark.parametrize("listen_on", ["127.0.0.1", "0.0.0.0"])
def test_every_busy_port_is_named_with_its_option(listen_on: str) -> None:
    with ExitStack() as stack:
        taken = [stack.enter_context(closing(socket.create_server((listen_on, 0)))).getsockname()[1] for _ in range(3)]
        with pytest.raises(TrtbuildError) as caught:
            resolve("127.0.0.1", Ports(*taken))
    for option, port in zip(("--http-port", "--grpc-port", "--metrics-port"), taken, strict=True):
        assert f"{option} {port} is already in use" in caught.value.message
    assert "0 picks a free one" in caught.value.hint


@given(port=st.integers(1024, 65535), at=st.permutations([True, True, False]))
def test_a_port_given_twice_is_refused(port: int, at: list[bool]) -> None:
    with pytest.raises(UsageError, match=rf"--\w+-port and --\w+-port are both {port}"):
        resolve("127.0.0.1", Ports(*(port if here else 0 for here in at)))


@pytest.mark.parametrize("address", ["192.0.2.7", "no such host.invalid", "::1"])
def test_an_address_of_another_machine_is_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        resolve(address, Ports())


def test_lingering_connections_of_an_earlier_server_do_not_count(free_ports: Ports) -> None:
    with closing(socket.create_server(("127.0.0.1", free_ports.http))) as server:
        client = socket.create_connection(("127.0.0.1", free_ports.http))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    assert resolve("127.0.0.1", free_ports) == free_ports
