"""A client that the system stops, and a server that stops: what a run says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.mock.distributions import parse_ns
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

_STOP_S = 0.6


@pytest.fixture
def mock() -> Iterator[RunningMock]:
    with running(MockOptions(ttft_ns=parse_ns("5ms"), itl_ns=parse_ns("2ms"))) as server:
        yield server


@contextmanager
def bench(mock: RunningMock, out: Path, *more: str, requests: int = 20) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a group of its own; go on when the server has seen some requests."""
    command = [sys.executable, "-m", "trtbuild", "bench", "--model", "ensemble", "-o", str(out), *more]
    with subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    ) as process:
        for _ in range(400):
            if len(mock.schedule()["requests"]) >= requests:
                break
            time.sleep(0.05)
        yield process


@pytest.mark.parametrize(
    ("api", "processes"), [("triton-grpc", 1), ("triton-grpc", 2), ("openai-chat", 1), ("triton-http", 2)]
)
def test_a_client_that_was_stopped_makes_a_run_invalid(
    mock: RunningMock, tmp_path: Path, api: str, processes: int
) -> None:
    url = mock.grpc or "" if api == "triton-grpc" else f"http://{mock.http}"
    more = ("--api", api, "--url", url, "--concurrency", "4", "--duration", "3s", "--processes", str(processes))
    # Other programs of this machine may be in the way too, but not for so long.
    with bench(mock, tmp_path / "r.json", *more, "--max-loop-lag", "100ms", "--max-send-lag", "10s") as process:
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(_STOP_S)
        os.killpg(process.pid, signal.SIGCONT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3 and "at worst it looked at no socket for " in said, said
    run: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())["runs"][0]
    client = run["client"]
    assert not run["valid"] and _STOP_S - 0.1 < client["loop_lag_max_ns"] / 1e9 < _STOP_S + 5
    assert 0.1e9 < client["loop_lag_p99_ns"] <= client["loop_lag_max_ns"]
    assert 0 < client["loop_lag_max_at_ns"] < 3e9
