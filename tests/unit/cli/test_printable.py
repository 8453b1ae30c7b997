"""What servers say is shown in characters that a terminal prints and does not obey."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from trtbuild.cli import edge
from trtbuild.console import setup_logging
from trtbuild.errors import TrtbuildError
from trtbuild.printable import printable
from trtbuild_client.errors import ServerError

Cli = Callable[..., tuple[int, str, str]]
HOSTILE = "\x1b[2Jgone\x00\x07\r\x9b31m\u202e\ud800"


def test_everything_that_prints_and_line_ends_stay() -> None:
    text = "a tab\tand a line\n日本 🙂 é"
    assert printable(text) == text
    assert printable(HOSTILE) == r"\x1b[2Jgone\x00\x07\r\x9b31m\u202e\ud800"


@pytest.mark.parametrize("kind", [TrtbuildError, ServerError, ValueError])
def test_errors_are_printable(cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(**_: object) -> None:
        raise kind(HOSTILE) if kind is ValueError else kind(HOSTILE, hint=HOSTILE)  # type: ignore[call-arg]

    monkeypatch.setattr(edge.cli, "main", fail)
    code, _, err = cli("versions")
    assert code != 0
    assert r"\x1b[2Jgone" in err
    assert err.replace("\n", "").isprintable()


def test_the_log_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(quiet=False, debug=False)
    logging.getLogger("trtbuild.serve").warning("the server says: %s", HOSTILE)
    err = capsys.readouterr().err
    assert err.startswith("the server says: ")
    assert err.rstrip("\n").isprintable()
