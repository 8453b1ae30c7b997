"""`trtbuild reload` on the real tritonserver: no request is lost, and a version that does not load leaves no trace."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serve_helpers import request

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve import model_control
from trtbuild.serve.model_control import LoadFailed, ModelControl
from trtbuild.serve.reload import swap
from trtbuild.serve.supervisor import Server

Cli = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.triton

CONFIG = """
name: "says"
backend: "python"
max_batch_size: 0
input [{ name: "INPUT" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""
ENSEMBLE = """
name: "whole"
platform: "ensemble"
input [{ name: "INPUT" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [1] }]
ensemble_scheduling { step [{ model_name: "says" model_version: -1
  input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } }] }
"""
#: Answers with its number, after a while, so that requests are in flight when the versions change.
MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        %s

    def execute(self, requests):
        time.sleep(0.02)
        answer = np.array([%d], dtype=np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", answer)]) for _ in requests]
"""
QUESTION = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [0.0]}]}


def write_version(folder: Path, number: int, initialize: str = "pass") -> Path:
    """Write the files of a version that answers with a number."""
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL % (initialize, number), encoding="utf-8")
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with a model `says` and an ensemble of it."""
    folder = tmp_path / "models"
    write_version(folder / "says" / "1", 1)
    (folder / "whole" / "1").mkdir(parents=True)
    (folder / "says" / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (folder / "whole" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
    return folder


class Clients:
    """Threads that ask without a pause, and what they were answered."""

    def __init__(self, server: Server, models: tuple[str, ...]) -> None:
        self.answers: Counter[tuple[str, float]] = Counter()
        self.failures: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._arrived = threading.Condition(self._lock)
        self._url = server.http_url
        self._threads = [threading.Thread(target=self._run, args=(model,)) for model in models for _ in range(3)]

    def _run(self, model: str) -> None:
        while not self._stop.is_set():
            status, body = request("POST", f"{self._url}/v2/models/{model}/infer", QUESTION)
            with self._lock:
                if status == 200:
                    self.answers[model, json.loads(body)["outputs"][0]["data"][0]] += 1
                else:
                    self.failures.append(body.decode())
                self._arrived.notify_all()

    def wait_for(self, model: str, number: float, count: int = 5) -> None:
        """Wait until a version has answered so often since now."""
        with self._arrived:
            goal = self.answers[model, number] + count
            assert self._arrived.wait_for(lambda: self.answers[model, number] >= goal or self.failures, 30)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask while the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def test_versions_are_swapped_under_load_and_no_request_is_lost(models: Path, tmp_path: Path, cli: Cli) -> None:
    with Server(models, model_control="explicit") as server:
        clients = Clients(server, ("says", "whole"))
        with clients.asking():
            clients.wait_for("says", 1)
            clients.wait_for("whole", 1)
            for number in (2, 3):
                source = write_version(tmp_path / f"new-{number}", number)
                code, out, err = cli("reload", "says", "--repository", models, "--from", source, "--url", server.http_url, "--json")  # fmt: skip
                assert code == 0, err
                assert json.loads(out)["after"] == [number]
                clients.wait_for("says", number)
                clients.wait_for("whole", number)
        assert clients.failures == []
        assert {number for _, number in clients.answers} == {1.0, 2.0, 3.0}
    assert sorted(path.name for path in (models / "says").iterdir()) == ["1", "2", "3", "config.pbtxt"]


def test_a_version_that_does_not_load_is_taken_away_and_the_old_one_serves_on(models: Path, tmp_path: Path) -> None:
    with Server(models, model_control="explicit") as server:
        clients = Clients(server, ("says", "whole"))
        with clients.asking():
            clients.wait_for("says", 1)
            source = write_version(tmp_path / "bad", 2, 'raise ValueError("no such weights")')
            with pytest.raises(LoadFailed, match="no such weights") as failure:
                swap(ModelControl(server.http_url), models, "says", source, timeout_s=30)
            assert "taken away again" in failure.value.hint
            clients.wait_for("says", 1)
            clients.wait_for("whole", 1)
        assert clients.failures == []
        assert sorted(path.name for path in (models / "says").iterdir()) == ["1", "config.pbtxt"]
        assert ModelControl(server.http_url).ready_versions("says") == [1]


def test_without_model_control_it_is_refused_before_anything_is_written(models: Path, tmp_path: Path, cli: Cli) -> None:
    source = write_version(tmp_path / "new", 2)
    with Server(models) as server:
        code, _, err = cli("reload", "says", "--repository", models, "--from", source, "--url", server.http_url)
    assert (code, "--model-control explicit" in err) == (2, True), err
    assert sorted(path.name for path in (models / "says").iterdir()) == ["1", "config.pbtxt"]


@pytest.mark.parametrize(
    ("name", "policy", "version", "message"),
    [
        ("other", "", None, "has no model 'other'"),
        ("says", "", 1, "has a version 1 already"),
        ("says", "version_policy { specific { versions: [1] } }", None, r"serves \[1\] only"),
    ],
)
def test_what_the_server_would_not_load_is_refused(
    models: Path, tmp_path: Path, name: str, policy: str, version: int | None, message: str
) -> None:
    (models / "says" / "config.pbtxt").write_text(CONFIG + policy, encoding="utf-8")
    source = write_version(tmp_path / "new", 2)
    with Server(models, model_control="explicit") as server, pytest.raises(UsageError, match=message):
        swap(ModelControl(server.http_url), models, name, source, version=version, timeout_s=30)
    assert not (models / "says" / "2").exists()


def test_a_folder_without_the_model_is_refused(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"has no model\.py"):
        swap(ModelControl("127.0.0.1:1"), models, "says", tmp_path / "empty", timeout_s=1)
    with pytest.raises(TrtbuildError, match="no server answers at 127.0.0.1:1"):
        swap(ModelControl("127.0.0.1:1"), models, "says", write_version(tmp_path / "new", 2), timeout_s=1)


def test_explicit_model_control_is_for_loopback_only(models: Path) -> None:
    with pytest.raises(UsageError, match="whoever reaches it could load models"):
        Server(models, address="0.0.0.0", model_control="explicit")


def below(folder: Path) -> list[str]:
    """Return everything in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("ready", [1, 2])
def test_another_repository_than_the_servers_is_refused_and_nothing_is_written(
    models: Path, tmp_path: Path, cli: Cli, ready: int
) -> None:
    other = tmp_path / "other"
    shutil.copytree(models, other)
    if ready == 2:
        (models / "says" / "1").rename(models / "says" / "2")
    before = below(other)
    source = write_version(tmp_path / "new", 2)
    with Server(models, model_control="explicit") as server:
        began = time.monotonic()
        code, out, err = cli("reload", "says", "--repository", other, "--from", source, "--url", server.http_url)
        assert time.monotonic() - began < 30
    assert (code, out) == (2, "")
    assert ("does not serve" if ready == 1 else "serves version 2 of says") in err
    assert "must be the repository that this server serves" in err
    assert below(other) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_reload_takes_its_version_away(models: Path, tmp_path: Path, number: signal.Signals) -> None:
    began = tmp_path / "began"
    source = write_version(tmp_path / "new", 2, f"open({str(began)!r}, 'w').close(); time.sleep(3)")
    with Server(models, model_control="explicit") as server:
        command = [sys.executable, "-m", "trtbuild", "reload", "says", "--repository", models, "--from", source, "--url", server.http_url]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            while not began.exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err.strip()) == (130, "interrupted")
        assert sorted(path.name for path in (models / "says").iterdir()) == ["1", "config.pbtxt"]
        assert ModelControl(server.http_url).ready_versions("says") == [1]


def test_the_grpc_port_is_told_from_the_http_port(models: Path, tmp_path: Path, cli: Cli) -> None:
    source = write_version(tmp_path / "new", 2)
    with Server(models, model_control="explicit") as server:
        code, _, err = cli("reload", "says", "--repository", models, "--from", source, "--url", server.grpc_url)
    assert (code, "it is a gRPC port" in err, err.replace("\n", "").isprintable()) == (2, True, True), err


def test_a_server_of_another_kind_is_told_in_printable_words(models: Path, tmp_path: Path, cli: Cli) -> None:
    source = write_version(tmp_path / "new", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x1b[31mSSH-2.0\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        code, _, err = cli("reload", "says", "--repository", models, "--from", source, "--url", url)
        thread.join()
    assert (code, "does not speak HTTP/1.1" in err, "gRPC" in err, "\x1b" in err) == (2, True, False, False), err


@pytest.mark.parametrize("answer", [{"models": []}, [{"version": "1"}], [{"name": "says", "version": "x"}]])
def test_an_index_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(model_control.ModelControl, "_ask", lambda *_, **__: (200, answer))
    with pytest.raises(TrtbuildError, match="has no index of its repository"):
        ModelControl("127.0.0.1:1").states()


def test_a_load_that_does_not_bring_the_version_is_a_failure(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.serve.reload._INDEX_S", 0.2)
    monkeypatch.setattr(ModelControl, "load", lambda *_, **__: None)
    source = write_version(tmp_path / "new", 2)
    with Server(models, model_control="explicit") as server, pytest.raises(LoadFailed, match="does not serve version 2"):  # fmt: skip
        swap(ModelControl(server.http_url), models, "says", source, timeout_s=30)
    assert not (models / "says" / "2").exists()


ENGINE_CONFIG = """
name: "core"
backend: "tensorrtllm"
parameters { key: "gpt_model_path" value: { string_value: "/engines/1" } }
"""


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.pbtxt", "1/model.py"], "is a model, not a version of one"),
        (["model.py"], "has Python code, and .* has none of it"),
        (["config.json", "rank0.engine"], "loads that of gpt_model_path, /engines/1"),
        (["model.py", "model.yaml"], "has Python code and settings of the LLM API, and"),
    ],
)
def test_a_version_of_another_kind_is_refused(models: Path, tmp_path: Path, files: list[str], message: str) -> None:
    (models / "core" / "1").mkdir(parents=True)
    (models / "core" / "config.pbtxt").write_text(ENGINE_CONFIG, encoding="utf-8")
    for name in files:
        file = tmp_path / "new" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        swap(ModelControl("127.0.0.1:1"), models, "core", tmp_path / "new", timeout_s=1)


@pytest.mark.parametrize(
    ("parameter", "value", "refused"),
    [("gpt_model_path", "/engines/2", True), ("tokenizer_dir", "/x", True), ("max_queue", "3", False)],
)
def test_a_version_of_a_model_with_other_paths_is_refused(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, parameter: str, value: str, refused: bool
) -> None:
    source = write_version(tmp_path / "new" / "says" / "1", 2)
    text = f'{CONFIG}\nparameters {{ key: "{parameter}" value: {{ string_value: "{value}" }} }}\n'
    (source.parent / "config.pbtxt").write_text(text, encoding="utf-8")
    with caplog.at_level("WARNING"), pytest.raises(TrtbuildError) as failure:
        swap(ModelControl("127.0.0.1:1"), models, "says", source, timeout_s=1)
    said = failure.value.message if refused else caplog.text
    assert ("which is not swapped" in said, parameter in said) == (True, True)
    assert ("no server answers" in failure.value.message) == (not refused)
