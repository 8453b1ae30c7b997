"""A tritonserver as a context manager: started, waited for, watched, stopped without a trace.

Knows the order of a start; command lines are in `launch.commands`. The process itself belongs to `guard.py`, which
outlives us if we are killed; what can be checked beforehand is in `preflight`, `ports` and `python_stub`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.serve import preflight
from trtbuild.serve.environment import server_environment
from trtbuild.serve.exit_status import describe_status
from trtbuild.serve.guarded import GuardedProcess
from trtbuild.serve.health import connect_address, is_ready
from trtbuild.serve.launch.commands import ModelControl, Triton
from trtbuild.serve.locate import find_server
from trtbuild.serve.ports import Ports, resolve
from trtbuild.serve.processes import Processes
from trtbuild.serve.python_stub import find_stub, python_folder
from trtbuild.serve.run_folder import RunFolder, make_run_folder
from trtbuild.serve.server_log import LogTail, is_fatal, loaded_model, not_loaded, reasons
from trtbuild.serve.stubs import Stubs

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 120.0
#: The server gets this long after SIGINT to finish requests in flight; idle models are closed in about a second.
STOP_GRACE_S = 10.0
_START_POLL_S = 0.05
_WATCH_POLL_S = 0.25
_LAST_LINES = 15


class ServerEnded(TrtbuildError):
    """The server, or a process that executes one of its models, ended by itself after it had been ready."""


class Server:
    """One run of tritonserver on a model repository.

    Args:
        repository: a model repository, or a build folder that has one.
        server: the tritonserver binary; None: look for one.
        address: IPv4 address to listen on.
        ports: 0 picks a free port.
        log_path: file that the server's output is appended to; None: a temporary one that goes with the server.
        ready_timeout_s: how long the server may take until every model is ready.
        stop_grace_s: how long it may take to finish requests in flight when it is stopped.
        on_log: called with each line of the server's output, while `start` and `watch` run.
        model_control: explicit lets whoever reaches the server load and unload models, `trtbuild reload` among them.
        processes: ranks and what they are given.

    Attributes:
        models: names of the models in the repository.
        version: version of the server, where it is known.
        address, ports: what it listens on, without zeros after `start`.
        log_path: the file with the server's output, after `start`.
        ready_s: seconds from the start of the process until it was ready.
        was_ready: whether it ever was.
    """

    def __init__(
        self,
        repository: Path,
        *,
        server: Path | None = None,
        address: str = "127.0.0.1",
        ports: Ports = Ports(),  # noqa: B008  # frozen
        log_path: Path | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
        stop_grace_s: float = STOP_GRACE_S,
        on_log: Callable[[str], None] | None = None,
        model_control: ModelControl = "none",
        processes: Processes = Processes(),  # noqa: B008  # frozen
    ) -> None:
        if model_control == "explicit" and not address.startswith(("127.", "localhost")):
            raise UsageError(
                f"--model-control explicit on {address}: whoever reaches it could load models, which run code",
                hint="listen on 127.0.0.1, or leave --model-control out",
            )
        self.repository = preflight.find_repository(repository).resolve()
        self.address = address
        self.ports = ports
        self.log_path = log_path
        self.models: list[str] = []
        self.version: str | None = None
        self.ready_s = 0.0
        self.was_ready = False
        self._server = server
        self._model_control = model_control
        self._processes = processes
        self._keeps_log = log_path is not None
        self._ready_timeout_s = ready_timeout_s
        self._stop_grace_s = stop_grace_s
        self._on_log = on_log
        self._process: GuardedProcess | None = None
        self._run: RunFolder | None = None
        self._tail: LogTail | None = None
        self._stubs: Stubs | None = None

    @property
    def pid(self) -> int:
        """The process id of tritonserver."""
        return self._running().pid

    @property
    def http_url(self) -> str:
        """Base URL of the HTTP endpoint, such as http://127.0.0.1:8000."""
        return f"http://{connect_address(self.address)}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """host:port of the gRPC endpoint, the form that tritonclient and `trtbuild generate --url` take."""
        return f"{connect_address(self.address)}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{connect_address(self.address)}:{self.ports.metrics}/metrics"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return when every model is ready; nothing is left of it when that fails.

        Raises:
            TrtbuildError: something is missing or in the way, a model does not load, the server ends or is not ready in
                time. The message holds the server's own words.
        """
        install = find_server(self._server)
        self.version = install.version
        stub = find_stub(install)
        self.models = preflight.model_names(self.repository)
        self.ports = resolve(self.address, self.ports)
        self._warn()
        self._run = make_run_folder(install, stub, self.repository)
        try:
            self._launch(install.binary, self._run)
        except BaseException:
            self.stop()
            raise

    def _warn(self) -> None:
        if warning := preflight.shared_memory_warning():
            log.warning("%s", warning)
        if not self.address.startswith(("127.", "localhost")):
            log.warning(
                "listening on %s: whoever reaches it can use the models, there is no authentication", self.address
            )

    def _launch(self, binary: Path, run: RunFolder) -> None:
        server_id = new_server_id()
        inherited = {**os.environ, **self._processes.environment}
        environment = server_environment(inherited, python_folder=python_folder(), library_path=run.library_path)
        command = self._command(binary, run, server_id)
        self._guard(command, environment, run, server_id=server_id, prefix=f"{server_id}_")

    def _guard(
        self, command: list[str], environment: Mapping[str, str], run: RunFolder, *, server_id: str | None, prefix: str
    ) -> None:
        """Start a command under guard and wait until the server is ready.

        Args:
            command: argument vector.
            environment: of the process.
            run: its folder.
            server_id: what the server calls itself; None: not known.
            prefix: of its files in /dev/shm, which are removed.
        """
        if self.log_path is None or not self._keeps_log:
            self.log_path = run.path / "server.log"
        self._tail = LogTail(self.log_path, _size_of_writable(self.log_path))
        log.info("starting tritonserver %s; models: %s", self.version or "", ", ".join(self.models))
        log.debug("%s", " ".join(command))
        began = time.monotonic()
        self._process = GuardedProcess(
            {
                "command": command,
                "log": str(self.log_path.absolute()),
                "prefix": prefix,
                "run_folder": str(run.path),
                "grace_s": self._stop_grace_s,
            },
            environment,
        )
        self._await_ready(self._process, server_id, deadline=began + self._ready_timeout_s)
        self._stubs = Stubs(self._process.pid)
        self._stubs.find()
        self.ready_s = time.monotonic() - began
        self.was_ready = True

    def _command(self, binary: Path, run: RunFolder, server_id: str) -> list[str]:
        triton = Triton(
            binary=str(binary.absolute()),
            repository=str(run.repository),
            address=self.address,
            ports=self.ports,
            server_id=server_id,
            exit_timeout_s=max(1, round(self._stop_grace_s)),
            core_models=self._processes.core_models,
            model_control=self._model_control,
            backends=str(run.backends) if run.backends else None,
        )
        return self._processes.command(triton, as_root=os.geteuid() == 0)

    def _await_ready(self, process: GuardedProcess, server_id: str | None, *, deadline: float) -> None:
        while True:
            status = process.poll(_START_POLL_S)
            if any(is_fatal(line) for line in self._read_log()):
                process.kill()
                raise self._failure("tritonserver cannot load a model")
            if status is not None:
                raise self._failure(f"tritonserver did not start: {describe_status(status)}")
            if is_ready(connect_address(self.address), self.ports.http, server_id):
                return
            if time.monotonic() >= deadline:
                process.kill()
                raise self._overdue()

    def watch(self) -> NoReturn:
        """Wait for ever, passing the log on to `on_log`; interrupt it (Ctrl-C) and call `stop` to end the server.

        Raises:
            ServerEnded: the server ended by itself, or a process of a Python model did and the server was killed for it, so
                that its requests end; says how, with the last log lines.
        """
        process, stubs = self._running(), self._stubs
        assert stubs is not None  # made when the server became ready
        while (status := process.poll(_WATCH_POLL_S)) is None:
            if any(map(loaded_model, self._read_log())):
                stubs.find()
            if (death := stubs.died()) is not None:
                process.kill()
                raise self._ended(f"{death}; the server was stopped, since it would not answer the requests there")
        if (death := stubs.killed(process.killed)) is not None:
            raise self._ended(f"{death}; tritonserver ended with it: {describe_status(status)}")
        raise self._ended(f"tritonserver ended by itself: {describe_status(status)}")

    def _ended(self, what: str) -> ServerEnded:
        self._read_log()
        error = self._error(what, self._last_lines())
        return ServerEnded(error.message, hint=error.hint)

    def stop(self) -> None:
        """Stop the server and remove every trace of it; does nothing when it is not running.

        A second interruption while requests are finished kills the server at once, and is raised when it is gone.
        """
        process, run = self._process, self._run
        self._process = self._run = None
        try:
            if process is not None and process.status is None:
                process.stop()
        finally:
            if process is not None:
                self._read_log()
                process.close()
            elif run is not None:
                shutil.rmtree(run.path, ignore_errors=True)  # the process that would have removed it never began

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise TrtbuildError("the server is not running", hint="use it inside `with Server(...)`")
        return self._process

    def _read_log(self) -> list[str]:
        new = self._tail.read() if self._tail is not None else []
        for line in new if self._on_log is not None else ():
            assert self._on_log is not None
            self._on_log(line)
        return new

    def _failure(self, what: str) -> TrtbuildError:
        """Return the error for a start that failed, with the server's own reasons."""
        assert self._tail is not None
        self._read_log()
        return self._error(what, reasons(self._tail.lines) or self._last_lines())

    def _overdue(self) -> TrtbuildError:
        """Return the error for a start that took too long."""
        assert self._tail is not None
        self._read_log()
        waiting = ", ".join(not_loaded(self._tail.lines)) or "none that it mentions"
        inherited = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        devices = self._processes.environment.get("CUDA_VISIBLE_DEVICES", inherited)
        return self._error(
            f"tritonserver was not ready after {self._ready_timeout_s:g} s; models still loading: {waiting}",
            reasons(self._tail.lines) + self._last_lines(),
            hint=f"--ready-timeout gives it more time; /dev/shm holds {preflight.shared_memory_bytes() >> 20} MiB; "
            f"CUDA_VISIBLE_DEVICES is {devices}; world size is {self._processes.count}; ",
        )

    def _last_lines(self) -> list[str]:
        assert self._tail is not None
        return self._tail.last(_LAST_LINES) or ["(it logged nothing)"]

    def _error(self, what: str, words: list[str], *, hint: str = "") -> TrtbuildError:
        text = "\n".join(words)
        if self._run is not None and self._run.repository != self.repository:
            text = text.replace(str(self._run.repository), str(self.repository))
        indented = "\n".join(f"  {line}" for line in text.splitlines())
        return TrtbuildError(f"{what}\n{indented}", hint=hint + self._log_hint())

    def _log_hint(self) -> str:
        assert self.log_path is not None
        is_temporary = self._run is not None and self.log_path.parent == self._run.path
        return "--log FILE keeps the whole log" if is_temporary else f"the whole log is in {self.log_path}"


def new_server_id() -> str:
    """Return a name for one run, which also begins the names of its files in /dev/shm."""
    return f"trtbuild_{secrets.token_hex(6)}"


def _size_of_writable(path: Path) -> int:
    """Return the size of a log file, which is created if need be.

    Raises:
        TrtbuildError: it cannot be written.
    """
    try:
        with path.open("ab") as file:
            return file.tell()
    except OSError as error:
        raise TrtbuildError(
            f"cannot write the log {path}: {error.strerror}", hint="name a file in a folder that exists"
        ) from error
