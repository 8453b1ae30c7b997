"""Ctrl-C at any time ends trtbuild with 130 and at most one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.termination import terminated_like_interrupted

#: Sends SIGINT when a module is about to be imported, then runs trtbuild.
AT_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["trtbuild", *{arguments!r}]
from trtbuild.__main__ import main
main()
"""


def interrupted(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("trtbuild.cli", ["versions"]), ("trtbuild.cli.edge", ["versions"]), ("click", ["versions"]), ("click.core", ["versions"]), ("trtbuild.errors", ["versions"]),
        ("trtbuild.cli.group", ["versions"]), ("trtbuild.cli.versions", ["versions"]), ("trtbuild.trtllm.versions", ["versions"]), ("trtbuild.doctor", ["doctor"]),
        ("trtbuild.doctor.software", ["doctor"]), ("rich.text", ["doctor"]), ("rich.console", ["doctor"]), ("trtbuild.cli.init", ["init", "."]),
    ],
)  # fmt: skip
def test_an_interruption_while_something_is_imported(module: str, arguments: list[str], tmp_path: Path) -> None:
    code, err = interrupted(AT_IMPORT.format(module=module, arguments=arguments))
    assert (code, err.strip()) in [(130, ""), (130, "interrupted")]


def test_an_interruption_while_the_process_ends() -> None:
    code = "import atexit, os, signal, sys\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\nsys.argv = ['trtbuild', '--version']\nfrom trtbuild.__main__ import main\nmain()\n"
    assert interrupted(code) == (130, "")


def test_a_second_interruption_while_the_first_is_reported() -> None:
    code = (
        "import sys\nimport trtbuild.cli.edge as edge\nsys.argv = ['trtbuild', 'versions']\n"
        "def interrupt(*_, **__): raise KeyboardInterrupt\nedge.cli.main = interrupt\nedge.click.echo = interrupt\n"
        "from trtbuild.__main__ import main\nmain()\n"
    )
    assert interrupted(code) == (130, "")


#: Says so when the command line begins to load: what comes before is Python's own beginning.
SAYS_WHEN = """
import sys
class Say:
    def find_spec(self, name, path=None, target=None):
        if name == "trtbuild.cli.edge":
            print("begins", flush=True)
sys.meta_path.insert(0, Say())
sys.argv = ["trtbuild", "doctor"]
from trtbuild.__main__ import main
main()
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3])
def test_an_interruption_after_any_delay(delay_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAYS_WHEN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # It may have been done already; in its last moments Python leaves the signal to the system, and a shell says 130 of that too.
    assert process.returncode in (130, -signal.SIGINT, 0, 3)
    assert "Traceback" not in err
    assert process.returncode != 130 or err.strip() in ("", "interrupted")


def test_a_command_in_the_background_keeps_ignoring_it() -> None:
    code = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport trtbuild.__main__ as m\nimport trtbuild.cli.edge as e\ne.main = lambda: (os.kill(os.getpid(), signal.SIGINT), print('went on'))\nm.main()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


#: Sends itself a signal when the weights are written and not yet in their place, then runs trtbuild.
WHILE_WRITING = """
import os, sys
import trtbuild.output as output
sync = output._sync_tree
def stop(folder):
    os.kill(os.getpid(), {number})
    sync(folder)
output._sync_tree = stop
sys.argv = ["trtbuild", *{arguments!r}]
from trtbuild.__main__ import main
main()
"""


@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
@pytest.mark.parametrize("verb", ["build", "convert"])
def test_a_request_to_stop_keeps_what_is_finished_and_says_so(
    make_model: Callable[..., Path], tmp_path: Path, number: int, code: int, word: str, verb: str
) -> None:
    arguments = [verb, str(make_model()), "-o", str(tmp_path / "out")]
    status, err = interrupted(WHILE_WRITING.format(number=number, arguments=arguments))
    assert status == code, err
    lines = [line for line in err.splitlines() if line]
    assert lines[-1] == word
    assert lines[-2].startswith("what is finished is kept in ")
    assert lines[-2].endswith("; the same command goes on from there")
    assert "Traceback" not in err
    done = subprocess.run([sys.executable, "-m", "trtbuild", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.glob("**/.*.partial"))) == (0, []), done.stderr


def test_terminated_work_that_cannot_be_resumed_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nimport trtbuild.cli.edge as edge\nfrom trtbuild.output import staged_folder\n"
        "def work(**_):\n    with staged_folder(Path(sys.argv[1])):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        f"edge.cli.main = work\nsys.argv = ['trtbuild', {str(tmp_path / 'out')!r}]\nfrom trtbuild.__main__ import main\nmain()\n"
    )
    assert interrupted(code) == (143, "terminated\n")
    assert list(tmp_path.iterdir()) == []


def test_termination_is_left_to_whoever_handles_it_already() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: got.append(number))
    try:
        with terminated_like_interrupted():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]
