"""Stands in for trtbuild: `python fake_trtbuild.py trtbuild SCRIPT VERB ...` does what SCRIPT (JSON) says for VERB.

SCRIPT: verb -> {"out": text on stdout, "err": text on stderr, "code": exit code, "wait": true to run until a signal comes,
"deaf": true to ignore SIGTERM and SIGINT, "child": true to start a child that ignores them too, "tell": FIFO that gets the
process ids once all of that is set up}. Each call is appended to calls.jsonl beside SCRIPT.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

DEAF_CHILD = "import signal\nfor n in (15, 2): signal.signal(n, signal.SIG_IGN)\nprint(flush=True)\nsignal.pause()"


def main() -> int:
    """Play the part of one verb."""
    script, verb = Path(sys.argv[2]), sys.argv[3]
    with (script.parent / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(sys.argv[3:]) + "\n")
    part = json.loads(script.read_text()).get(verb, {})
    pids = [os.getpid()]
    if part.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if part.get("child"):
        child = subprocess.Popen([sys.executable, "-c", DEAF_CHILD], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        pids.append(child.pid)
    sys.stderr.write(part.get("err", ""))
    sys.stderr.flush()
    sys.stdout.write(part.get("out", ""))
    sys.stdout.flush()
    if "tell" in part:
        Path(part["tell"]).write_text(json.dumps(pids))
    while part.get("wait"):
        signal.pause()
    return int(part.get("code", 0))


if __name__ == "__main__":
    sys.exit(main())
