"""What is missing or damaged in a build folder is found by a look at names and sizes, named, and made again; nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.build.conftest import Recorder

from trtbuild.errors import ToolFailed, TrtbuildError
from trtbuild.output import staged_folder

Cli = Callable[..., tuple[int, str, str]]
Settings = Callable[..., Path]


@pytest.fixture
def built(target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path) -> Path:
    """Return a finished build folder of two ranks."""
    assert cli("build", settings(), "-o", tmp_path / "build")[0] == 0
    return tmp_path / "build"


def _cut(file: Path) -> str:
    size = file.stat().st_size
    os.truncate(file, size - 1)
    return f"{file} has {size - 1:,} bytes, and {size:,} were written"


def _gone(file: Path) -> str:
    file.unlink()
    return f"{file} is missing"


@pytest.mark.parametrize("harm", [_cut, _gone])
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("checkpoint/rank1.safetensors", "checkpoint"),
        ("checkpoint/config.json", "checkpoint"),
        ("checkpoint/manifest.json", "checkpoint"),
        ("engine/size", "engine"),
    ],
)
def test_a_stage_that_lost_a_file_is_named_and_done_again_and_only_that_one(
    built: Path, settings: Settings, cli: Cli, harm: Callable[[Path], str], name: str, stage: str
) -> None:
    before = {file: file.stat().st_ino for file in built.rglob("*") if file.is_file()}
    said = harm(built / name)
    code, text, err = cli("build", settings(), "-o", built, "--json")
    assert code == 0, err
    assert f"stage {stage} is done again: {said}" in err
    assert json.loads(text)["stages"] == {"checkpoint": "kept", "engine": "kept", stage: "done"}
    for file, inode in before.items():
        assert file.is_file()
        if file.relative_to(built).parts[0] in {"checkpoint", "engine"} - {stage}:
            assert file.stat().st_ino == inode
    assert json.loads(cli("build", settings(), "-o", built, "--json")[1])["unchanged"]


def test_a_log_that_is_gone_costs_no_engine(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "build"
    finish = target.finish

    def with_log(self: Recorder, job: Any, folder: Path, *, quiet: bool) -> dict[str, Any]:
        record = finish(self, job, folder, quiet=quiet)
        (folder / "engine" / "build.log").write_text("hours of work")
        return record

    monkeypatch.setattr(target, "finish", with_log)
    assert cli("build", settings(), "-o", out)[0] == 0
    (out / "engine" / "build.log").unlink()
    assert json.loads(cli("build", settings(), "-o", out, "--json")[1])["unchanged"]


def test_every_file_of_the_tokenizer_counts(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    out = tmp_path / "build"
    assert cli("build", settings(), "-o", out)[0] == 0
    (out / "checkpoint" / "tokenizer" / "tokenizer.json").unlink()
    _, text, err = cli("build", settings(), "-o", out, "--json")
    assert "tokenizer.json is missing" in err
    assert json.loads(text)["stages"]["checkpoint"] == "done"


@pytest.mark.parametrize("name", ["llm_api.yaml", "serve.sh"])
def test_the_files_of_target_pytorch_count_too(
    make_model: Callable[..., Path], cli: Cli, tmp_path: Path, name: str
) -> None:
    model, out = make_model(), tmp_path / "build"
    assert cli("build", model, "--target", "pytorch", "-o", out)[0] == 0
    content = (out / name).read_bytes()
    (out / name).write_bytes(content[:-1])
    code, text, err = cli("build", model, "--target", "pytorch", "-o", out, "--json")
    assert code == 0, err
    assert f"{out / name} has {len(content) - 1:,} bytes" in err
    assert json.loads(text)["stages"] == {"checkpoint": "kept", "engine": "done"}
    assert (out / name).read_bytes() == content


def test_a_build_that_lost_everything_is_done_again_without_force(built: Path, settings: Settings, cli: Cli) -> None:
    shutil.rmtree(built / "engine")
    shutil.rmtree(built / "checkpoint")
    code, text, err = cli("build", settings(), "-o", built, "--json")
    assert code == 0, err
    assert json.loads(text)["stages"] == {"checkpoint": "done", "engine": "done"}


def test_a_folder_of_another_build_in_its_place_is_not_taken_for_its_own(
    built: Path, target: type[Recorder], settings: Settings, cli: Cli, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    model = make_model(name="other-model", edit=lambda tensors: tensors["model.norm.weight"].fill(1))
    code, _, err = cli("build", settings(model={"path": str(model)}), "-o", other)
    assert code == 0, err
    shutil.rmtree(built / "checkpoint")
    shutil.copytree(other / "checkpoint", built / "checkpoint")
    wanted = json.loads((built / "manifest.json").read_text())["stages"]["checkpoint"]["files"][
        "checkpoint/manifest.json"
    ]
    file = built / "checkpoint" / "manifest.json"
    file.write_text(file.read_text()[: wanted["bytes"]].ljust(wanted["bytes"]))
    code, text, err = cli("build", settings(), "-o", built, "--json")
    assert code == 0, err
    assert "the folder is of another build" in err
    assert json.loads(text)["stages"] == {"checkpoint": "done", "engine": "kept"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 1, "kind": "bu', "manifest.json is not valid JSON"),
        ("[]", "holds a list, not an object"),
        ('{"schema_version": 9, "kind": "build", "stages": {}}', "schema 9; this trtbuild"),
        ('{"schema_version": 1, "stages": {}}', "is of kind None"),
        ('{"schema_version": 1, "kind": "build"}', "stages is missing"),
        ('{"schema_version": 1, "kind": "build", "stages": []}', "manifest.json is damaged, or of an older version: stages is a list, not a mapping"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": []}}', "stages.engine is a list, not a mapping"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": "x"}}', "stages.engine is text, not a mapping"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": {}}}', "stages.engine.key is missing; stages.engine.outputs is missing"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": 3}}', "stages.engine is a whole number"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": {"key": "k", "outputs": "engine"}}}', "stages.engine.outputs is text, not a list"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": {"key": "k", "outputs": ["../model"]}}}', "names '../model', which is no entry of the folder"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": {"key": "k", "outputs": [".."]}}}', "names '..', which"),
        ('{"schema_version": 1, "kind": "build", "stages": {"engine": {"key": 1, "outputs": []}}}', "stages.engine.key is a whole number, not text"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_explained_and_replaced_by_force(
    built: Path, settings: Settings, cli: Cli, content: str, message: str
) -> None:
    (built / "manifest.json").write_text(content)
    code, _, err = cli("build", settings(), "-o", built)
    assert code == 1
    assert message in err
    assert "`trtbuild build` with --force builds everything again" in err
    assert "download" not in err
    code, text, err = cli("build", settings(), "-o", built, "--force", "--json")
    assert (code, json.loads(text)["stages"]) == (0, {"checkpoint": "done", "engine": "done"}), err
    assert json.loads(cli("build", settings(), "-o", built, "--json")[1])["unchanged"]


def test_a_configuration_that_is_no_text_is_written_again(built: Path, settings: Settings, cli: Cli) -> None:
    wanted = (built / "trtbuild.yaml").read_bytes()
    (built / "trtbuild.yaml").write_bytes(b"\xff")
    code, text, err = cli("build", settings(), "-o", built, "--json")
    assert (code, json.loads(text)["unchanged"]) == (0, True), err
    assert (built / "trtbuild.yaml").read_bytes() == wanted


@pytest.mark.parametrize("files", [None, [], {"engine/size": 3}, {"engine/size": {"bytes": "1"}}])
def test_a_stage_whose_files_are_not_listed_is_done_again(
    built: Path, settings: Settings, cli: Cli, files: Any
) -> None:
    written = json.loads((built / "manifest.json").read_text())
    written["stages"]["engine"]["files"] = files
    (built / "manifest.json").write_text(json.dumps(written))
    _, text, err = cli("build", settings(), "-o", built, "--json")
    assert json.loads(text)["stages"] == {"checkpoint": "kept", "engine": "done"}
    assert "does not list the files" in err


@pytest.mark.parametrize(
    "content", ["{", '{"kind": "checkpoint", "schema_version": 2}', '{"kind": "checkpoint", "schema_version": 1}']
)
def test_a_damaged_manifest_of_the_checkpoint_has_it_made_again(
    built: Path, settings: Settings, cli: Cli, content: str
) -> None:
    (built / "checkpoint" / "manifest.json").write_text(content)
    code, text, err = cli("build", settings(), "-o", built, "--json")
    assert (code, json.loads(text)["stages"]["checkpoint"]) == (0, "done"), err


def test_a_folder_of_another_kind_is_not_replaced_even_by_force(settings: Settings, cli: Cli, tmp_path: Path) -> None:
    assert cli("convert", settings(), "-o", tmp_path / "ckpt")[0] == 0
    code, _, err = cli("build", settings(), "-o", tmp_path / "ckpt", "--force")
    assert code == 1
    assert "is no build folder" in err
    assert (tmp_path / "ckpt" / "rank0.safetensors").is_file()


def test_an_engine_that_somebody_else_put_there_is_not_replaced_unasked(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    assert cli("build", settings(), "-o", out, "--until", "checkpoint")[0] == 0
    (out / "engine").mkdir()
    (out / "engine" / "mine").write_text("hours of work")
    code, _, err = cli("build", settings(), "-o", out)
    assert code == 1
    assert f"{out / 'engine'} was not made by this build" in err
    assert cli("build", settings(), "-o", out, "--from", "checkpoint", "--until", "checkpoint")[0] == 0
    assert (out / "engine" / "mine").is_file()
    assert cli("build", settings(), "-o", out, "--force")[0] == 0
    assert not (out / "engine" / "mine").exists()


def test_a_stage_behind_the_last_one_stays_while_its_inputs_are_the_same(
    built: Path, target: type[Recorder], settings: Settings, cli: Cli
) -> None:
    inode = (built / "engine" / "size").stat().st_ino
    rank = (built / "checkpoint" / "rank0.safetensors").stat().st_ino
    assert cli("build", settings(), "-o", built, "--from", "checkpoint", "--until", "checkpoint")[0] == 0
    assert (built / "checkpoint" / "rank0.safetensors").stat().st_ino != rank
    assert (target.runs, (built / "engine" / "size").stat().st_ino) == (1, inode)
    code, _, err = cli("build", settings(limits={"max_batch_size": 3}), "-o", built, "--until", "checkpoint")
    assert code == 1, "trtbuild.yaml would say other limits than the engine has"
    assert "holds engine of other inputs" in err
    assert "max_batch_size: 3" not in (built / "trtbuild.yaml").read_text()


def test_from_must_not_come_behind_until(target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("build", settings(), "-o", tmp_path / "b", "--from", "engine", "--until", "checkpoint")
    assert code == 2
    assert "--from engine comes behind --until checkpoint" in err


def test_from_says_which_file_of_an_earlier_stage_is_missing(built: Path, settings: Settings, cli: Cli) -> None:
    said = _gone(built / "checkpoint" / "rank0.safetensors")
    code, _, err = cli("build", settings(), "-o", built, "--from", "engine")
    assert code == 2
    assert said in err


def test_a_checkpoint_that_was_taken_over_by_a_failed_run_is_not_the_one_that_is_made_again(
    built: Path, target: type[Recorder], settings: Settings, cli: Cli
) -> None:
    target.failure = ToolFailed("no GPU", hint="find one")
    assert cli("build", settings(), "-o", built, "--from", "engine")[0] == 1
    assert (built.parent / ".build.partial" / "checkpoint" / "rank0.safetensors").is_file()
    target.failure = None
    old = (built / "checkpoint" / "rank0.safetensors").stat().st_ino
    assert cli("build", settings(), "-o", built, "--from", "checkpoint")[0] == 0
    assert (built / "checkpoint" / "rank0.safetensors").stat().st_ino != old


def test_what_a_killed_engine_had_begun_is_not_in_the_result(
    target: type[Recorder], settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    target.failure = ToolFailed("no GPU", hint="find one")
    assert cli("build", settings(), "-o", tmp_path / "build")[0] == 1
    (tmp_path / ".build.partial" / ".engine.partial").mkdir()
    (tmp_path / ".build.partial" / ".engine.partial" / "rank0.engine").write_bytes(b"a part")
    assert cli("build", settings(), "-o", tmp_path / "build", "--until", "checkpoint")[0] == 0
    assert {entry.name for entry in (tmp_path / "build").iterdir()} == {"checkpoint", "trtbuild.yaml", "manifest.json"}
    (tmp_path / "build" / ".repository.partial").mkdir()
    target.failure = None
    assert cli("build", settings(), "-o", tmp_path / "build")[0] == 0
    assert not (tmp_path / "build" / ".repository.partial").exists()


def test_of_two_builds_at_once_the_later_one_does_not_replace_what_the_first_made(
    built: Path, target: type[Recorder], settings: Settings, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run ends between the look at the folder and the lock."""
    finished = built.rename(built.with_name("finished"))

    monkeypatch.setattr(target, "preflight", lambda *_: finished.rename(built))
    inode = (finished / "checkpoint" / "rank0.safetensors").stat().st_ino
    code, _, err = cli("build", settings(), "-o", built)
    assert code == 1
    assert "another process wrote" in err
    assert (built / "checkpoint" / "rank0.safetensors").stat().st_ino == inode
    assert target.runs == 1


