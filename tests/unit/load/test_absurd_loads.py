"""Loads that no machine, protocol or patience allows are refused at once; limits of the system are raised as far as it lets us."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.endpoints import TritonGrpc
from trtbuild_client.load.grpcio_endpoint import GrpcioEndpoint
from trtbuild_client.mock.server import running
from trtbuild_client.probe import Probe

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "1e-9", "--requests", 2), "a schedule of more than 30 days"),
        (("--rate", "1e9", "--duration", "1s"), "more than 20,000,000 arrivals"),
        (("--rate", 5, "--requests", 10**9), "more than 20,000,000 arrivals"),
        (("--rate", "1e400", "--requests", 2), "one number above 0"),
        (("--concurrency", 10**6, "--requests", 2 * 10**6), "open files in a process"),
        (("--concurrency", 10**9, "--requests", 2 * 10**9), "at most 1,000,000"),
        (("--concurrency", 10**9, "--requests", 10**9, "--streams-per-connection", 10**9), "at most 1,000,000"),
        (("--concurrency", f"1,{10**9}", "--requests", 2 * 10**9), "at most 1,000,000"),
        (("--rate", 5, "--requests", 10, "--processes", 10**9), "at most 256"),
        (("--turns", 10**9, "--requests", 2), "requests, more than 1,000,000\nhint: Lower --turns."),
        (("--turns", 10**5, "--requests", 400), "requests, more than 1,000,000\nhint: Give --prompts 10:"),
        (("--prompts", 10**9, "--requests", 2), "requests, more than 1,000,000"),
        (
            ("--input-tokens", 10**7, "--requests", 40),
            "400,000,000 tokens, more than 200,000,000\nhint: Give --prompts 20:",
        ),
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


def test_no_more_groups_are_made_than_prompts(cli: Cli, tmp_path: Path) -> None:
    load = ("--prefix-groups", 10**9, "--prefix-tokens", 5, "--requests", 2, "--output-tokens", 2, "--allow-invalid")
    with running() as mock:
        code, _, err = cli("bench", "--url", mock.grpc, *load, "-o", tmp_path / "r.json")
        assert code == 0, err
        assert len(mock.schedule()["requests"]) == 2
    (run,) = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert run["load"]["dataset"].endswith("5 shared by 2 groups")


def test_a_probe_makes_its_prompts_as_it_goes() -> None:
    probe = Probe(requests=10**9, prompts=("a", "b"), has_unique_prompts=True)
    first, second, third = islice(probe._prompts("request", probe.requests), 3)
    assert (first[-12:], second[-12:], third[-12:]) == ("request 0] a", "request 1] b", "request 2] a")
    assert len({each.split()[0] for each in (first, second, third)}) == 1
    with pytest.raises(InvalidRequest, match="at most 10,000"):
        Probe(requests=10**9, concurrency=10**9)


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


@pytest.mark.parametrize(
    ("scheme", "arguments"),
    [("", ()), ("", ("--transport", "grpcio")), ("http://", ()), ("http://", ("--api", "triton-http"))],
)
def test_a_server_that_accepts_and_stays_silent_is_not_waited_for_longer_than_an_answer(
    scheme: str, arguments: tuple[str, ...], cli: Cli
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        began_s = time.monotonic()
        code, _, err = cli("bench", "--url", url, "--timeout", "300ms", "--requests", 2, *arguments)
        took_s = time.monotonic() - began_s
    assert code == 1 and "within 0.3 s" in err, err
    assert took_s < 5  # the time of a question without --timeout is 10 s
