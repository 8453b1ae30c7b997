"""What launch files ask a container: its HTTP endpoint, and whether a stub is dead, which tritonserver does not notice."""

from __future__ import annotations

import http.server
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import PATIENCE_S, children, request, wait_until_ended, write_echo
from test_launch_plan import documents, plan_of, text_of, write_build

from trtbuild.dockerfile import parse_dockerfile
from trtbuild.serve.launch.health_check import health_check
from trtbuild.serve.python_stub import STUB_COMM, STUB_NAME
from trtbuild.serve.supervisor import Server

DOCKERFILE = Path(__file__).parents[3] / "docker" / "server" / "Dockerfile"
#: Shells that images have as `sh`, if this machine has them.
SHELLS = [words for words in (["sh"], ["bash", "--posix"], ["dash"], ["busybox", "sh"]) if shutil.which(words[0])]

Child = Callable[..., "subprocess.Popen[bytes]"]
Check = Callable[..., tuple[int, str]]


class _Endpoint(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 400)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a server that answers 200 to /ready and 400 to all else."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """Return a folder like /proc with no processes in it; those of a container are linked there."""
    folder = tmp_path / "proc"
    folder.mkdir()
    return folder


def put(container: Path, *pids: int) -> None:
    """Make processes visible in a container."""
    for pid in pids:
        (container / str(pid)).symlink_to(f"/proc/{pid}")


@pytest.fixture(params=SHELLS, ids=" ".join)
def check(request: pytest.FixtureRequest, container: Path, port: int) -> Check:
    """A function that runs the check in a container and returns exit code and output."""

    def run(path: str = "/ready", port: int = port) -> tuple[int, str]:
        text = health_check(port, path).replace("/proc/", f"{container}/")
        done = subprocess.run([*request.param, "-c", text], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


@pytest.fixture
def child(tmp_path: Path, container: Path) -> Iterator[Child]:
    """A function that starts a process with a name in the container, which runs a script that first writes a line."""
    put(container, os.getpid())
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, name: str = STUB_NAME, program: str = "/bin/sh") -> subprocess.Popen[bytes]:
        path = tmp_path / name
        path.write_text(f"#!{program}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        put(container, process.pid)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process; it stays a zombie, since nobody waits for it."""
    process.kill()
    wait_until_ended(process.pid)
    assert " Z " in Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")


def test_a_stub_that_was_killed_fails_until_it_is_reaped(child: Child, check: Check) -> None:
    process = child("echo begun; read line")
    assert check() == (0, "")
    kill(process)
    assert [check(), check()] == [(1, f"process {process.pid} of a Python model has died\n")] * 2
    process.wait()
    assert check() == (0, "")


def test_zombies_of_other_names_are_none_of_ours(child: Child, check: Check) -> None:
    for name in (STUB_COMM[:-1], f"a {STUB_COMM}", "python3"):
        kill(child("echo begun; read line", name))
    assert check() == (0, "")


def test_a_process_that_a_stub_has_forked_is_no_stub(child: Child, check: Check, container: Path) -> None:
    script = "import os, sys\nos.fork() or os._exit(0)\nprint('begun', flush=True)\nsys.stdin.read()"
    stub = child(script, program=sys.executable)
    [forked] = children(stub.pid)
    wait_until_ended(forked)
    put(container, forked)
    assert f"({STUB_COMM}) Z {stub.pid} " in Path(f"/proc/{forked}/stat").read_text(encoding="utf-8")
    assert check() == (0, "")


def test_an_endpoint_that_does_not_answer_200_fails(check: Check, port: int) -> None:
    assert check("/ready") == (0, "")
    assert check("/other") == (1, f"http://127.0.0.1:{port}/other does not answer 200\n")
    assert check("/ready", port=9)[0] == 1  # the port discard, where nothing listens


