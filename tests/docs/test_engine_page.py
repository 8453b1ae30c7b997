"""The tables of docs/engines.md are those of the code."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_what_their_generator_writes() -> None:
    page = runpy.run_path(str(DOCS / "generate_engine_options.py"))["page"]()
    assert (DOCS / "engines.md").read_text() == page, "run: python docs/generate_engine_options.py"
    assert page.count("| `--") > 45
