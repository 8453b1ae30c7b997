"""`trtbuild serve` as a user runs it: addresses on stdout, Ctrl-C, signals, errors and exit codes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import PATIENCE_S, children, is_gone, server_prefix, shared_memory, wait_until_ended

StubServer = Callable[[str], Path]
FREE = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run `trtbuild serve` and make sure that it ends."""
    command = [sys.executable, "-m", "trtbuild", "serve", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the first line of stdout; fail with what was written to stderr when none comes."""
    assert process.stdout is not None and process.stderr is not None
    assert select.select([process.stdout], [], [], PATIENCE_S)[0], "nothing on stdout"
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line


def read_ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the line of JSON that says that the server is ready."""
    ready: dict[str, Any] = json.loads(read_line(process))
    return ready


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end and return exit code and stderr."""
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr


def test_json_is_one_line_that_names_everything(repository: Path, stub_server: StubServer) -> None:
    with running(repository, "--server", stub_server("ready"), *FREE, "--json") as process:
        ready = read_ready(process)
        assert ready["event"] == "ready"
        assert ready["models"] == ["echo"]
        assert ready["repository"] == str(repository)
        assert server_prefix(ready["http_url"]).startswith("trtbuild_")
        assert ready["grpc_url"].startswith("127.0.0.1:")
        assert ready["metrics_url"].endswith("/metrics")
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 0


def test_people_get_addresses_and_the_next_command(repository: Path, stub_server: StubServer) -> None:
    with running(repository, "--server", stub_server("ready"), *FREE) as process:
        assert read_line(process).startswith("ready after ")
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert "trtbuild generate" in rest
        assert "http://127.0.0.1:" in rest
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_is_obeyed_with_exit_code_0(
    repository: Path, stub_server: StubServer, number: signal.Signals
) -> None:
    with running(repository, "--server", stub_server("ready"), *FREE, "--json") as process:
        ready = read_ready(process)
        prefix = server_prefix(ready["http_url"])
        process.send_signal(number)
        assert finish(process)[0] == 0
        assert is_gone(ready["pid"])
        assert shared_memory(prefix) == []


def test_interrupted_before_it_is_ready_it_exits_with_130(
    repository: Path, stub_server: StubServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    with running(repository, "--server", stub_server("loading"), *FREE, "--log", log) as process:
        _wait_for_text(log, "loading: core")
        process.send_signal(signal.SIGINT)
        code, stderr = finish(process)
        assert code == 130
        assert "interrupted" in stderr


def test_a_second_interruption_kills_a_server_that_does_not_stop(
    repository: Path, stub_server: StubServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running(repository, "--server", stub_server("ignores_signals"), *FREE, "--json", "--log", log) as process:
        ready = read_ready(process)
        process.send_signal(signal.SIGINT)
        _wait_for_text(log, "got SIGINT")
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 130
        assert is_gone(ready["pid"])
        assert "got SIGTERM" not in log.read_text(encoding="utf-8")


def _wait_for_text(path: Path, text: str) -> None:
    """Wait until a file holds a text, by following it with tail."""
    with subprocess.Popen(["tail", "-n", "+1", "-f", path], stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        try:
            while text not in (line := tail.stdout.readline()):
                assert line
        finally:
            tail.kill()


def test_a_server_that_ends_by_itself_is_exit_code_1_with_its_last_lines(
    repository: Path, stub_server: StubServer
) -> None:
    with running(repository, "--server", stub_server("forks"), *FREE, "--json") as process:
        os.kill(read_ready(process)["pid"], signal.SIGKILL)
        code, stderr = finish(process)
        assert code == 1
        assert "error: tritonserver ended by itself: killed by signal 9 (SIGKILL)\n  child " in stderr


def test_kill_9_leaves_no_server(repository: Path, stub_server: StubServer) -> None:
    with running(repository, "--server", stub_server("forks"), *FREE, "--json") as process:
        ready = read_ready(process)
        prefix = server_prefix(ready["http_url"])
        (guard,) = children(process.pid)
        pids = [ready["pid"], *children(ready["pid"]), guard]
        assert len(pids) == 4
        process.kill()
        for pid in pids:
            wait_until_ended(pid)
        assert shared_memory(prefix) == []


def test_busy_ports_are_named_and_nothing_is_started(repository: Path, stub_server: StubServer) -> None:
    with ExitStack() as stack:
        taken = [
            stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))).getsockname()[1] for _ in range(2)
        ]
        ports = ("--http-port", str(taken[0]), "--grpc-port", "0", "--metrics-port", str(taken[1]))
        with running(repository, "--server", stub_server("ready"), *ports, "--json") as process:
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert stdout == ""
    assert f"--http-port {taken[0]} is already in use; --metrics-port {taken[1]} is already in use" in stderr
    assert "Traceback" not in stderr


def test_a_missing_server_binary_is_exit_code_1(repository: Path, tmp_path: Path) -> None:
    with running(repository, "--server", tmp_path / "nothing", *FREE) as process:
        code, stderr = finish(process)
    assert code == 1
    assert stderr.startswith(f"error: {tmp_path}/nothing is not an executable file\nhint: ")


def test_a_missing_repository_is_a_usage_error(tmp_path: Path) -> None:
    with running(tmp_path / "nothing") as process:
        code, stderr = finish(process)
    assert code == 2
    assert "does not exist" in stderr


def test_the_ports_of_trtbuild_yaml_are_the_defaults_of_a_build_folder(tmp_path: Path) -> None:
    from trtbuild.serve.defaults import listen_settings
    from trtbuild.serve.ports import Ports

    (tmp_path / "repository").mkdir()
    (tmp_path / "trtbuild.yaml").write_text(
        "model: {path: x}\nserving: {address: 127.0.0.2, http_port: 9000, grpc_port: 0}\n", encoding="utf-8"
    )
    for folder in (tmp_path, tmp_path / "repository"):
        listen = listen_settings(folder, address=None, http_port=None, grpc_port=7001, metrics_port=None)
        assert (listen.address, listen.ports) == ("127.0.0.2", Ports(9000, 7001, 8002))
    listen = listen_settings(tmp_path.parent, address="0.0.0.0", http_port=0, grpc_port=None, metrics_port=None)
    assert (listen.address, listen.ports) == ("0.0.0.0", Ports(0, 8001, 8002))


def test_the_documentation_names_every_option() -> None:
    from trtbuild.cli.serve import serve

    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    options = [option for parameter in serve.params for option in parameter.opts if option.startswith("--")]
    assert len(options) > 8
    assert [option for option in options if f"`{option}" not in text and option != "--debug"] == []


@pytest.mark.triton
def test_ctrl_c_stops_the_real_server_and_leaves_nothing(repository: Path) -> None:
    with running(repository, *FREE, "--json") as process:
        ready = read_ready(process)
        prefix = server_prefix(ready["http_url"])
        assert len(shared_memory(prefix)) == 1
        process.send_signal(signal.SIGINT)
        code, stderr = finish(process)
        assert code == 0, stderr
        assert is_gone(ready["pid"])
        assert shared_memory(prefix) == []
        assert not Path(ready["log"]).parent.exists()


@pytest.mark.triton
def test_kill_9_leaves_no_real_server_and_no_shared_memory(repository: Path) -> None:
    with running(repository, *FREE, "--json") as process:
        ready = read_ready(process)
        prefix = server_prefix(ready["http_url"])
        (guard,) = children(process.pid)
        process.kill()
        wait_until_ended(guard)
        assert is_gone(ready["pid"])
        assert shared_memory(prefix) == []
        assert not Path(ready["log"]).parent.exists()
