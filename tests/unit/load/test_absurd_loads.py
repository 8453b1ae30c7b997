"""Loads that no machine, protocol or patience allows are refused at once; limits of the system are raised as far as it lets us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from trtbuild_client.load.endpoints import TritonGrpc
from trtbuild_client.load.grpcio_endpoint import GrpcioEndpoint
from trtbuild_client.mock.server import running

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "1e-9", "--requests", 2), "a schedule of more than 30 days"),
        (("--rate", "1e9", "--duration", "1s"), "more than 20,000,000 arrivals"),
        (("--rate", 5, "--requests", 10**9), "more than 20,000,000 arrivals"),
        (("--rate", "1e400", "--requests", 2), "one number above 0"),
        (("--concurrency", 10**9, "--requests", 2 * 10**9), "open files in a process"),
        (("--output-tokens", 10**11), "no number of tokens from 1 to 10,000,000"),
        (("--input-tokens", 10**11), "no number of tokens from 1 to 10,000,000"),
        (("--input-tokens", "5:1e9"), "no number of tokens"),
    ],
)
def test_absurd_loads_are_refused_at_once(arguments: tuple[Any, ...], message: str, cli: Cli) -> None:
    with running() as mock:
        code, _, err = cli("bench", "--url", mock.grpc, *arguments)
        assert code == 2 and message in err, err
        assert mock.schedule()["requests"] == []


def test_what_a_request_takes_of_the_system_depends_on_its_transport() -> None:
    made: Any = object()
    assert TritonGrpc(made, made, "r", streams_per_connection=8).descriptors(17) == 3
    assert GrpcioEndpoint(made, made, "r").descriptors(17) == 68


_LIMITED = """
import resource, sys
from trtbuild.cli.edge import run
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
sys.exit(run(sys.argv[2:]))
"""


def limited(hard: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with room for 64 open files, which may be raised to `hard`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _LIMITED, str(hard), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_limit_of_open_files_is_raised_and_what_is_beyond_it_is_refused() -> None:
    with running() as mock:
        load = ("bench", "--url", mock.grpc, "--concurrency", "150", "--requests", "300", "--output-tokens", "2")
        done = limited(512, *load, "--allow-invalid", "--prompt", "x")
        assert done.returncode == 0, done.stderr
        before = len(mock.schedule()["requests"])
        done = limited(128, *load, "--prompt", "x")
        assert done.returncode == 2 and "takes 150 open files in a process, and the system allows 64" in done.stderr
        assert len(mock.schedule()["requests"]) == before
        done = limited(128, *load, "--prompt", "x", "--allow-invalid", "--streams-per-connection", "4")
        assert done.returncode == 0, done.stderr
