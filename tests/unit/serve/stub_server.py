"""A stand-in for tritonserver: takes its options, behaves as told by the first argument.

Not a test and not a mock: it is run as a program by the tests of the supervisor.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

options = dict(argument[2:].split("=", 1) for argument in sys.argv[2:] if "=" in argument)
port = int(options.get("http-port", 0))
prefix = options["backend-config"].partition("shm-region-prefix-name=")[2]
asked = 0
stop = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers the two endpoints that the supervisor asks."""

    not_ready = 0
    name = options["id"]

    def do_GET(self) -> None:
        """Answer; the first `not_ready` questions for readiness get 400."""
        global asked
        ready = True
        if self.path == "/v2/health/ready":
            asked += 1
            ready = asked > self.not_ready
        body = json.dumps({"name": self.name}).encode() if self.path == "/v2" else b""
        self.send_response(200 if ready else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def say(*lines: str) -> None:
    """Write lines to the log."""
    for line in lines:
        os.write(1, (line + "\n").encode())


def glog(level: str, text: str) -> str:
    """Return a line as tritonserver logs it."""
    return f'{level}0102 10:11:12.131415 77 model_lifecycle.cc:642] "{text}"'


def serve(**settings: Any) -> None:
    """Be ready until SIGINT."""
    Path("/dev/shm", prefix + "region").write_bytes(b"x")
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Settings", (Handler,), settings))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stop.wait()
    say("leaving because of SIGINT")


def ignores_signals() -> None:
    """Be ready and stay, whatever comes short of SIGKILL."""
    signal.signal(signal.SIGINT, lambda *_: say("got SIGINT"))
    signal.signal(signal.SIGTERM, lambda *_: say("got SIGTERM"))
    serve()


def forks() -> None:
    """Leave two children behind, one of them in a session of its own, both deaf to signals."""
    for own_session in (False, True):
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if own_session:
                os.setsid()
            while True:
                signal.pause()
        say(f"child {pid}")
    serve()


def orphans() -> None:
    """Leave a grandchild to whoever adopts it, and see it end."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        if (pid := os.fork()) != 0:
            say(f"child {pid}")
            os._exit(0)
        os.close(writer)
        os.read(reader, 1)  # until the server closes its end, when the child between is gone
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    serve()


def aborts_with_a_stub() -> None:
    """Be ready with a Python stub, and abort as soon as that is killed, which real servers do now and then."""
    program = Path(os.environ["TMPDIR"], "triton_python_backend_stub")
    program.symlink_to(str(shutil.which("sleep")))
    stub = subprocess.Popen([program, "3600"])
    say(f"child {stub.pid}")
    threading.Thread(target=serve, daemon=True).start()
    os.waitid(os.P_PID, stub.pid, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGABRT)


def never_answers() -> None:
    """Open the port and accept, but say nothing; two models keep loading."""
    say(glog("I", "loading: core:1"), glog("I", "loading: post:1"), glog("I", "successfully loaded 'post'"))
    listener = socket.create_server(("127.0.0.1", port))
    kept = []
    while True:
        kept.append(listener.accept())


def loading() -> None:
    """Load for ever, until SIGINT."""
    say(glog("I", "loading: core:1"))
    stop.wait()


def load_failure() -> None:
    """Fail as tritonserver does when a model raises."""
    say(
        'E0102 10:11:12.131415 77 server.cc:241] "CudaDriverHelper has not been initialized."',
        glog("I", "loading: core:1"),
        glog("E", "ERROR: Failed to create instance: ValueError: no such file\\n\\nAt:\\n  model.py(5): initialize\\n"),
        glog(
            "E", "failed to load 'core' version 1: Internal: ValueError: no \\\"Яблоко\\\"\\n\\nAt:\\n  model.py(5)\\n"
        ),
        "| core  | 1       | UNAVAILABLE: Internal |",
        "error: creating server: Internal - failed to load all models",
    )
    sys.exit(1)


def hopeless() -> None:
    """Log what tritonserver logs before it waits for minutes, and wait."""
    say("I0102 10:11:12.131415 77 pb_stub.cc:2105]  Failed to preinitialize Python stub: Python model file not found")
    stop.wait()


def crash() -> None:
    """End as by a segmentation fault."""
    say("about to crash")
    os.kill(os.getpid(), signal.SIGSEGV)


def shell_crash() -> None:
    """End as a shell script whose child crashed."""
    sys.exit(139)


def rank() -> None:
    """Serve as rank 0; work without a front end as any other."""
    if "http-port" in options:
        serve()
    else:
        Path("/dev/shm", prefix + "region").write_bytes(b"x")
        stop.wait()


BEHAVIOURS: dict[str, Callable[[], None]] = {
    "ready": serve,
    "rank": rank,
    "slow": lambda: serve(not_ready=5),
    "other": lambda: serve(name="somebody else's"),
    "ignores_signals": ignores_signals,
    "forks": forks,
    "orphans": orphans,
    "aborts_with_a_stub": aborts_with_a_stub,
    "never_answers": never_answers,
    "silent": stop.wait,  # type: ignore[dict-item]  # its answer is not used
    "loading": loading,
    "load_failure": load_failure,
    "hopeless": hopeless,
    "crash": crash,
    "shell_crash": shell_crash,
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    BEHAVIOURS[sys.argv[1]]()
