"""The journal of a conversion: whatever a crash left in it, whole lines before count and nothing after does."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.convert.journal import _read


@pytest.mark.parametrize("harm", [b"\xff\xfe", b"3", b'["a", "b"]', b'["a", "b", 3]', b'[["a"], "b", "c"]', b"{"])
def test_what_is_behind_a_damaged_line_is_done_again(tmp_path: Path, harm: bytes) -> None:
    file = tmp_path / "journal"
    file.write_bytes(b'["f", "t", "d"]\n' + harm + b'\n["f", "u", "e"]\n["f", "cut')
    assert _read(file) == {("f", "t"): "d"}
    assert _read(tmp_path / "none") == {}
