"""Outputs that cannot be written are refused before the work, in words that name what was typed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.demo.folder import prepare
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.output import check_file, check_output, check_writable, staged_folder, write_atomically
from trtbuild.serve.launch.ways import write

Cli = Callable[..., tuple[int, str, str]]
#: Places without files: kernel tables, what lies below a file, a device.
NOWHERE = ("/proc/foo", "/proc/foo/bar", "/dev/null/x", "/sys/foo")


@pytest.mark.parametrize("place", NOWHERE)
@pytest.mark.parametrize("check", [check_writable, lambda path: check_output(path, force=False)])
def test_a_place_without_files_is_refused(place: str, check: Callable[[Path], None]) -> None:
    with pytest.raises(
        TrtbuildError, match=f"^{place} cannot be written: {Path(place).parts[0]}.* takes no files"
    ) as failure:
        check(Path(place))
    assert "name a place on a disk" in failure.value.hint


def test_a_place_that_takes_files_is_left_as_it_was(tmp_path: Path) -> None:
    for path in (tmp_path / "x", tmp_path / "a" / "b" / "c"):
        check_writable(path)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_refused_for_who_is_not_root() -> None:
    code = "import os, sys\nfrom pathlib import Path\nfrom trtbuild.output import check_file\nif os.getuid() == 0: os.setuid(65534)\ncheck_file(Path(sys.argv[1]), force=False)"
    with tempfile.TemporaryDirectory() as name:  # pytest's own lies below a folder that others may not enter
        folder = Path(name)
        folder.chmod(0o555)
        result = subprocess.run(
            [sys.executable, "-c", code, str(folder / "x.yaml")], capture_output=True, text=True, check=False
        )
        folder.chmod(0o755)
    assert f"{folder / 'x.yaml'} cannot be written: {folder} takes no files (Permission denied)" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["doctor", "--bundle", "/proc/x.tgz"], ["evaluate", ".", "--html", "/proc/x.html"], ["bench", "--html", "/proc/x.html"], ["bench", "--csv", "/proc/x.csv"], ["bench", "-o", "/dev/null/x"],
     ["mock", "--schedule-file", "/proc/x.json"], ["doctor", "--bundle", "/nope/x.tgz"], ["evaluate", ".", "--html", "/nope/x.html"], ["bench", "-o", "/nope/x.json"]],
)  # fmt: skip
def test_verbs_refuse_it_before_they_begin(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (1, "")
    assert arguments[-1] in err or f"the folder {Path(arguments[-1]).parent} does not exist" in err
    assert ".partial" not in err
    assert "Errno" not in err


def test_folders_of_models_are_refused_too(cli: Cli, make_model: Callable[..., Path]) -> None:
    model = make_model()
    for verb in (["convert"], ["build", "--target", "reference"]):
        code, _, err = cli(*verb, model, "-o", "/proc/foo")
        assert (code, "/proc/foo cannot be written: /proc takes no files" in err) == (1, True)


def test_no_message_names_the_hidden_folder(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError) as failure, staged_folder(tmp_path / "out") as stage:
        (stage / "a" / "b").write_text("x")
    assert failure.value.message == f"cannot write {tmp_path / 'out' / 'a' / 'b'}: No such file or directory"
    with pytest.raises(TrtbuildError, match=f"^cannot write {tmp_path / 'no' / 'x'}: No such file"):
        write_atomically(tmp_path / "no" / "x", "x")


def test_a_file_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="the folder .*/no does not exist"):
        check_file(tmp_path / "no" / "x.yaml", force=False)


def test_a_page_does_not_replace_what_is_evaluated(cli: Cli, make_model: Callable[..., Path], tmp_path: Path) -> None:
    model, config = make_model(), tmp_path / "trtbuild.yaml"
    config.write_text(f"model: {{path: {model}}}\n")
    (tmp_path / "link").symlink_to(model / "config.json")
    for name, page in (("FOLDER", tmp_path / "link"), ("FOLDER", model / "model.safetensors"), ("--config", config)):
        before = page.read_bytes()
        code, _, err = cli("evaluate", model, "--config", config, "--html", page)
        assert code == 2 and f"--html {page} is the file of {name}, which is read" in err
        assert page.read_bytes() == before


def test_a_schedule_does_not_replace_a_certificate(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("x")
    given = [word for name in ("--tls-cert", "--schedule-file") for word in (name, tmp_path / "cert.pem")]
    code, _, err = cli("mock", *given)
    assert code == 2 and "cert.pem is the file of --tls-cert, which is read" in err


def test_two_files_of_a_migration_are_two(make_model: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    source, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    source.write_text(f"model: {{path: {make_model()}}}\ntarget: tensorrt\n")
    code, _, err = cli("migrate", source, "-o", new, "--llm-api", tmp_path / "." / "new.yaml")
    assert code == 2 and "new.yaml is the file of -o, which is written, too" in err and not new.exists()


@pytest.mark.parametrize(
    "verb",
    [
        ["init"],
        ["convert"],
        ["build", "--target", "reference"],
        ["convert", "--target", "reference", "--target", "tensorrt"],
    ],
)
def test_a_dash_is_neither_a_file_nor_a_folder(
    verb: list[str], cli: Cli, make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, _, err = cli(*verb, model, "-o", "-")
    assert code == 2 and "an output named '-'" in err and sorted(tmp_path.iterdir()) == before


def test_a_dash_is_no_folder_of_a_demo_or_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for make in (lambda: prepare(Path("-"), force=False), lambda: write({"x": ""}, Path("-"), force=False)):
        with pytest.raises(UsageError, match="an output named '-'"):
            make()
    assert list(tmp_path.iterdir()) == []


def test_a_trtbuild_yaml_goes_where_a_link_leads(cli: Cli, make_model: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    (tmp_path / "null").symlink_to("/dev/null")
    model = make_model()
    assert cli("init", model, "-o", tmp_path / "link.yaml")[0] == 1
    assert cli("init", model, "-o", tmp_path / "link.yaml", "--force")[0] == 0
    assert cli("init", model, "-o", tmp_path / "null")[0] == 0
    assert (tmp_path / "link.yaml").is_symlink() and "target:" in (tmp_path / "real.yaml").read_text()
    assert (tmp_path / "null").is_symlink() and Path("/dev/null").is_char_device()
