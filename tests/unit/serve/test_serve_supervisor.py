"""The supervisor against stand-in servers that crash, hang, refuse to stop or leave children behind."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from serve_helpers import is_gone, wait_until_ended, wait_until_gone

from trtbuild.errors import TrtbuildError
from trtbuild.serve.ports import Ports
from trtbuild.serve.supervisor import Server, ServerEnded

StubServer = Callable[[str], Path]


def start_error(repository: Path, server: Path, ready_timeout_s: float = 30) -> TrtbuildError:
    """Return the error of a start that must fail."""
    with pytest.raises(TrtbuildError) as caught, Server(repository, server=server, ready_timeout_s=ready_timeout_s):
        pass
    return caught.value


def test_a_server_is_ready_inside_the_block_and_gone_after_it(repository: Path, stub_server: StubServer) -> None:
    with Server(repository, server=stub_server("ready")) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.http_url)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", server.grpc_url)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", server.metrics_url)
        assert server.models == ["echo"]
        pid = server.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
        run_folder = server.log_path.parent
    assert is_gone(pid)
    assert not run_folder.exists()


def test_a_named_log_is_appended_to_and_kept(repository: Path, stub_server: StubServer, tmp_path: Path) -> None:
    log = tmp_path / "ж.log"
    log.write_text("earlier error: of another run\n", encoding="utf-8")
    with Server(repository, server=stub_server("ready"), log_path=log):
        pass
    assert log.read_text(encoding="utf-8") == "earlier error: of another run\nleaving because of SIGINT\n"


def test_a_log_that_cannot_be_written_is_an_error(repository: Path, stub_server: StubServer, tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"cannot write the log .*nowhere"):
        Server(repository, server=stub_server("ready"), log_path=tmp_path / "nowhere" / "log").start()


def test_readiness_is_waited_for_while_the_server_is_only_alive(repository: Path, stub_server: StubServer) -> None:
    with Server(repository, server=stub_server("slow")) as server:
        assert server.ready_s > 0


def test_a_crash_during_start_names_the_signal_and_the_last_log_line(repository: Path, stub_server: StubServer) -> None:
    error = start_error(repository, stub_server("crash"))
    assert "did not start: killed by signal 11 (SIGSEGV)" in error.message
    assert "about to crash" in error.message


def test_exit_code_139_is_explained_as_a_signal_seen_by_a_shell(repository: Path, stub_server: StubServer) -> None:
    assert (
        "exit code 139 (a shell's word for signal 11, SIGSEGV)"
        in start_error(repository, stub_server("shell_crash")).message
    )


def test_a_model_that_does_not_load_is_reported_in_the_servers_own_words(
    repository: Path, stub_server: StubServer
) -> None:
    message = start_error(repository, stub_server("load_failure")).message
    assert message == (
        "tritonserver did not start: exit code 1\n"
        "  failed to load 'core' version 1: Internal: ValueError: no \"Яблоко\"\n"
        "  \n"
        "  At:\n"
        "    model.py(5)"
    )


def test_a_start_that_cannot_succeed_any_more_is_not_waited_for(repository: Path, stub_server: StubServer) -> None:
    error = start_error(repository, stub_server("hopeless"), ready_timeout_s=300)
    assert "cannot load a model" in error.message
    assert "Python model file not found" in error.message


def test_the_deadline_names_models_still_loading_and_what_was_seen(
    repository: Path, stub_server: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    error = start_error(repository, stub_server("never_answers"), ready_timeout_s=3)
    assert "was not ready after 3 s; models still loading: core\n" in error.message
    assert "successfully loaded 'post'" in error.message
    assert re.search(r"/dev/shm holds \d+ MiB; CUDA_VISIBLE_DEVICES is 2,3", error.hint)


def test_a_silent_server_runs_into_the_deadline(repository: Path, stub_server: StubServer) -> None:
    error = start_error(repository, stub_server("silent"), ready_timeout_s=0.2)
    assert "none that it mentions\n  (it logged nothing)" in error.message
    assert "CUDA_VISIBLE_DEVICES is" in error.hint


def test_another_server_on_the_port_is_not_taken_for_ours(repository: Path, stub_server: StubServer) -> None:
    assert "not ready" in start_error(repository, stub_server("other"), ready_timeout_s=2).message


def test_a_server_deaf_to_signals_is_killed_in_the_end(
    repository: Path, stub_server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    with Server(repository, server=stub_server("ignores_signals"), stop_grace_s=0.1, log_path=log) as server:
        pid = server.pid
    assert is_gone(pid)
    assert log.read_text(encoding="utf-8") == "got SIGINT\ngot SIGTERM\n"


def test_children_of_the_server_are_gone_with_it(repository: Path, stub_server: StubServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Server(repository, server=stub_server("forks"), log_path=log):
        pids = [int(number) for number in re.findall(r"child (\d+)", log.read_text(encoding="utf-8"))]
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in pids)
    assert all(is_gone(pid) for pid in pids)


def test_orphans_of_the_server_do_not_pile_up_as_zombies(
    repository: Path, stub_server: StubServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with Server(repository, server=stub_server("orphans"), log_path=log):
        (number,) = re.findall(r"child (\d+)", log.read_text(encoding="utf-8"))
        wait_until_gone(int(number))


def test_a_server_killed_from_outside_is_reported_and_its_children_are_gone(
    repository: Path, stub_server: StubServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with Server(repository, server=stub_server("forks"), log_path=log) as server:
        pids = [int(number) for number in re.findall(r"child (\d+)", log.read_text(encoding="utf-8"))]
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(TrtbuildError, match=r"ended by itself: killed by signal 9 \(SIGKILL\)\n  child \d+"):
            server.watch()
        assert all(is_gone(pid) for pid in [server.pid, *pids])


def test_a_server_that_aborts_when_a_stub_is_killed_is_reported_with_the_stub(
    repository: Path, stub_server: StubServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with Server(repository, server=stub_server("aborts_with_a_stub"), log_path=log) as server:
        (pid,) = re.findall(r"child (\d+)", log.read_text(encoding="utf-8"))
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(ServerEnded) as caught:
            server.watch()
    died = f"(pid {pid}) died: killed by signal 9 (SIGKILL); tritonserver ended with it: killed by signal 6 (SIGABRT)"
    assert died in caught.value.message


def test_a_killed_guard_takes_the_server_with_it_and_leaves_nothing(repository: Path, stub_server: StubServer) -> None:
    with Server(repository, server=stub_server("ready")) as server:
        pid = server.pid
        guard = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        os.kill(guard, signal.SIGKILL)
        with pytest.raises(TrtbuildError, match="ended by itself: killed by signal 9"):
            server.watch()
        wait_until_ended(pid)


def test_lines_of_the_log_are_passed_on_while_watching(repository: Path, stub_server: StubServer) -> None:
    lines: list[str] = []
    with Server(repository, server=stub_server("forks"), on_log=lines.append) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(TrtbuildError):
            server.watch()
    assert len(lines) == 2
    assert all(line.startswith("child ") for line in lines)


def test_stopping_twice_is_harmless_and_a_stopped_server_has_no_pid(repository: Path, stub_server: StubServer) -> None:
    server = Server(repository, server=stub_server("ready"))
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(TrtbuildError, match="not running"):
        _ = server.pid


def test_an_exception_in_the_block_stops_the_server(repository: Path, stub_server: StubServer) -> None:
    pid = 0
    with pytest.raises(ZeroDivisionError), Server(repository, server=stub_server("ready")) as server:
        pid = server.pid
        _ = 1 // 0
    assert is_gone(pid)


def test_an_occupied_port_is_named_with_its_option_before_anything_starts(
    repository: Path, stub_server: StubServer
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TrtbuildError, match=rf"--grpc-port {port} is already in use"):
            Server(repository, server=stub_server("ready"), ports=Ports(grpc=port)).start()


def test_a_file_that_is_no_program_is_reported_as_such(repository: Path, tmp_path: Path) -> None:
    server = tmp_path / "tritonserver"
    server.write_bytes(b"\x7fELF, but not really")
    server.chmod(0o755)
    assert "Exec format error" in start_error(repository, server).message


def test_an_address_beyond_this_machine_is_warned_about(
    repository: Path, stub_server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(repository, server=stub_server("ready"), address="0.0.0.0") as server:
        assert server.grpc_url.startswith("127.0.0.1:")
    assert any("no authentication" in record.message for record in caplog.records)


def test_the_command_line_is_safe_by_default(repository: Path, tmp_path: Path) -> None:
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\necho "$@"\nexit 3\n', encoding="utf-8")
    server.chmod(0o755)
    message = start_error(repository, server).message
    for address in ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"):
        assert address in message
    assert "--model-control-mode=none" in message
    assert "--disable-auto-complete-config" in message
    assert re.search(r"--backend-config=python,shm-region-prefix-name=trtbuild_[0-9a-f]{12}_", message)
