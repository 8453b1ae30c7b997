"""Texts of servers, models and paths are printed as they are: no bracket is markup, no colons an emoji."""

from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from trtbuild.cli.report import print_verification
from trtbuild.console import stderr_console, stdout_console

_TEXT = "[bold]a[/bold] [/] :smile: [request id: 7-1]"


def test_consoles_print_brackets_and_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (stdout_console(), stderr_console()):
        table = Table(_TEXT, title=_TEXT)
        table.add_row(_TEXT)
        console.print(table)
        console.print(_TEXT)
    written = capsys.readouterr()
    assert written.out.count(_TEXT) == written.err.count(_TEXT) == 4


def test_a_verification_shows_names_with_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"file": f"{_TEXT}.safetensors", "tensor": _TEXT, "problem": _TEXT}
    report: dict[str, Any] = {"folder": _TEXT, "findings": [finding], "tensors": 1, "bytes": 2}
    print_verification(report, as_json=False)
    written = capsys.readouterr().out
    assert written.count(_TEXT) == 4 and f"{_TEXT}: 1 problem: " in written
