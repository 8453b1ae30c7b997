"""The tour with a scripted trtbuild: order, checks, the folder, --keep, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from tests.unit.demo import tiny_gguf
from tests.unit.demo.conftest import Fake, is_gone

from trtbuild.cli.edge import run
from trtbuild.demo import tour
from trtbuild.demo.folder import MARKER
from trtbuild.demo.runner import Runner
from trtbuild.errors import CheckFailed, TrtbuildError

VERBS = ["init", "plan", "build", "evaluate", "render", "lint", "serve", "generate", "probe", "bench"]


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """A tiny model file."""
    return tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.hf_weights())


@pytest.fixture
def server_pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of the servers that the tour starts, collected as it goes."""
    pids: list[int] = []
    original = Runner.start

    def remember(self: Runner, *arguments: str) -> Any:
        server = original(self, *arguments)
        pids.append(server.process.pid)
        return server

    monkeypatch.setattr(Runner, "start", remember)
    return pids


def start(fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, output: Path, **options: Any) -> tour.Outcome:
    monkeypatch.setattr(tour, "Runner", partial(Runner, program=fake.program))
    return tour.run_demo(output, **{"gguf": gguf_file, "keep": False, "as_json": False, "force": False, **options})


def test_the_verbs_run_in_order_and_the_server_is_stopped(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server_pids: list[int]
) -> None:
    outcome = start(fake, gguf_file, monkeypatch, tmp_path / "out")
    assert [call[0] for call in fake.calls] == VERBS
    assert [name for name, _, _ in outcome.steps] == ["import", *VERBS]
    assert outcome.answer == "Paris."
    assert outcome.server is None
    assert is_gone(server_pids[0])
    generate = next(call for call in fake.calls if call[0] == "generate")
    assert generate[:4] == ["generate", "The capital of France is", "--url", "127.0.0.1:82"]


def test_everything_lies_in_the_folder_that_is_named(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = start(fake, gguf_file, monkeypatch, tmp_path / "out")
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    assert (tmp_path / "out" / "logs" / "3-build.log").is_file()
    result = json.loads((tmp_path / "out" / MARKER).read_text())
    assert result["complete"] is True
    assert result["answer"] == "Paris."
    words = "\n".join(tour.closing_words(outcome))
    assert str(tmp_path / "out") in words
    assert "a table of latencies" in words
    assert "perplexity  18.17 -> 20.50" in words


def test_a_wrong_answer_is_a_failed_check_and_the_server_is_stopped(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server_pids: list[int]
) -> None:
    fake.parts["generate"] = {"out": "Lyon.\n"}
    with pytest.raises(CheckFailed, match=r"'Lyon\.'"):
        start(fake, gguf_file, monkeypatch, tmp_path / "out")
    assert [call[0] for call in fake.calls][-1] == "generate"
    assert is_gone(server_pids[0])
    assert json.loads((tmp_path / "out" / MARKER).read_text())["complete"] is False


def test_keep_leaves_the_server_running_and_says_how_to_use_and_stop_it(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = start(fake, gguf_file, monkeypatch, tmp_path / "out", keep=True)
    assert outcome.server is not None
    pid = outcome.server.process.pid
    fake.pids.append(pid)
    words = "\n".join(tour.closing_words(outcome))
    body = '\'{"text_input": "The capital of France is", "max_tokens": 16}\''
    assert f"curl -s http://127.0.0.1:81/v2/models/ensemble/generate -d {body}" in words
    assert f"kill {pid}" in words
    with pytest.raises(TrtbuildError, match=f"still runs from .* \\(process {pid}\\)"):
        start(fake, gguf_file, monkeypatch, tmp_path / "out")
    os.kill(pid, signal.SIGTERM)
    assert is_gone(pid)
    outcome.server.process.wait()
    start(fake, gguf_file, monkeypatch, tmp_path / "out")


def test_a_failed_step_ends_the_demo_with_that_steps_log(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.parts["render"] = {"err": "error: no template\n", "code": 1}
    with pytest.raises(TrtbuildError, match="no template"):
        start(fake, gguf_file, monkeypatch, tmp_path / "out")
    assert [call[0] for call in fake.calls] == ["init", "plan", "build", "evaluate", "render"]


def test_a_second_demo_replaces_the_first_and_keeps_the_imported_model(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    start(fake, gguf_file, monkeypatch, output)
    (output / "build").mkdir()
    (output / "build" / "old").touch()
    (output / "notes.txt").write_text("mine")
    before = (output / "model" / "model.safetensors").stat()
    start(fake, gguf_file, monkeypatch, output)
    assert not (output / "build").exists()
    assert (output / "notes.txt").read_text() == "mine"
    assert (output / "model" / "model.safetensors").stat().st_ino == before.st_ino


def test_a_folder_that_no_demo_made_is_refused_and_kept(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    (output / "build").mkdir(parents=True)
    (output / "other.txt").write_text("mine")
    with pytest.raises(TrtbuildError, match="was not made by `trtbuild demo`"):
        start(fake, gguf_file, monkeypatch, output)
    assert (output / "build").is_dir()
    start(fake, gguf_file, monkeypatch, output, force=True)
    assert (output / "other.txt").read_text() == "mine"
    assert not (output / "build").exists()
    (tmp_path / "file").touch()
    with pytest.raises(TrtbuildError, match="is not a folder"):
        start(fake, gguf_file, monkeypatch, tmp_path / "file")


def test_the_command_prints_the_answer_and_the_table_on_stdout_and_the_steps_on_stderr(
    fake: Fake, gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tour, "Runner", partial(Runner, program=fake.program))
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--model-file", str(gguf_file)]) == 0
    out, err = capsys.readouterr()
    assert "The capital of France is ... Paris." in out
    assert "a table of latencies" in out
    for verb in VERBS:
        assert f"$ trtbuild {verb}" in err
        assert f"\n  {verb} " in err
    assert "trtbuild-demo" in out
    fake.parts["probe"] = {"out": '{"requests": 8}\n'}
    monkeypatch.setattr(tour, "Runner", partial(Runner, program=fake.program))
    assert run(["demo", "--model-file", str(gguf_file), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["probe"] == {"requests": 8}
    assert err == ""


@pytest.mark.parametrize("verb", ["build", "probe"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything(
    fake: Fake, gguf_file: Path, tmp_path: Path, verb: str, number: signal.Signals
) -> None:
    server, step = fake.tell("serve"), fake.tell(verb)
    fake.parts[verb] |= {"wait": True, "child": True}
    main = (
        "import sys\nfrom functools import partial\nfrom trtbuild.cli.edge import run\nfrom trtbuild.demo import tour\n"
        f"tour.Runner = partial(tour.Runner, program={fake.program!r})\nsys.exit(run(sys.argv[1:]))"
    )
    arguments = ["demo", "--output", str(tmp_path / "out"), "--model-file", str(gguf_file), "--quiet"]
    demo = subprocess.Popen([sys.executable, "-c", main, *arguments], stderr=subprocess.PIPE, start_new_session=True)
    if verb == "probe":
        fake.hear(server)
    fake.hear(step)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert err.decode().splitlines()[-1] == "interrupted"
    assert len(fake.pids) == (3 if verb == "probe" else 2)
    assert all(is_gone(pid) for pid in fake.pids)
