"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.asking import KINDS, Ask, Asker
from tests.unit.client.fake_triton import FakeTriton

from trtbuild_client import Client
from trtbuild_client.mock.server import RunningMock


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    """A scripted server."""
    server = FakeTriton()
    yield server
    server.close()


@pytest.fixture
def connect(triton: FakeTriton) -> Iterator[Callable[..., Client]]:
    """Return a function that makes clients of the scripted server; they are closed at the end."""
    clients: list[Client] = []

    def make(model: str = "ensemble", **options: Any) -> Client:
        clients.append(Client(triton.address, model, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, mock: RunningMock) -> Ask:
    """Return a function that makes an asker of each kind, of the test's own mock unless told otherwise."""

    def make(server: RunningMock | None = None, *, model: str = "ensemble", **options: Any) -> Asker:
        return Asker(request.param, server or mock, options, model)

    return make
