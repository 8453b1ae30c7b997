"""Restarts, ranks under mpirun, docker, the smoke prompt, and requests in flight when a server is told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from serve_helpers import is_gone, request, wait_until_gone, write_echo
from test_launch_plan import write_build
from test_serve_cli import FREE, finish, read_ready, running

from trtbuild.errors import CheckFailed, TrtbuildError
from trtbuild.serve.keeping import keep, pause_before
from trtbuild.serve.processes import Processes
from trtbuild.serve.smoke import smoke
from trtbuild.serve.supervisor import Server, ServerEnded

StubServer = Callable[[str], Path]

#: Starts what is between colons, and ends all when one ends: what matters here of Open MPI's mpirun.
MPIRUN = """#!{python}
import signal, subprocess, sys, time
words = sys.argv[1:]
while words[0] != "-n":
    words = words[1:]
groups, group = [], []
for word in [*words, ":"]:
    if word == ":":
        groups.append(group[2:])
        group = []
    else:
        group.append(word)
ranks = [subprocess.Popen(each) for each in groups]
print("ranks", *(rank.pid for rank in ranks), flush=True)
{handler}
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.02)
code = next(rank.returncode for rank in ranks if rank.returncode is not None)
for rank in ranks:
    rank.kill()
    rank.wait()
