"""docs/configuration.md says what the schema says, for every key."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trtbuild.spec.schema import json_schema

DOCS = Path(__file__).parents[3] / "docs"


def schema_keys(
    node: dict[str, Any], definitions: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (full name, schema entry) of every key that is no section."""
    for name, entry in node["properties"].items():
        reference = entry.get("$ref", "").rpartition("/")[2]
        if reference:
            yield from schema_keys(definitions[reference], definitions, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def test_the_page_is_what_its_generator_writes() -> None:
    page = runpy.run_path(str(DOCS / "generate_configuration.py"))["page"]()
    assert (DOCS / "configuration.md").read_text() == page, "run: python docs/generate_configuration.py"


def test_every_key_of_the_schema_has_a_row_with_its_default_and_description() -> None:
    schema = json_schema()
    rows = [line for line in (DOCS / "configuration.md").read_text().splitlines() if line.startswith("| `")]
    keys = dict(schema_keys(schema, schema["$defs"]))
    assert [row.split("`")[1] for row in rows] == list(keys)
    for row, (name, entry) in zip(rows, keys.items(), strict=True):
        *_, default, description, _ = row.replace("\\|", "/").split("|")
        assert description.strip() == entry["description"], name
        if "default" in entry:
            assert yaml.safe_load(default.strip().strip("`")) == entry["default"], name
        else:
            assert default.strip() == "must be given", name
