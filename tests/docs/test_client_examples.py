"""The examples of docs/client.md and docs/mock.md run, with the mock behind the addresses that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import running

DOCS = Path(__file__).parents[2] / "docs"


def examples() -> list[tuple[str, int, str]]:
    """Return (page, number, code) of every Python example."""
    found = []
    for page in ("client.md", "mock.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.S | re.M)
        found += [(page, number, code) for number, code in enumerate(blocks)]
    return found


@pytest.mark.parametrize(("page", "number", "code"), examples())
def test_examples_run(
    page: str,
    number: int,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "llm.example" in code:  # names a server that is not ours: it must be valid, and is not run
        compile(code, page, "exec")
        return
    monkeypatch.chdir(tmp_path)
    with running(MockOptions(output_tokens=12)) as mock:
        code = code.replace("127.0.0.1:8001", mock.grpc).replace("127.0.0.1:8000", mock.http)
        exec(compile(code, f"{page} example {number}", "exec"), {"__name__": "__main__"})
    assert "the sky is" in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert len(examples()) >= 6