def test_an_image_without_curl_is_not_called_dead_for_that(
    child: Child, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for shell in {words[0] for words in SHELLS}:
        (tmp_path / shell).symlink_to(str(shutil.which(shell)))
    process = child("echo begun; read line")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check("/other") == (0, "")
    kill(process)
    assert check("/other") == (1, f"process {process.pid} of a Python model has died\n")


def test_kubernetes_asks_for_both_more_than_once(tmp_path: Path) -> None:
    plan = plan_of(write_build(tmp_path / "build", tp=2, seen_as="/deployment"), "kubernetes")
    [container] = documents(plan)["Deployment"]["spec"]["template"]["spec"]["containers"]
    check_probes(container)


def check_probes(container: dict[str, Any]) -> None:
    """Assert that readiness and liveness of a container look after stubs."""
    for probe, path in (("readinessProbe", "/v2/health/ready"), ("livenessProbe", "/v2/health/live")):
        assert container[probe]["exec"]["command"] == ["/bin/sh", "-c", health_check(8000, path)]
        assert container[probe]["failureThreshold"] > 1
        assert "httpGet" not in container[probe]


def test_the_leader_of_several_pods_asks_for_both(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", tp=4, pp=2, seen_as="/deployment", spec="hardware: {count: 4}\n")
    found = documents(plan_of(build, "kubernetes"), kubectl_image="kubectl:1")["LeaderWorkerSet"]
    check_probes(found["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0])


def test_kubernetes_finds_nothing_to_replace_in_it() -> None:
    text = health_check(8000, "/v2/health/live")
    assert "$(" not in text and "$$" not in text and "\n" not in text


def test_trtbuild_serve_in_a_container_is_asked_for_its_endpoints_only(tmp_path: Path) -> None:
    repository = write_echo(tmp_path / "repository")
    [container] = documents(plan_of(repository, "kubernetes"))["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert "--health" not in text_of(plan_of(repository, "docker"), "docker")


def test_docker_gets_the_check_as_one_word_and_its_retries(tmp_path: Path) -> None:
    script = text_of(plan_of(write_build(tmp_path / "build", seen_as="/deployment"), "docker"), "docker")
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    docker.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    given = {word: words[index + 1] for index, word in enumerate(words) if word.startswith("--health-")}
    assert given["--health-cmd"] == health_check(8000, "/v2/health/ready")
    assert int(given["--health-retries"]) > 1
    assert given["--health-start-period"] == "960s"
    assert words.index("--health-cmd") < words.index("tritonserver")


def test_the_servers_image_writes_the_same_check_where_it_runs_it() -> None:
    found = parse_dockerfile(DOCKERFILE.read_text(encoding="utf-8"))
    [made] = [each.value for each in found if each.name == "RUN" and ">" in each.value]
    program, *words = shlex.split(made.partition("&&")[2])
    assert program == "/opt/trtbuild/bin/python"
    file = words.pop().removeprefix(">")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    assert done.stdout == health_check(8000, "/v2/health/ready") + "\n"
    [health] = [each.value for each in found if each.name == "HEALTHCHECK"]
    assert "--retries=4 " in health and health.endswith(f'CMD ["sh", "{file}"]')


@pytest.mark.triton
def test_a_real_server_that_still_says_ready_fails_and_one_that_unloads_does_not(
    tmp_path: Path, container: Path
) -> None:
    def look() -> int:
        for link in container.iterdir():
            link.unlink()
        put(container, server.pid, *children(server.pid))
        text = health_check(server.ports.http, "/v2/health/ready").replace("/proc/", f"{container}/")
        return subprocess.run(["sh", "-c", text], stdout=subprocess.DEVNULL, check=False).returncode

    repository = write_echo(tmp_path / "repository")
    with Server(repository, model_control="explicit") as server:
        assert look() == 0
        [stub] = [pid for pid in children(server.pid) if STUB_NAME in Path(f"/proc/{pid}/cmdline").read_text()]
        assert request("POST", f"{server.http_url}/v2/repository/models/echo/unload", {})[0] == 200
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{stub}").exists():
            assert time.monotonic() < deadline, "the stub of the unloaded model stays"
            time.sleep(0.05)
        assert look() == 0
        assert request("POST", f"{server.http_url}/v2/repository/models/echo/load", {})[0] == 200
        [stub] = [pid for pid in children(server.pid) if STUB_NAME in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(stub, signal.SIGKILL)
        wait_until_ended(stub)
        assert request("GET", f"{server.http_url}/v2/health/ready")[0] == 200
        assert [look(), look()] == [1, 1]
