"""Tables on terminals of any width: no word is broken, nothing is left out, no line is longer than the terminal unless one word is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.cli.ruled import print_table
from trtbuild.spec.fields import fields

Cli = Callable[..., tuple[int, str, str]]
_FRAME = re.compile(r"[┏━┳┓┃┡╇┩│└─┴┘]")
COLUMNS = ("setting", "value", "note")
ROWS = [
    ("limits.max_batch_size", "8", "taken over as it is"),
    ("model.path", "/models/Llama-3.1-8B-Instruct", "a folder of this machine; look whether the server sees it, too"),
]


def words(text: str) -> list[str]:
    return _FRAME.sub(" ", text).split()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200, None])
@pytest.mark.parametrize("align", ["", "<>>"])
def test_no_word_is_broken_or_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None, align: str
) -> None:
    if width is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, align=align, title="all of them")
    out = capsys.readouterr().out
    lines = out.splitlines()
    wanted = {word for row in ROWS for cell in row for word in cell.split()}
    assert wanted | set(COLUMNS) <= set(words(out))
    assert lines[0] == "all of them"
    if width is None or width >= 80:
        assert lines[1].startswith("┏")
    if width in (40, 60, 80, 100, 120, 200):
        assert max(map(len, lines)) <= max(width, 4 + len("setting") + len(ROWS[1][1]))
    if width in (None, 200):
        assert len(lines) == 1 + 3 + len(ROWS) + 1


def test_tall_cells_become_paragraphs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table(("key", "empty", "text"), [("a", "", "word " * 90)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["key a", "  text   word word word word word word word word word word"]
    assert all(line.startswith("         word") for line in lines[2:])


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [], title="none of them")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("width", ["80", "120", ""])
def test_versions_and_formats_are_whole_at_any_width(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for command in (["versions"], ["architectures"], ["architectures", "--gpus"]):
        code, out, _ = cli(*command)
        assert code == 0
        _, markdown, _ = cli(*command, "--markdown")
        # Headers are not repeated for cells that are empty, and notes are numbered there.
        lost = {word for word in words(out) if word not in markdown}
        assert lost <= {"(1)", "(2)"}, lost


@pytest.mark.parametrize("width", ["80", "120", ""])
def test_migrate_cuts_no_key_and_no_path(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    model = tmp_path / ("a-long-name-of-a-model" * 3)
    file = tmp_path / "old.yaml"
    file.write_text(f"model: {{path: {model}}}\ntarget: tensorrt\nlimits: {{max_batch_size: 8, max_seq_len: 4096, max_num_tokens: 8192}}\n")  # fmt: skip
    code, out, err = cli("migrate", file, "-o", tmp_path / "new.yaml")
    assert code == 0, err
    keys = {".".join(field.path) for field in fields() if field.path[0] == "limits"}
    found = set(words(out))
    assert {"limits.max_batch_size", "limits.max_seq_len", "limits.max_num_tokens"} <= keys & found
    assert {"model.path", str(model)} <= found
    assert "…" not in out
