"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.gateway.running import Running, Triton, running, write_template
from tests.unit.templates import tiny_tokenizers

from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock
from trtbuild_client.mock.server import running as running_mock


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token per byte, and a chat template."""
    folder = tmp_path_factory.mktemp("gateway") / "tokenizer"
    return write_template(tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder))


@pytest.fixture(scope="session")
def mock() -> Iterator[RunningMock]:
    """A mock of a Triton server that answers at once; prompts say what else they want."""
    with running_mock(MockOptions(kept_requests=200)) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(mock: RunningMock, tokenizer_dir: Path) -> Iterator[Running]:
    """A gateway before the mock."""
    with running(mock.grpc, tokenizer_dir=tokenizer_dir) as server:
        yield server


@pytest.fixture
def triton() -> Iterator[Triton]:
    """A scripted server."""
    server = Triton()
    yield server
    server.close()
