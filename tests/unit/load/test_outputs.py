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
    assert code == 2 and "is given for two results" in err


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
