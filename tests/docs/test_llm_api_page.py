"""The page of the LLM API's arguments is that of the tables."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_arguments_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "generate_llm_api.py"))["page"]()
    assert (DOCS / "llm_api_arguments.md").read_text(encoding="utf-8") == page, "run: python docs/generate_llm_api.py"