def test_a_symbolic_link_as_output_is_kept_while_it_is_up_to_date_and_never_replaced(
    built: Path, settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(built)
    assert json.loads(cli("build", settings(), "-o", tmp_path / "link", "--json")[1])["unchanged"]
    code, _, err = cli("build", settings(), "-o", tmp_path / "link", "--from", "engine")
    assert code == 1
    assert "is a symbolic link" in err
    assert str(built) in err
    assert (tmp_path / "link").is_symlink()


def test_links_within_a_build_stay_links(built: Path, settings: Settings, cli: Cli, tmp_path: Path) -> None:
    (built / "checkpoint").rename(tmp_path / "elsewhere")
    (built / "checkpoint").symlink_to(tmp_path / "elsewhere")
    (built / "notes").symlink_to("nowhere")
    code, text, err = cli("build", settings(), "-o", built, "--from", "engine", "--json")
    assert (code, json.loads(text)["stages"]) == (0, {"checkpoint": "kept", "engine": "done"}), err
    assert (built / "checkpoint").readlink() == tmp_path / "elsewhere"
    assert str((built / "notes").readlink()) == "nowhere"


def test_what_ended_between_its_two_renames_is_put_back(tmp_path: Path) -> None:
    (tmp_path / ".out.replaced").mkdir()
    (tmp_path / ".out.replaced" / "old").write_text("")
    with pytest.raises(TrtbuildError), staged_folder(tmp_path / "out"):
        raise TrtbuildError("no")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "old").is_file()


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("")
    rename = Path.rename

    def refuse(path: Path, to: Path) -> Path:
        if path.name == ".out.partial":
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(TrtbuildError, match="cannot write"), staged_folder(tmp_path / "out"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "old").is_file()


