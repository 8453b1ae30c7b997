"""Files that a command writes: through links, as a whole, never over what is the system's own or over what was read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.output_file import check_apart, is_written_as_it_is, replaced, target_of


def write(path: Path, text: bytes) -> None:
    with replaced(path) as file:
        file.write(text)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_links_lead_to_is_replaced_and_they_stay(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real").write_text("old")
    (tmp_path / "near").symlink_to("far")
    (tmp_path / "second").symlink_to("near/real")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    before = (tmp_path / "far" / "real").stat().st_ino
    write(tmp_path / "first", b"new")
    assert (tmp_path / "far" / "real").read_text() == "new" and (tmp_path / "far" / "real").stat().st_ino != before
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert names(tmp_path) == ["far", "first", "near", "second"] and names(tmp_path / "far") == ["real"]


def test_a_link_that_leads_to_nothing_yet_gets_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("later")
    write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "later").read_text() == "x"


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        write(tmp_path / "a", b"x")
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("name", ["/proc/self/fd/{}", "/dev/fd/{}"])
def test_a_descriptor_goes_on_where_it_is_and_its_file_is_not_replaced(name: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before, ")
        log.flush()
        (tmp_path / "out").symlink_to(name.format(log.fileno()))
        (tmp_path / "link").symlink_to("out")
        before = (tmp_path / "log").stat().st_ino
        write(tmp_path / "link", b"this, ")
        log.write(b"after")
    assert (tmp_path / "log").read_text() == "before, this, after" and (tmp_path / "log").stat().st_ino == before
    assert (tmp_path / "out").is_symlink() and names(tmp_path) == ["link", "log", "out"]


def test_pipes_are_written_to_as_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write(tmp_path / "pipe", b"x")
    assert os.read(reader, 9) == b"x" and (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["pipe"]
    os.close(reader)


@pytest.mark.parametrize(
    ("path", "expected"), [("/dev/null", True), ("/proc/self/fd/1", True), ("/dev/shm/x", False), ("/devices/x", False)]
)
def test_what_is_the_systems_own(path: str, expected: bool) -> None:
    assert is_written_as_it_is(target_of(Path(path))) is expected


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("old")
    with pytest.raises(ZeroDivisionError), replaced(tmp_path / "r") as file:
        file.write(bytes(1 << 20))
        raise ZeroDivisionError
    assert (tmp_path / "r").read_text() == "old" and names(tmp_path) == ["r"]


def test_outputs_are_apart_from_inputs_and_each_other(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    (tmp_path / "soft").symlink_to("new")
    inputs = [("SOURCE", tmp_path / "in"), ("--not-given", None)]
    check_apart([("-o", tmp_path / "new"), ("--html", tmp_path / "page"), ("--csv", None)], inputs)
    check_apart([("-o", Path("/dev/null")), ("--html", Path("/dev/null"))], [("--dataset", Path("/dev/null"))])
    with pytest.raises(InvalidRequest, match=r"-o .*hard is the file of SOURCE, which is read"):
        check_apart([("-o", tmp_path / "hard")], inputs)
    with pytest.raises(InvalidRequest, match=r"--html .*soft is the file of -o, which is written, too"):
        check_apart([("-o", tmp_path / "new"), ("--html", tmp_path / "soft")])
