"""A client that the system stops, and a server that stops: what a run says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.mock.distributions import parse_ns
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

Cli = Callable[..., tuple[int, str, str]]
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


@contextmanager
def mock_process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a mock in a process of its own; give it and its address."""
    ports = ("--grpc-port", "0", "--http-port", "0", "--metrics-port", "0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "trtbuild", "mock", *options, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["grpc"]
        finally:
            process.kill()


def test_requests_that_a_server_that_hangs_never_answers_have_failed(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    with mock_process("--ttft", "5ms", "--itl", "2ms") as (process, address):
        stop = threading.Timer(1.5, process.send_signal, (signal.SIGSTOP,))
        stop.start()
        code, text, err = cli(
            "bench", "--url", address, "--rate", 20, "--duration", "3s", "--drain", "500ms", "--output-tokens", 4, "--slo", "e2e.p95=100s",
            "--allow-invalid", "-o", out,
        )  # fmt: skip
        stop.join()
    assert code == 3 and "requests failed, more than --max-error-rate" in err, err
    assert "timeout_drain: no end within 500 ms after the last request" in text + err
    run = json.loads(out.read_text())["runs"][0]
    requests = run["requests"]
    assert requests["cancelled"] == 0 and requests["ok"] > 0
    assert requests["failed"] == requests["by_outcome"]["timeout_drain"] > 10
    assert run["goodput"]["share"] == pytest.approx(requests["ok"] / requests["total"])
    assert run["latencies_ns"]["e2e_with_failures"]["percentiles"]["p90"]["value"] == "failed"