def test_verify_reads_every_byte_that_a_build_left(make_model: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "build"
    assert cli("build", make_model(), "--target", "pytorch", "-o", out)[0] == 0
    assert cli("verify", out)[0] == 0
    (out / "serve.sh").write_bytes((out / "serve.sh").read_bytes().replace(b"serve", b"sErve"))
    (out / "llm_api.yaml").unlink()
    code, text, _ = cli("verify", out, "--json")
    assert code == 3
    found = {each["file"]: each["problem"] for each in json.loads(text)["findings"]}
    assert found == {"serve.sh": "is not what was written", "manifest.json": f"{out / 'llm_api.yaml'} is missing"}
    (out / "manifest.json").write_text("{")
    assert "is not valid JSON" in cli("verify", out, "--json")[1]


def test_what_is_not_ours_is_refused_in_the_same_words_with_and_without_force(
    settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("years of work")
    code, _, err = cli("build", settings(), "-o", tmp_path / "mine")
    assert code == 1
    assert f"{tmp_path / 'mine'} exists and was not made by trtbuild" in err
    assert "or replace it with --force" not in err
    assert cli("build", settings(), "-o", tmp_path / "mine", "--force")[2] == err
    assert (tmp_path / "mine" / "thesis").is_file()


def test_a_symbolic_link_is_refused_before_force_is_suggested(
    built: Path, settings: Settings, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(built)
    code, _, err = cli("build", settings(limits={"max_batch_size": 3}), "-o", tmp_path / "link")
    assert (code, "is a symbolic link" in err, "--force" in err) == (1, True, False)
