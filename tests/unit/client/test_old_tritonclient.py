"""A tritonclient that is older, newer, broken or missing: it serves by its messages alone, or the error says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from trtbuild_client.mock.server import RunningMock, running

#: What 2.33 had: no `enable_empty_final_response`. Whatever is called of it fails.
_OLD = """
class InferenceServerClient:
    def __init__(self, *args, **kwargs):
        raise AssertionError("tritonclient's own client is used")

    def async_stream_infer(self, model_name, inputs, request_id="", parameters=None):
        raise AssertionError("tritonclient's own client is used")
"""
_ASK = """
import asyncio, sys
from trtbuild_client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    print(len(list(client.stream("x", max_tokens=5))), client.generate("x", max_tokens=5).finish_reason)
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        print((await client.generate("x", max_tokens=5)).num_output_tokens)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    with running() as server:
        yield server


def package(folder: Path, *, init: str, has_messages: bool, service: str | None = None) -> dict[str, str]:
    """Make a tritonclient; return an environment in which it is found before the installed one."""
    (folder / "tritonclient" / "grpc").mkdir(parents=True)
    (folder / "tritonclient" / "__init__.py").touch()
    (folder / "tritonclient" / "grpc" / "__init__.py").write_text(init, encoding="utf-8")
    found = find_spec("tritonclient")
    assert found is not None and found.submodule_search_locations
    installed = Path(found.submodule_search_locations[0]) / "grpc"
    for file in installed.glob("*_pb2*.py") if has_messages else ():
        (folder / "tritonclient" / "grpc" / file.name).write_bytes(file.read_bytes())
    if service is not None:
        (folder / "tritonclient" / "grpc" / "service_pb2.py").write_text(service, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def test_keywords_that_an_older_client_library_lacks_are_not_needed(mock: RunningMock, tmp_path: Path) -> None:
    environment = package(tmp_path, init=_OLD, has_messages=True)
    command = [sys.executable, "-c", _ASK, mock.grpc]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "length", "5"]


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (None, "cannot import name"),
        ("raise TypeError('Descriptors cannot be created directly.')", "Descriptors cannot be created directly"),
        (
            "from google.protobuf.runtime_version import VersionError\nraise VersionError('gencode 9 runtime 5')",
            "gencode 9 runtime 5",
        ),
        ("raise ModuleNotFoundError(\"No module named 'rapidjson'\")", "rapidjson"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "hello"), ("probe",), ("mock",)])
def test_one_that_cannot_be_used_is_named_with_what_to_install(
    command: tuple[str, ...], service: str | None, reason: str, mock: RunningMock, tmp_path: Path
) -> None:
    environment = package(tmp_path, init="", has_messages=service is not None, service=service)
    url = () if command[0] == "mock" else ("--url", mock.grpc)
    whole = [sys.executable, "-m", "trtbuild", *command, *url]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "error: tritonclient" in done.stderr and "hint: pip install --upgrade" in done.stderr


@pytest.mark.parametrize("transport", ["lean", "grpcio"])
def test_load_tests_need_nothing_of_it(transport: str, mock: RunningMock, tmp_path: Path) -> None:
    environment = package(tmp_path, init="raise ImportError", has_messages=False)
    whole = [sys.executable, "-m", "trtbuild", "bench", "--url", mock.grpc, "--transport", transport]
    load = ["--requests", "2", "--allow-invalid"]
    done = subprocess.run([*whole, *load], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
