"""Running commands: what is shown, timed and kept, and that nothing outlives its runner."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from pathlib import Path

import pytest
from tests.unit.demo.conftest import READY, Fake, is_gone

from trtbuild.demo import runner as runner_module
from trtbuild.demo.runner import Runner, as_typed
from trtbuild.errors import CheckFailed, TrtbuildError


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The folder for log files."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def test_a_step_returns_what_the_command_printed_and_keeps_all_of_it_in_its_log(fake: Fake, logs: Path) -> None:
    fake.parts["plan"] = {"out": "result é\n", "err": "progress\n"}
    runner = Runner(logs, fake.program)
    step = runner.run("plan", "a b.yaml")
    assert step.stdout == "result é\n"
    assert step.command == "trtbuild plan 'a b.yaml'"
    assert step.seconds > 0
    assert runner.steps == [step]
    assert (logs / "1-plan.log").read_text() == "progress\nresult é\n"
    assert fake.calls == [["plan", "a b.yaml"]]


@pytest.mark.parametrize("word", ["plain", "two words", "it's", "a\nb", "\\n", "a'\n\\'", "$HOME", ""])
def test_a_command_as_typed_means_the_same_to_bash(word: str) -> None:
    ran = subprocess.run(["bash", "-c", as_typed("printf", "%s", word)], capture_output=True, text=True, check=True)
    assert ran.stdout == word


def test_a_command_is_shown_before_it_runs_and_its_time_afterwards(
    fake: Fake, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Runner(logs, fake.program).run("lint", "x")
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "$ trtbuild lint x"
    assert second.split()[0] == "lint"
    assert second.endswith(" s")


@pytest.mark.parametrize(
    ("code", "error"), [(1, TrtbuildError), (2, TrtbuildError), (3, CheckFailed), (130, TrtbuildError)]
)
def test_a_failed_step_shows_the_end_of_its_log_and_names_it(
    fake: Fake, logs: Path, code: int, error: type[TrtbuildError]
) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    fake.parts["build"] = {"err": lines, "out": "finding\n", "code": code}
    with pytest.raises(TrtbuildError, match=f"`trtbuild build x` ended with exit code {code}") as caught:
        Runner(logs, fake.program).run("build", "x")
    assert type(caught.value) is error
    assert "line 99\n  | finding" in caught.value.message
    assert "line 50" not in caught.value.message
    assert str(logs / "1-build.log") in caught.value.hint


def test_a_background_command_is_ready_when_its_json_line_is_there(fake: Fake, logs: Path) -> None:
    fifo = fake.tell("serve")
    hearer = threading.Thread(target=fake.hear, args=(fifo,))
    hearer.start()
    server = Runner(logs, fake.program).start("serve", "build")
    hearer.join()
    assert {key: server.ready[key] for key in READY} == READY
    assert server.process.poll() is None
    server.stop()
    assert server.process.poll() is not None
    assert is_gone(fake.pids[0])


def test_a_background_command_that_ends_early_is_an_error_with_its_log(fake: Fake, logs: Path) -> None:
    fake.parts["serve"] = {"err": "error: port 8000 is taken\n", "code": 1}
    with pytest.raises(TrtbuildError, match=r"ended with exit code 1(.|\n)*port 8000 is taken"):
        Runner(logs, fake.program).start("serve", "build")


def test_a_background_command_that_prints_half_a_line_is_still_waited_for(fake: Fake, logs: Path) -> None:
    fake.parts["serve"] = {"out": '{"event": "rea', "code": 1}
    with pytest.raises(TrtbuildError, match="ended with exit code 1"):
        Runner(logs, fake.program).start("serve", "build")


def test_what_does_not_stop_is_killed_with_its_children(
    fake: Fake, logs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "STOP_S", 0.1)
    fake.parts["serve"] |= {"deaf": True, "child": True}
    fifo = fake.tell("serve")
    hearer = threading.Thread(target=fake.hear, args=(fifo,))
    hearer.start()
    server = Runner(logs, fake.program).start("serve", "build")
    hearer.join()
    with caplog.at_level(logging.WARNING):
        server.stop()
    assert "did not stop" in caplog.text
    assert len(fake.pids) == 2
    assert all(is_gone(pid) for pid in fake.pids)


def test_a_command_ended_by_a_signal_says_which(fake: Fake, logs: Path) -> None:
    fifo = fake.tell("build")
    fake.parts["build"]["wait"] = True
    killer = threading.Thread(target=lambda: os.kill(fake.hear(fifo)[0], 9))
    killer.start()
    with pytest.raises(TrtbuildError, match="was ended by SIGKILL"):
        Runner(logs, fake.program).run("build", "x")
    killer.join()
