"""`kill -9` of the core's process, of a client and of the server: every request ends, and the service answers again."""

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
from typing import IO

import pytest
from tests.unit.templates.test_templates_triton import MANY, Deployed, render_scripted

from trtbuild.errors import TrtbuildError
from trtbuild.serve.supervisor import Server
from trtbuild_client import Client
from trtbuild_client.errors import ClientError

pytestmark = pytest.mark.triton

DEADLINE_S = 4.0
CLIENT = "import sys; from trtbuild_client import Client\nfor _ in Client(sys.argv[1], 'tensorrt_llm_bls').stream(sys.argv[2], max_tokens=10000): print('.', flush=True)"


def core_processes(repository: Path) -> list[int]:
    """Return the processes that run the core of a repository."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if "stub" in words[0] and any(str(repository) in word and "/tensorrt_llm/" in word for word in words):
            found.append(int(folder.name))
    return found


@contextmanager
def served(repository: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `trtbuild serve`; stop it in the end if it still runs."""
    command = [sys.executable, "-m", "trtbuild", "serve", str(repository), "--json", *options]
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def next_ready(lines: IO[bytes] | None) -> str:
    """Wait until the service says that it is ready, and return its gRPC address."""
    assert lines is not None
    return str(json.loads(lines.readline())["grpc_url"])


def test_a_killed_core_ends_its_streams_at_once_and_the_service_answers_again(tmp_path: Path) -> None:
    repository, _ = render_scripted(tmp_path)
    with served(repository, "--restarts", "1") as service:
        url = next_ready(service.stdout)
        with Client(url, "ensemble", timeout_s=60) as one, Client(url, "tensorrt_llm_bls", timeout_s=60) as other:
            running = [iter(client.stream("leaving", max_tokens=MANY)) for client in (one, other)]
            for stream in running:
                next(stream)
            [core] = core_processes(repository)
            os.kill(core, signal.SIGKILL)
            begun = time.monotonic()
            for stream in running:
                with pytest.raises(ClientError):
                    list(stream)
            assert time.monotonic() - begun < 10
        assert next_ready(service.stdout) == url
        with Client(url, "ensemble", timeout_s=60) as client:
            assert client.generate("again", max_tokens=3).text == "aga"
        service.send_signal(signal.SIGINT)
        _, told = service.communicate()
    assert f"the process of model 'tensorrt_llm' version 1 (pid {core}) died: killed by signal 9" in told.decode()
    assert service.returncode == 0


@pytest.mark.slow
def test_without_anyone_who_watches_requests_end_at_their_deadline_when_the_core_is_killed(tmp_path: Path) -> None:
    repository, _ = render_scripted(tmp_path)
    with Server(repository) as server, Client(server.grpc_url, "ensemble", timeout_s=DEADLINE_S) as client:
        running = iter(client.stream("leaving", max_tokens=MANY))
        next(running)
        [core] = core_processes(repository)
        os.kill(core, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(ClientError):
            list(running)
        assert time.monotonic() - begun < DEADLINE_S + 5
        with pytest.raises(ClientError, match="is not healthy|refused"):  # it may have aborted
            client.generate("again", max_tokens=3)


@pytest.mark.slow
def test_the_core_is_told_when_a_client_is_killed(tmp_path: Path) -> None:
    repository, log = render_scripted(tmp_path)
    with Server(repository) as server:
        prompt = "leaving " * 9
        command = [sys.executable, "-c", CLIENT, server.grpc_url, prompt]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as asking:
            assert asking.stdout is not None
            asking.stdout.readline()
            asking.kill()
        end = Deployed(server.grpc_url, log).await_end(len(prompt))
        assert end["ended"] == "stopped"
        assert end["tokens"] < MANY


@pytest.mark.slow
def test_requests_end_at_once_when_the_server_is_killed(tmp_path: Path) -> None:
    repository, _ = render_scripted(tmp_path)
    with Server(repository) as server, Client(server.grpc_url, "ensemble", timeout_s=30) as client:
        running = iter(client.stream("leaving", max_tokens=MANY))
        next(running)
        os.kill(server.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(ClientError):
            list(running)
        assert time.monotonic() - begun < 10
        with pytest.raises(TrtbuildError):
            server.watch()
