"""Looking after the processes of Python models: which there are, and which has died."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serve_helpers import children, request, server_prefix, shared_memory, wait_until_ended, write_echo

from trtbuild.serve.keeping import keep
from trtbuild.serve.model_control import ModelControl
from trtbuild.serve.python_stub import STUB_COMM, STUB_NAME
from trtbuild.serve.reload import swap
from trtbuild.serve.stubs import Stubs
from trtbuild.serve.supervisor import Server, ServerEnded

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a process with a stub's name and arguments, which runs a script that first writes a line."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, program: str = "/bin/sh") -> subprocess.Popen[bytes]:
        path = tmp_path / STUB_NAME
        path.write_text(f"#!{program}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        process = subprocess.Popen([path, "/models/core/2/model.py", "region"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        with process:
            process.kill()


def stubs_of_this_process() -> Stubs:
    stubs = Stubs(os.getpid())
    stubs.find()
    return stubs


def end(process: subprocess.Popen[bytes]) -> None:
    """Let the process go on, to its end; it stays a zombie."""
    assert process.stdin is not None
    process.stdin.close()
    wait_until_ended(process.pid)


def test_a_killed_stub_is_named_with_its_model_and_signal_at_the_second_look(start: Start) -> None:
    process = start("echo begun; read line")
    stubs = stubs_of_this_process()
    assert (stubs.died(), stubs.died()) == (None, None)
    process.kill()
    wait_until_ended(process.pid)
    assert stubs.died() is None
    assert (
        stubs.died() == f"the process of model 'core' version 2 (pid {process.pid}) died: killed by signal 9 (SIGKILL)"
    )


def test_a_stub_that_exits_by_itself_is_dead_too(start: Start) -> None:
    process = start("echo begun; read line; exit 3")
    stubs = stubs_of_this_process()
    end(process)
    stubs.died()
    assert str(stubs.died()).endswith("died: exit code 3")


def test_a_stub_that_the_server_has_ended_is_forgotten(start: Start) -> None:
    process = start("echo begun; read line")
    stubs = stubs_of_this_process()
    end(process)
    assert stubs.died() is None
    process.wait()
    assert [stubs.died() for _ in range(3)] == [None] * 3


def test_a_stub_that_was_killed_is_named_even_when_it_was_gone_at_the_last_look(start: Start) -> None:
    process = start("echo begun; read line")
    stubs = stubs_of_this_process()
    process.kill()
    process.wait()
    assert stubs.died() is None
    assert stubs.killed({process.pid + 1: signal.SIGKILL}) is None
    assert str(stubs.killed({process.pid: signal.SIGKILL})).endswith("died: killed by signal 9 (SIGKILL)")


def test_a_stub_that_was_dead_when_it_was_found_has_no_model_but_counts(start: Start) -> None:
    end(start("echo begun; read line; exit 1"))
    stubs = stubs_of_this_process()
    stubs.died()
    assert str(stubs.died()).startswith("the process of a Python model (pid ")


def test_stubs_of_other_servers_are_none_of_ours(start: Start) -> None:
    ours, other = start("echo begun; read line"), start("echo begun; read line")
    stubs = Stubs(ours.pid)
    stubs.find()
    other.kill()
    wait_until_ended(other.pid)
    assert (stubs.died(), stubs.died()) == (None, None)


def test_what_a_stub_has_forked_may_die(start: Start) -> None:
    script = "import os, sys\nos.fork() or os._exit(0)\nprint('begun', flush=True)\nsys.stdin.read()"
    process = start(script, sys.executable)
    [forked] = children(process.pid)
    wait_until_ended(forked)
    assert f"({STUB_COMM}) Z {process.pid} " in Path(f"/proc/{forked}/stat").read_text(encoding="utf-8")
    stubs = Stubs(process.pid)
    stubs.find()
    assert (stubs.died(), stubs.died()) == (None, None)


@pytest.mark.triton
def test_a_killed_stub_ends_the_server_which_is_started_again_and_answers(tmp_path: Path) -> None:
    server = Server(write_echo(tmp_path / "repository"))
    seen: list[tuple[bytes, str]] = []

    def tell(running: Server) -> None:
        seen.append((request("POST", f"{running.http_url}/v2/models/echo/infer", QUESTION)[1], server_prefix(running.http_url)))  # fmt: skip
        [stub] = stub_pids(seen[-1][1])
        os.kill(stub, signal.SIGKILL)

    with pytest.raises(ServerEnded, match=r"model 'echo' version 1 \(pid \d+\) died: killed by signal 9") as caught:
        keep(server, restarts=1, on_ready=tell, pause=lambda _: None)
    assert "after 1 restart(s)" in caught.value.message
    assert len(seen) == 2
    for answer, prefix in seen:
        assert b'"data":[1.0]' in answer
        assert shared_memory(prefix) == []


@pytest.mark.triton
def test_swapping_a_version_is_no_death(tmp_path: Path) -> None:
    repository = write_echo(tmp_path / "repository")
    shutil.copytree(repository / "echo" / "1", tmp_path / "new")
    with Server(repository, model_control="explicit") as server:
        watching = _Watching(server)
        first = stub_pids(server_prefix(server.http_url))
        swap(ModelControl(server.http_url), repository, "echo", tmp_path / "new", timeout_s=60)
        for pid in first:
            wait_until_ended(pid)
        [second] = stub_pids(server_prefix(server.http_url), "/echo/2/")
        assert not watching.has_ended(after_s=1.5)
        os.kill(second, signal.SIGKILL)  # of the new version, which was found meanwhile
        assert watching.has_ended(after_s=30)
        assert "model 'echo' version 2" in str(watching.error)


QUESTION = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [1.0]}]}


class _Watching(threading.Thread):
    """Watches a server until it ends."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.error: ServerEnded | None = None
        self.start()

    def run(self) -> None:
        """Watch."""
        try:
            self._server.watch()
        except ServerEnded as error:
            self.error = error

    def has_ended(self, *, after_s: float) -> bool:
        """Return whether it ended within so many seconds."""
        self.join(timeout=after_s)
        return not self.is_alive()


def stub_pids(prefix: str, folder: str = "") -> list[int]:
    """Return the stubs that use shared memory of a prefix and run a model of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(encoding="utf-8", errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].endswith(STUB_NAME) and folder in words[1] and any(word.startswith(prefix) for word in words):
            found.append(int(path.parent.name))
    return found
