"""Two hundred streams at once for a minute, with clients that leave, read slowly or ask wrongly: no text is lost or mixed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from tests.unit.templates.test_templates_triton import Deployed, render_scripted

from trtbuild.serve.supervisor import Server

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS = 200
SECONDS = 60
#: The processes may grow by so much between the first third and the end; the state of ended streams is kept for ten minutes.
MOST_GROWTH_BYTES = 150 * 2**20


def test_two_hundred_streams_for_a_minute(tmp_path: Path) -> None:
    repository, log = render_scripted(tmp_path, serving={"bls_instances": 1})
    with Server(repository) as server:
        deployed = Deployed(server.grpc_url, log)
        soak = _Soak(deployed)
        threads = [threading.Thread(target=soak.run, args=(seed,), daemon=True) for seed in range(STREAMS)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 3)
        early_bytes = _memory_bytes(server.pid)
        for thread in threads:
            thread.join(timeout=SECONDS * 4)
        assert not any(thread.is_alive() for thread in threads), "a request hangs"
        assert soak.failures == []
        assert min(soak.counts.values()) >= 20, soak.counts
        assert _memory_bytes(server.pid) - early_bytes < MOST_GROWTH_BYTES
        assert deployed.ask("ensemble", "alive é", 8).texts[-1] == "é"


class _Soak:
    """What all clients do, and what went wrong."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self._end = time.monotonic() + SECONDS
        self._lock = threading.Lock()
        self.failures: list[str] = []
        self.counts = {"whole": 0, "left": 0, "refused": 0}

    def run(self, seed: int) -> None:
        """Ask one request after the other until the time is over."""
        choose, number = random.Random(seed), 0
        while time.monotonic() < self._end:
            number += 1
            kind = choose.choices(("whole", "left", "refused"), (6, 2, 1))[0]
            text = f"{seed}:{number} é家🙂👩‍👩‍👧 "
            try:
                problem = getattr(self, f"_{kind}")(text, choose)
            except Exception as error:  # whatever it is, the test reports it
                problem = f"{type(error).__name__}: {error}"
            with self._lock:
                self.counts[kind] += 1
                if problem:
                    self.failures.append(f"{kind} {text}: {problem}")

    def _whole(self, text: str, choose: random.Random) -> str:
        answer = self._deployed.ask("ensemble", text, len(text.encode()))
        got = "".join(answer.texts)
        return "" if got == text and answer.was_final else f"{got!r} {answer.error}"

    def _left(self, text: str, choose: random.Random) -> str:
        leave = choose.randint(1, 20)
        answer = self._deployed.ask("ensemble", text, len(text.encode()), leave_after=leave)
        got = "".join(answer.texts)
        return "" if text.startswith(got) and not answer.error else f"{got!r} {answer.error}"

    def _refused(self, text: str, choose: random.Random) -> str:
        prompt, tokens = choose.choice(((text, 0), (text, 999), (text * 100, 5)))
        answer = self._deployed.ask("ensemble", prompt, tokens)
        return "" if answer.error and not answer.texts else f"not refused: {answer.texts}"


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(int(fields["PPid"]), []).append(int(folder.name))
        sizes[int(folder.name)] = int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        total += sizes.get(each, 0)
        waiting += children.get(each, [])
    return total
