"""Repositories of other people: nothing is found in fine ones, and broken ones end in findings or an error, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.repo.foreign_repositories import BROKEN, FINE, MADE, write_models

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint import check

Cli = Callable[..., tuple[int, str, str]]
#: Of broken repositories that are not ours, what must be found.
FOUND = {
    "binary": "syntax", "braces": "syntax", "open lists": "syntax", "an ensemble of itself": "ensemble-steps", "two that hold each other": "ensemble-steps",
    "no type, and nobody who knows it": "tensor-type", "long values": "parameter-value", "devices for folders": "path-missing", "model.yaml 2": "llmapi-differs", "model.yaml 14": "llmapi-differs",
    "loops": "stray-folder", "a configuration that leads to itself": "syntax", "a configuration that is a folder": "syntax", "pipes": "syntax", "huge files": "syntax",
    "names of no encoding": "model-name", "versions that are none": "no-version", "stray folders": "stray-folder",
    "engine 0": "engine-folder", "engine 3": "engine-folder", "engine 7": "engine-folder", "engine 8": "engine-folder", "tokenizer 0": "tokenizer",
}  # fmt: skip


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a repository by its name."""

    def write(name: str) -> Path:
        repository = tmp_path / "repository"
        repository.mkdir()
        if name in MADE:
            MADE[name](repository)
            return repository
        return write_models(repository, BROKEN[name] if name in BROKEN else FINE[name])

    return write


@pytest.mark.parametrize("name", FINE)
def test_nothing_is_found_in_a_fine_repository_of_somebody_else(name: str, make: Callable[[str], Path]) -> None:
    report = check(make(name))
    assert report.findings == ()
    assert report.notes == ()


@pytest.mark.parametrize("form", ["text", "sarif", "json"])
@pytest.mark.parametrize("name", [*BROKEN, *MADE])
def test_a_broken_repository_ends_in_findings(name: str, form: str, make: Callable[[str], Path], cli: Cli) -> None:
    code, out, err = cli("lint", make(name), "--format", form, "--tensorrt-llm", "1.2.1")
    assert code in (0, 3), err
    assert "error: unexpected" not in err
    if form == "text":
        assert FOUND.get(name, "") in out
        assert all(line.isprintable() for line in out.splitlines())
    else:
        json.loads(out)


@pytest.mark.parametrize("name", ["loops", "names of no encoding", "a manifest of another kind"])
def test_what_is_fixed_in_a_broken_repository_is_written_whole(
    name: str, make: Callable[[str], Path], cli: Cli
) -> None:
    code, _, err = cli("lint", make(name), "--fix")
    assert code in (0, 3), err
    assert "error: unexpected" not in err


def test_folders_may_be_deeper_than_functions_may_call_each_other(tmp_path: Path, cli: Cli) -> None:
    repository = write_models(tmp_path / "repository", {"m": FINE["python"]["completed"]})
    made = [repository / "m" / "1"]
    for _ in range(sys.getrecursionlimit() + 100):
        made.append(made[-1] / "d")
        made[-1].mkdir()
    (made[-1] / "x.py").write_text("trust_remote_code = True\n")
    try:
        assert "remote-code: warning" in cli("lint", repository)[1]
        assert cli("diff", repository, repository)[0] == 0
    finally:  # what removes temporary folders calls itself
        (made[-1] / "x.py").unlink()
        for place in reversed(made[1:]):
            place.rmdir()


def test_a_folder_that_is_no_repository_says_which_one_is_near(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_models(tmp_path / "models" / "repository", FINE["vllm"])
    for folder, hint in (
        (tmp_path / "empty", "a model is a folder with"),
        (tmp_path / "models", f"did you mean {tmp_path / 'models' / 'repository'}"),
        (tmp_path / "models" / "repository" / "vllm_model", f"it lies in, {tmp_path / 'models' / 'repository'}"),
        (tmp_path / "nothing", "name the folder that holds"),
        (tmp_path / ("x" * 300), "name the folder that holds"),
    ):
        with pytest.raises(TrtbuildError) as caught:
            check(folder)
        assert hint in caught.value.hint


def test_what_nobody_may_read_is_a_finding(tmp_path: Path) -> None:
    """The check runs as a user without rights, also where the tests run as root."""
    repository = write_models(tmp_path / "repository", {**FINE["python"], **FINE["vllm"]})
    engine, tokenizer = tmp_path / "engine", tmp_path / "tokenizer"
    query = 'input { name: "QUERY" data_type: TYPE_STRING dims: [ 1 ] }'
    paths = {"tensorrt_llm": f'backend: "tensorrtllm"\nparameters {{ key: "gpt_model_path" value {{ string_value: "{engine}" }} }}',
             "preprocessing": f'backend: "python"\n{query}\nparameters {{ key: "tokenizer_dir" value {{ string_value: "{tokenizer}" }} }}'}  # fmt: skip
    write_models(repository, {name: (text, {"1/model.py": "class TritonPythonModel: ..."}) for name, text in paths.items()})  # fmt: skip
    for folder in (engine, tokenizer):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    locked = [repository / "add", repository / "decoupled" / "config.pbtxt", repository / "zero" / "0", repository / "versions" / "1" / "model.py", engine, tokenizer]  # fmt: skip
    script = (
        "import os, sys; from pathlib import Path; from trtbuild.repo.lint import check\n"
        "check(Path(sys.argv[1]))  # imports what the other user may not read\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for each in check(Path(sys.argv[1])).findings: print(each.rule, each.file, each.message)"
    )
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    for place in locked:
        place.chmod(0)
    try:
        done = subprocess.run([sys.executable, "-c", script, str(repository)], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
    finally:
        for place in locked:
            place.chmod(0o755)
    assert done.returncode == 0, done.stderr
    for line in (
        "syntax add/config.pbtxt it cannot be read: Permission denied",
        "syntax decoupled/config.pbtxt it cannot be read: Permission denied",
        "no-model-file zero/config.pbtxt",
        "python-code versions/1/model.py it cannot be read: Permission denied",
        "engine-folder tensorrt_llm/config.pbtxt",
        "tokenizer preprocessing/config.pbtxt",
    ):
        assert line in done.stdout


def test_folders_that_are_no_models_are_not_compared(make: Callable[[str], Path], cli: Cli) -> None:
    repository = make("stray folders")
    assert cli("diff", repository, repository)[0] == 0


@pytest.mark.parametrize("name", [*FINE, *BROKEN, *MADE])
def test_diff_and_migrate_of_any_repository_end_in_an_answer(
    name: str, make: Callable[[str], Path], tmp_path: Path, cli: Cli
) -> None:
    repository, other = make(name), write_models(tmp_path / "other", FINE["python"])
    for command in (("diff", repository, repository), ("diff", repository, other, "--json"), ("diff", other, repository), ("migrate", repository, "-o", tmp_path / "trtbuild.yaml")):  # fmt: skip
        code, _, err = cli(*command)
        assert code in (0, 1, 2, 3)
        assert "error: unexpected" not in err
        assert code == 0 or err.startswith(("error: ", "note: ")), err
