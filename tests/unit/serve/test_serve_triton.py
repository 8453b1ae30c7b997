"""The real tritonserver: ready, in UTF-8, with this interpreter, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
from pathlib import Path

import numpy as np
import pytest
from serve_helpers import is_gone, request, server_prefix, shared_memory, wait_until_ended, write_echo

from trtbuild.errors import TrtbuildError
from trtbuild.serve.locate import find_server
from trtbuild.serve.supervisor import Server

pytestmark = pytest.mark.triton

#: What a model sees, written to the log as one line of JSON.
REPORT = (
    "import json, os, ssl, sys, numpy; print(json.dumps({"
    "'version': sys.version, 'prefix': sys.prefix, 'openssl': ssl.OPENSSL_VERSION, 'word': 'Яблоко 🙂', "
    "'default': open(__file__).encoding.lower(), 'secret': os.environ.get('HF_TOKEN'), "
    "'offline': os.environ.get('HF_HUB_OFFLINE')}, ensure_ascii=False))"
)


@pytest.fixture
def posix_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a bare container, with a token in it."""
    for name in ("LC_ALL", "LANG"):
        monkeypatch.setenv(name, "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")


def infer(server: Server, values: list[float]) -> list[float]:
    """Send one request to the model echo over HTTP."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [len(values)], "data": values}
    status, body = request("POST", f"{server.http_url}/v2/models/echo/infer", {"inputs": [tensor]})
    assert status == 200, body
    data: list[float] = json.loads(body)["outputs"][0]["data"]
    return data


def test_a_model_runs_in_this_interpreter_in_utf8_without_secrets_and_nothing_is_left(
    tmp_path: Path, posix_locale: None
) -> None:
    repository = write_echo(tmp_path / "a repository of Яков's", REPORT)
    log = tmp_path / "log"
    with Server(repository, log_path=log) as server:
        assert infer(server, [1.0, 2.5]) == [1.0, 2.5]
        assert b"nv_inference_request_success" in request("GET", server.metrics_url)[1]
        prefix, pid = server_prefix(server.http_url), server.pid
        assert len(shared_memory(prefix)) == 1
        seen = json.loads(next(line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")))
    assert seen == {
        "version": sys.version,
        "prefix": sys.prefix,
        "openssl": ssl.OPENSSL_VERSION,
        "word": "Яблоко 🙂",
        "default": "utf-8",
        "secret": None,
        "offline": "1",
    }
    assert is_gone(pid)
    assert shared_memory(prefix) == []


EXCHANGE_CONFIG = """
name: "%s"
backend: "python"
max_batch_size: 0
%s
instance_group [{ kind: KIND_CPU count: 1 }]
"""
#: Returns what it gets, contiguous or not, writable or not; `calls` does so through a call of `gives`.
EXCHANGE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.calls = args["model_name"] == "calls"

    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = request.inputs()
            if self.calls:
                names = ["OUT_" + tensor.name()[3:] for tensor in tensors]
                answer = pb_utils.InferenceRequest(model_name="gives", requested_output_names=names, inputs=tensors).exec()
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                outputs = [pb_utils.Tensor(tensor.name(), tensor.as_numpy()) for tensor in answer.output_tensors()]
            else:
                arrays = {tensor.name()[3:]: tensor.as_numpy() for tensor in tensors}
                arrays["INT32"] = np.repeat(arrays["INT32"], 2, axis=1)[:, ::2]
                arrays["FP32"] = np.asfortranarray(arrays["FP32"])
                arrays["INT64"].flags.writeable = False
                outputs = [pb_utils.Tensor("OUT_" + name, array) for name, array in arrays.items()]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "INT8": "int8", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip


@pytest.fixture
def exchange_repository(tmp_path: Path) -> Path:
    """Two models that return tensors of every dtype, `gives` itself and `calls` by calling it."""
    repository = tmp_path / "repository"
    tensors = "".join(
        f'{way} [{{ name: "{prefix}_{name}" data_type: TYPE_{name.replace("BYTES", "STRING")} dims: [-1, -1] }}]\n'
        for way, prefix in (("input", "IN"), ("output", "OUT"))
        for name in DTYPES
    )
    for model in ("gives", "calls"):
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(EXCHANGE_CONFIG % (model, tensors), encoding="utf-8")
        (repository / model / "1" / "model.py").write_text(EXCHANGE_MODEL, encoding="utf-8")
    return repository


def test_tensors_of_every_dtype_pass_unchanged_whatever_numpy_is_installed(
    exchange_repository: Path, tmp_path: Path
) -> None:
    from tritonclient.grpc import InferenceServerClient, InferInput

    log = tmp_path / "log"
    with Server(exchange_repository, log_path=log) as server, InferenceServerClient(server.grpc_url) as client:
        for model in ("gives", "calls"):
            for shape in ((2, 3), (1, 1), (0, 4)):
                values = np.arange(np.prod(shape)).reshape(shape)
                sent = {name: values.astype(dtype) for name, dtype in DTYPES.items() if name not in ("BOOL", "BYTES")}
                sent["BOOL"] = values % 2 == 1
                sent["BYTES"] = np.array([f"№{value}".encode() for value in values.flat], dtype=object).reshape(shape)
                inputs = [InferInput(f"IN_{name}", shape, name) for name in sent]
                for tensor in inputs:
                    tensor.set_data_from_numpy(sent[tensor.name()[3:]])
                answer = client.infer(model, inputs)
                for name, array in sent.items():
                    np.testing.assert_array_equal(answer.as_numpy(f"OUT_{name}"), array, f"{model} {name} {shape}")
    assert "Traceback" not in log.read_text(encoding="utf-8")


def test_a_model_that_raises_is_reported_with_its_traceback(tmp_path: Path) -> None:
    repository = write_echo(tmp_path / "with space", "raise RuntimeError('first\\nnot \"Яблоко\"')")
    with pytest.raises(TrtbuildError) as caught, Server(repository):
        pass
    assert caught.value.message.startswith(
        "tritonserver did not start: exit code 1\n"
        "  failed to load 'echo' version 1: Internal: RuntimeError: first\n"
        '  not "Яблоко"\n'
    )
    assert f"{repository}/echo/1/model.py(7): initialize" in caught.value.message


def test_an_ensemble_with_a_missing_member_is_reported(repository: Path) -> None:
    ensemble = repository / "both"
    (ensemble / "1").mkdir(parents=True)
    (ensemble / "config.pbtxt").write_text(
        'name: "both" platform: "ensemble"\n'
        'input [{ name: "INPUT" data_type: TYPE_FP32 dims: [-1] }]\n'
        'output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [-1] }]\n'
        'ensemble_scheduling { step [{ model_name: "nowhere" model_version: -1\n'
        '  input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } }] }\n',
        encoding="utf-8",
    )
    with pytest.raises(TrtbuildError, match="ensemble both contains models that are not available.*: nowhere"):
        Server(repository).start()


def test_a_killed_server_leaves_no_stub_and_no_shared_memory(repository: Path) -> None:
    with Server(repository) as server:
        prefix, pid = server_prefix(server.http_url), server.pid
        stubs = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if prefix in _read(path)]
        assert pid in stubs and len(stubs) >= 2
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrtbuildError, match="killed by signal 9"):
            server.watch()
        assert all(is_gone(stub) for stub in stubs)
        assert shared_memory(prefix) == []


def test_stubs_end_by_themselves_when_even_the_guard_is_killed(repository: Path) -> None:
    with Server(repository) as server:
        prefix, pid = server_prefix(server.http_url), server.pid
        stubs = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if prefix in _read(path)]
        guard = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        os.kill(guard, signal.SIGKILL)
        for stub in stubs:
            wait_until_ended(stub)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def system_server(tmp_path: Path) -> Path:
    """A complete install, laid out as in a container, made of the server at hand."""
    found = find_server()
    root = tmp_path / "opt" / "tritonserver"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tritonserver").symlink_to(found.binary)
    (root / "backends" / "python").mkdir(parents=True)
    assert found.backends is not None
    stub = f"{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub"
    files = [*(found.backends / "python").iterdir(), *([found.stubs / stub] if found.stubs else [])]
    for file in files:
        (root / "backends" / "python" / file.name).symlink_to(file)
    return root / "bin" / "tritonserver"


def test_a_server_laid_out_as_in_a_container_runs_with_this_interpreter_too(
    tmp_path: Path, system_server: Path
) -> None:
    log = tmp_path / "log"
    assert find_server(system_server).kind == "system"
    with Server(write_echo(tmp_path / "repository", REPORT), server=system_server, log_path=log) as server:
        assert infer(server, [3.0]) == [3.0]
    assert json.dumps(sys.version) in log.read_text(encoding="utf-8")
