"""Where results go: what cannot be written is refused before the run, and what a server says cannot spoil the page or the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtbuild_client.load.result import write_text
from trtbuild_client.mock.distributions import parse_counts
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import RunningMock, running

Cli = Callable[..., tuple[int, str, str]]
_LOAD = ("--requests", 3, "--output-tokens", 4, "--allow-invalid")
_OPTIONS = ("-o", "--html", "--csv", "--aiperf")


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    with running(MockOptions()) as server:
        yield server


@pytest.mark.parametrize("option", _OPTIONS)
@pytest.mark.parametrize("read_as", ["--dataset", "--tls-ca", "--tokenizer"])
@pytest.mark.parametrize("name", ["itself", "soft", "hard"])
def test_what_is_read_is_never_written(
    option: str, read_as: str, name: str, mock: RunningMock, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text('{"prompt": "x"}')
    (tmp_path / "soft").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    before = len(mock.schedule()["requests"])
    given, out = tmp_path if read_as == "--tokenizer" else file, file if name == "itself" else tmp_path / name
    code, _, err = cli("bench", "--url", mock.grpc, *_LOAD, read_as, given, option, out)
    assert code == 2 and f"{option} {out} is the file of {read_as}, which is read" in err, err
    assert file.read_text() == '{"prompt": "x"}' and len(mock.schedule()["requests"]) == before


@pytest.mark.parametrize("option", _OPTIONS)
def test_a_dash_is_no_file(
    option: str, mock: RunningMock, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("bench", "--url", mock.grpc, *_LOAD, option, "-")
    assert code == 2 and "an output named '-'" in err and "/dev/stdout" in err
    assert list(tmp_path.iterdir()) == []


def test_a_result_goes_where_a_link_leads(mock: RunningMock, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    (tmp_path / "null").symlink_to("/dev/null")
    load = ("bench", "--url", mock.grpc, *_LOAD)
    code, _, err = cli(*load, "-o", tmp_path / "link.json", "--csv", tmp_path / "null", "--html", tmp_path / "null")
    assert code == 0, err
    assert json.loads((tmp_path / "real.json").read_text())["schema"] == "trtbuild.bench"
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "null").is_symlink()
    (tmp_path / "nowhere").symlink_to("missing/r.json")
    code, _, err = cli(*load, "-o", tmp_path / "nowhere")
    assert code == 1 and f"the folder {tmp_path / 'missing'} does not exist" in err


@pytest.mark.parametrize("option", _OPTIONS)
def test_what_a_full_disk_refuses_is_named_and_the_rest_is_written(
    option: str, mock: RunningMock, cli: Cli, tmp_path: Path
) -> None:
    places = {each: tmp_path / f"r{each}" for each in _OPTIONS}
    places[option].symlink_to("/dev/full")
    given = [word for pair in places.items() for word in pair]
    code, out, err = cli("bench", "--url", mock.grpc, *_LOAD, *given)
    assert code == 1 and "3 requests: 3 ok" in out
    assert f"cannot be written: {places[option]}: No space left on device\n" in err
    assert all(path.is_symlink() if name == option else path.stat().st_size > 0 for name, path in places.items())


@pytest.mark.parametrize("option", _OPTIONS)
def test_what_cannot_be_written_is_refused_before_the_run(
    option: str, mock: RunningMock, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    before = len(mock.schedule()["requests"])
    for place in (tmp_path / "file" / "r", tmp_path / "missing" / "r"):
        code, _, err = cli("bench", "--url", mock.grpc, *_LOAD, option, place)
        assert code in (1, 2) and str(place.parent) in err, err
    assert len(mock.schedule()["requests"]) == before


def test_two_results_need_two_files(mock: RunningMock, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    code, _, err = cli("bench", "--url", mock.grpc, *_LOAD, "-o", tmp_path / "r", "--csv", tmp_path / "x" / ".." / "r")
    assert code == 2 and "r is the file of -o, which is written, too" in err


def test_devices_are_written_to_as_they_are(mock: RunningMock, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    code, _, err = cli("bench", "--url", mock.grpc, *_LOAD, "-o", out, "--csv", "/dev/null", "--html", "/dev/null")
    assert code == 0, err
    assert json.loads(out.read_text())["schema"] == "trtbuild.bench" and Path("/dev/null").is_char_device()
    assert [each.name for each in out.parent.iterdir()] == ["r.json"]


def test_the_numbers_are_shown_even_when_a_file_cannot_be_written_in_the_end(
    mock: RunningMock, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtbuild_client.load import exports

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exports, "write_text", full)
    code, out, err = cli("bench", "--url", mock.grpc, *_LOAD, "--csv", tmp_path / "r.csv")
    assert code == 1 and "No space left" in err and "3 requests: 3 ok" in out


def test_a_text_replaces_a_file_only_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def pieces() -> Iterator[str]:
        yield "new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_text(path, pieces())
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["r.json"]
    write_text(tmp_path / "new" / "folder" / "r.json", "new")
    assert (tmp_path / "new" / "folder" / "r.json").read_text() == "new"


def test_brackets_in_what_a_server_says_are_shown_as_they_are(cli: Cli, tmp_path: Path) -> None:
    prompt = tmp_path / "[bold].txt"
    prompt.write_text("ask [mock fault=error_without_id]\n")
    with running() as server:
        code, out, err = cli("bench", "--url", server.grpc, *_LOAD, "--dataset", prompt)
        assert code == 3 and "error (3x): [request id: <id_unknown>] " in out and "[request id: " in err
        code, out, _ = cli("bench", "--url", server.grpc, *_LOAD, "--model", "[/x]")
        assert code == 1


def test_answers_that_nobody_counted_are_not_called_short(cli: Cli) -> None:
    with running(MockOptions(tokens_per_response=parse_counts("4"))) as server:
        arguments = (
            "--requests",
            4,
            "--output-tokens",
            8,
            "--allow-invalid",
            "--param",
            "return_num_output_tokens=false",
        )
        code, out, err = cli("bench", "--url", server.grpc, *arguments)
    assert code == 0, err
    assert (
        "8 events came for 32 tokens asked for" in out
        and "know how to go on" not in out
        and "short" not in out.replace("shorter, or", "")
    )


def test_a_table_for_no_terminal_has_room_for_every_interval(mock: RunningMock, cli: Cli) -> None:
    load = ("--requests", 80, "--concurrency", 8, "--output-tokens", 4, "--allow-invalid")
    code, out, err = cli("bench", "--url", mock.grpc, *load)
    assert code == 0, err
    assert "…" not in out and out.count("[") >= 8


def test_a_command_whose_output_was_closed_writes_its_files(mock: RunningMock, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    command = [
        sys.executable,
        "-m",
        "trtbuild",
        "bench",
        "--url",
        mock.grpc,
        *map(str, _LOAD),
        "--json",
        "-o",
        str(out),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, env=environment, check=False).returncode == 0
    assert json.loads(out.read_text())["schema"] == "trtbuild.bench"


def test_a_result_on_stdout_stands_before_the_numbers(mock: RunningMock, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "trtbuild", "bench", "--url", mock.grpc, *map(str, _LOAD), "-o", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "log").open("wb") as log:
        assert subprocess.run(command, env=environment, stdout=log, cwd=tmp_path, check=False).returncode == 0
    first, rest = (tmp_path / "log").read_text().split("\n", 1)
    assert json.loads(first)["schema"] == "trtbuild.bench" and "3 requests: 3 ok" in rest
    assert (tmp_path / "out").is_symlink()