sys.exit(abs(code))
"""
FORWARD = "signal.signal(signal.SIGINT, lambda *_: [rank.send_signal(signal.SIGINT) for rank in ranks])"


@pytest.fixture
def mpirun(tmp_path: Path) -> Path:
    """A stand-in for mpirun."""
    file = tmp_path / "mpirun"
    file.write_text(MPIRUN.format(python=sys.executable, handler=FORWARD), encoding="utf-8")
    file.chmod(0o755)
    return file


def ranks_in(log: Path) -> list[int]:
    """Return the process ids that the stand-in for mpirun wrote to the log."""
    line = next(line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("ranks "))
    return [int(word) for word in line.split()[1:]]


def two_ranks(repository: Path, stub: Path, mpirun: Path, log: Path) -> Server:
    """Return a server of two ranks, not started."""
    processes = Processes(2, ("echo",), mpirun=str(mpirun))
    return Server(repository, server=stub, log_path=log, processes=processes)


def test_ranks_are_started_together_and_gone_together(
    repository: Path, stub_server: StubServer, mpirun: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with two_ranks(repository, stub_server("rank"), mpirun, log) as server:
        pids = ranks_in(log)
        assert len(pids) == 2
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in pids]
        assert [any(word.startswith("--http-port=") for word in command) for command in commands] == [True, False]
        assert "--allow-http=false" in commands[1] and "--load-model=echo" in commands[1]
        assert json.loads(request("GET", f"{server.http_url}/v2")[1])["name"]
    assert all(is_gone(pid) for pid in pids)


def test_when_a_rank_dies_all_do(repository: Path, stub_server: StubServer, mpirun: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with two_ranks(repository, stub_server("rank"), mpirun, log) as server:
        pids = ranks_in(log)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ServerEnded, match="ended by itself: exit code 9"):
            server.watch()
        for pid in pids:
            wait_until_gone(pid)


def test_when_mpirun_is_killed_no_rank_is_left(
    repository: Path, stub_server: StubServer, mpirun: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with two_ranks(repository, stub_server("rank"), mpirun, log) as server:
        pids = ranks_in(log)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerEnded, match="SIGKILL"):
            server.watch()
        for pid in pids:
            wait_until_gone(pid)


def test_a_start_that_takes_too_long_says_how_many_ranks_there_are(
    repository: Path, stub_server: StubServer, mpirun: Path
) -> None:
    processes = Processes(2, ("echo",), environment={"CUDA_VISIBLE_DEVICES": "4,5"}, mpirun=str(mpirun))
    server = Server(repository, server=stub_server("loading"), ready_timeout_s=1, processes=processes)
    with pytest.raises(TrtbuildError, match="models still loading: core") as failure:
        server.start()
    assert "CUDA_VISIBLE_DEVICES is 4,5; world size is 2" in failure.value.hint
    assert "/dev/shm holds" in failure.value.hint


def test_serve_with_mpirun_takes_the_ranks_of_the_engine(
    stub_server: StubServer, mpirun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = write_build(tmp_path / "build", tp=2)
    monkeypatch.setenv("PATH", f"{mpirun.parent}:{os.environ['PATH']}")
    log = tmp_path / "log"
    options = ("--with", "mpirun", "--gpus", "4,5", "--json", "--log", log)
    with running(build, "--server", stub_server("rank"), *FREE, *options) as process:
        ready = read_ready(process)
        pids = ranks_in(log)
        assert (ready["models"], len(pids)) == (["tensorrt_llm"], 2)
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            assert "CUDA_VISIBLE_DEVICES=4,5" in environment
        process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 0
        assert all(is_gone(pid) for pid in pids)


def test_a_server_that_ends_is_started_again_so_often_and_on_the_same_ports(
    repository: Path, stub_server: StubServer
) -> None:
    server = Server(repository, server=stub_server("ready"))
    seen, pauses = [], []

    def kill(ready: Server) -> None:
        seen.append((ready.pid, ready.http_url))
        os.kill(ready.pid, signal.SIGKILL)

    with pytest.raises(ServerEnded, match=r"SIGKILL.*after 2 restart\(s\)$|after 2 restart"):
        keep(server, restarts=2, on_ready=kill, pause=pauses.append)
    assert pauses == [1, 2]
    assert len({pid for pid, _ in seen}) == 3
    assert len({url for _, url in seen}) == 1


def test_pauses_are_doubled_up_to_a_minute() -> None:
    assert [pause_before(number) for number in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]


def test_a_first_start_that_fails_is_not_repeated(repository: Path, stub_server: StubServer) -> None:
    pauses: list[float] = []
    with pytest.raises(TrtbuildError, match="cannot load|did not start"):
        keep(Server(repository, server=stub_server("load_failure")), restarts=3, on_ready=print, pause=pauses.append)
    assert pauses == []


def test_restarts_are_off_unless_asked_for(repository: Path, stub_server: StubServer) -> None:
    with running(repository, "--server", stub_server("ready"), *FREE, "--json", "--restarts", "1") as process:
        first = read_ready(process)
        os.kill(first["pid"], signal.SIGKILL)
        second = read_ready(process)
        assert (second["http_url"], second["pid"] != first["pid"]) == (first["http_url"], True)
        os.kill(second["pid"], signal.SIGKILL)
        code, stderr = finish(process)
    assert (code, "restart 1 of 1 in 1 s" in stderr) == (1, True)


def test_a_smoke_prompt_needs_a_model_that_takes_text(repository: Path, stub_server: StubServer) -> None:
    with (
        Server(repository, server=stub_server("ready")) as server,
        pytest.raises(CheckFailed, match="no model takes text"),
    ):
        smoke(server, "Hello")
    with running(repository, "--server", stub_server("ready"), *FREE, "--json", "--smoke", "Hello") as process:
        code, stderr = finish(process)
    assert (code, "no model takes text" in stderr) == (3, True)


TEXT_CONFIG = """
name: "ensemble"
backend: "python"
max_batch_size: 0
input [
  { name: "text_input" data_type: TYPE_STRING dims: [-1] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [-1] },
  { name: "stream" data_type: TYPE_BOOL dims: [-1] optional: true }
]
output [{ name: "text_output" data_type: TYPE_STRING dims: [-1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""
TEXT_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answer = np.array([%r.encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", answer)]) for _ in requests]
"""


@pytest.mark.triton
@pytest.mark.parametrize(("answer", "code"), [(" Paris", 0), ("", 3)])
def test_a_smoke_prompt_is_answered_by_the_real_server(tmp_path: Path, answer: str, code: int) -> None:
    version = tmp_path / "repository" / "ensemble" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(TEXT_CONFIG, encoding="utf-8")
    (version / "model.py").write_text(TEXT_MODEL % answer, encoding="utf-8")
    with running(tmp_path / "repository", *FREE, "--json", "--smoke", "The capital of France is") as process:
        if code == 0:
            read_ready(process)
            process.send_signal(signal.SIGINT)
        ended, stderr = finish(process)
    assert ended == code, stderr
    assert ("with nothing" if code else "Paris") in stderr


@pytest.mark.triton
def test_requests_in_flight_are_finished_and_new_ones_refused_when_it_is_told_to_stop(tmp_path: Path) -> None:
    """The model tells that it has begun by a file, and ends when another one is there."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    repository = write_echo(tmp_path / "repository")
    model = repository / "echo" / "1" / "model.py"
    waits = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch()\n        while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"  # fmt: skip
    text = model.read_text(encoding="utf-8").replace("        arrays =", f"        {waits}        arrays =")
    model.write_text(text, encoding="utf-8")
    question = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [7.0]}]}
    answers: list[tuple[int, bytes]] = []
    with running(repository, *FREE, "--json", "--grace", "20") as process:
        url = f"{read_ready(process)['http_url']}/v2/models/echo/infer"
        asking = threading.Thread(target=lambda: answers.append(request("POST", url, question)))
        asking.start()
        subprocess.run(["sh", "-c", f"until [ -e {begun} ]; do sleep 0.02; done"], timeout=30, check=True)
        process.terminate()
        refused = _until_refused(url, question)
        go.touch()
        asking.join(30)
        code, stderr = finish(process)
    assert (code, refused) == (0, True), stderr
    assert answers and answers[0][0] == 200, answers
    assert json.loads(answers[0][1])["outputs"][0]["data"] == [7.0]


def _until_refused(url: str, question: object) -> bool:
    """Ask for the health of a server that is ending until it is not ready or not there."""
    base = url.partition("/v2/")[0]
    for _ in range(1000):
        try:
            if request("GET", f"{base}/v2/health/ready")[0] != 200:
                return True
        except OSError:
            return True
    return False


DOCKER = """#!{python}
import os, sys
words = sys.argv[1:]
with open({calls!r}, "a") as file:
    print(*words, file=file)
if words[0] == "run":
    with open(words[words.index("--cidfile") + 1], "w") as file:
        file.write("c0ffee")
    start = words.index("tritonserver")
    os.execv({stub!r}, [{stub!r}, *words[start + 1:]])
"""


def test_docker_is_run_waited_for_and_its_container_removed(
    stub_server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtbuild.serve.ports import Ports, resolve

    calls, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    docker = tools / "docker"
    docker.write_text(DOCKER.format(python=sys.executable, calls=str(calls), stub=str(stub_server("ready"))), encoding="utf-8")  # fmt: skip
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    build = write_build(tmp_path / "build", seen_as="/deployment")
    ports = resolve("127.0.0.1", Ports())
    options = [part for option, port in ports.named().items() for part in (option, str(port))]
    with running(build, "--with", "docker", "--name", "qwen", *options, "--json") as process:
        ready = read_ready(process)
        assert ready["http_url"] == f"http://127.0.0.1:{ports.http}"
        process.terminate()
        assert finish(process)[0] == 0
    told = calls.read_text(encoding="utf-8").splitlines()
    assert told[0].startswith("run --cidfile ") and "--user 1000:1000" in told[0]
    assert told[1] == "rm --force c0ffee"
    assert is_gone(ready["pid"])


STREAM_MODEL = """
import pathlib, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        for word in ("one", " two", " three"):
            answer = np.array([word.encode()], dtype=object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", answer)]))
            while not pathlib.Path(%r).exists():
                time.sleep(0.01)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.triton
def test_a_stream_in_flight_gets_all_of_its_answer_when_the_server_is_told_to_stop(tmp_path: Path) -> None:
    from trtbuild_client import Client

    go, log = tmp_path / "go", tmp_path / "log"
    version = tmp_path / "repository" / "ensemble" / "1"
    version.mkdir(parents=True)
    config = TEXT_CONFIG + "model_transaction_policy { decoupled: true }\n"
    (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    (version / "model.py").write_text(STREAM_MODEL % str(go), encoding="utf-8")
    options = ("--json", "--grace", "30", "--log", log)
    with running(tmp_path / "repository", *FREE, *options) as process:
        ready = read_ready(process)
        with Client(ready["grpc_url"], "ensemble", timeout_s=30) as client:
            stream = iter(client.stream("count", max_tokens=8))
            words = [next(stream).text]
            process.terminate()
            assert _until_refused(f"{ready['http_url']}/v2/", None)
            go.touch()
            words += [chunk.text for chunk in stream]
        code, stderr = finish(process)
    assert "".join(words) == "one two three", stderr
    assert code == 0
    assert "Exit timeout expired" not in log.read_text(encoding="utf-8")
