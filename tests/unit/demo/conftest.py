"""A scripted trtbuild for tests of the demo's runner and tour."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

READY = {"http_url": "http://127.0.0.1:81", "grpc_url": "127.0.0.1:82", "metrics_url": "http://127.0.0.1:83/metrics"}
#: What a run without trouble prints.
GOOD: dict[str, dict[str, Any]] = {
    "evaluate": {
        "out": json.dumps(
            {"folder": "checkpoint", "quality": {"source_perplexity": 18.17, "quantized_perplexity": 20.5}}
        )
    },
    "serve": {"out": json.dumps({"event": "ready", "pid": 1, **READY}) + "\n", "wait": True},
    "generate": {"out": " Paris.\n"},
    "probe": {"out": "a table of latencies\n"},
}


@dataclass
class Fake:
    """The script and the record of one test."""

    folder: Path
    parts: dict[str, dict[str, Any]] = field(default_factory=lambda: json.loads(json.dumps(GOOD)))
    pids: list[int] = field(default_factory=list)

    @property
    def program(self) -> tuple[str, ...]:
        """Write the script down and return what to run instead of trtbuild."""
        script = self.folder / "script.json"
        script.write_text(json.dumps(self.parts))
        return (sys.executable, str(Path(__file__).with_name("fake_trtbuild.py")), "trtbuild", str(script))

    @property
    def calls(self) -> list[list[str]]:
        """Arguments of every call so far."""
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def tell(self, verb: str) -> Path:
        """Have a verb report its process ids to a FIFO, which is returned."""
        fifo = self.folder / f"{verb}.fifo"
        os.mkfifo(fifo)
        self.parts.setdefault(verb, {})["tell"] = str(fifo)
        return fifo

    def hear(self, fifo: Path) -> list[int]:
        """Wait for the process ids that a verb reports."""
        self.pids += json.loads(fifo.read_text())
        return self.pids


def is_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Wait until a process is gone (or only waits to be reaped by init); False when it is still there at the end."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout_s)[0])
    finally:
        os.close(watched)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    """A scripted trtbuild; what a failing test leaves running is killed."""
    folder = tmp_path / "fake"
    folder.mkdir()
    script = Fake(folder)
    yield script
    for pid in script.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
