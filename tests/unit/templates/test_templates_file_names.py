"""Names of files in an interpreter that took ASCII for them."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

HANDLER = "surrogateescape"


@pytest.fixture
def file_names(shipped: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    module: SimpleNamespace = shipped("preprocessing").file_names
    return module


@pytest.mark.parametrize(
    ("name", "expected"),
    [("plain", b"plain"), ("m\xfcller", b"m\xc3\xbcller"), ("\u65e5/\U0001f642 x", b"\xe6\x97\xa5/\xf0\x9f\x99\x82 x"), ("\udcc3\udcbc\xfc\udcff", b"\xc3\xbc\xc3\xbc\xff")],
)  # fmt: skip
def test_what_ascii_lacks_becomes_utf8(file_names: SimpleNamespace, name: str, expected: bytes) -> None:
    codecs.register_error("trtbuild-test", file_names.in_utf8)
    assert name.encode("ascii", "trtbuild-test") == expected


def test_other_encodings_and_what_is_no_text_fail_as_before(file_names: SimpleNamespace) -> None:
    codecs.register_error("trtbuild-test", file_names.in_utf8)
    for text, encoding in (("\u65e5", "latin-1"), ("\ud800", "ascii")):
        with pytest.raises(UnicodeEncodeError):
            text.encode(encoding, "trtbuild-test")
    assert b"\xff".decode("ascii", "trtbuild-test") == "\udcff"


@pytest.mark.parametrize(("encoding", "changes"), [("ascii", True), ("utf-8", False)])
def test_only_an_interpreter_that_took_ascii_is_changed(
    file_names: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, encoding: str, changes: bool
) -> None:
    registered: dict[str, object] = {}
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    monkeypatch.setattr(codecs, "register_error", registered.__setitem__)
    file_names.use_utf8()
    assert (registered == {HANDLER: file_names.in_utf8}) is changes
