"""What the server tests share: a repository that echoes, and looking at processes without sleeping."""

from __future__ import annotations

import http.client
import json
import os
import select
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

ECHO_CONFIG = """
name: "echo"
backend: "python"
max_batch_size: 0
input [{ name: "INPUT" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT" data_type: TYPE_FP32 dims: [-1] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""
ECHO_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pass  # INITIALIZE

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)]) for array in arrays]
"""
#: How long anything that must happen may take before a test fails.
PATIENCE_S = 30


def write_echo(repository: Path, initialize: str = "pass") -> Path:
    """Write a model `echo` into a repository and return the repository; `initialize` is one line of Python."""
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    (repository / "echo" / "config.pbtxt").write_text(ECHO_CONFIG, encoding="utf-8")
    (version / "model.py").write_text(ECHO_MODEL.replace("pass  # INITIALIZE", initialize), encoding="utf-8")
    return repository


def is_gone(pid: int) -> bool:
    """Say whether there is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def wait_until_ended(pid: int) -> None:
    """Wait until a process, not necessarily a child, has ended; fail when that takes too long."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"process {pid} does not end"
    finally:
        os.close(descriptor)


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended and was reaped; nothing but /proc tells of the latter."""
    wait_until_ended(pid)
    deadline = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"nobody reaps process {pid}"
        select.select([], [], [], 0.01)


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def request(method: str, url: str, body: object = None) -> tuple[int, bytes]:
    """Send one request, never through a proxy, and return status and body.

    Args:
        method: such as GET.
        url: with host, port and path.
        body: sent as JSON unless None.
    """
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)) as connection:
        connection.request(method, parts.path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()


def server_prefix(http_url: str) -> str:
    """Return the prefix of a running server's files in /dev/shm, which is its id and an underscore."""
    return str(json.loads(request("GET", f"{http_url}/v2")[1])["name"]) + "_"


def shared_memory(prefix: str) -> list[Path]:
    """Return the files in /dev/shm that belong to a server."""
    return list(Path("/dev/shm").glob(f"{prefix}*"))
