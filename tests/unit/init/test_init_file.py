"""The commented trtbuild.yaml: everything is in it, and it reads back as the same deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild import spec
from trtbuild.init_file import render, scalar
from trtbuild.spec.fields import fields
from trtbuild.spec.schema import json_schema

FIELDS = list(fields())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def deployment(**sections: Any) -> spec.Deployment:
    return spec.parse({"model": {"path": "/models/llama"}, **sections}, origin="test")


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: ".".join(field.path))
def test_every_key_is_written_with_its_description_before_it(field: Any) -> None:
    lines = render(deployment()).splitlines()
    indent = "  " * (len(field.path) - 1)
    place = next(number for number, line in enumerate(lines) if _path_at(lines, number) == field.path)
    comment = []
    while lines[place - 1].startswith(f"{indent}# "):
        place -= 1
        comment.insert(0, lines[place].strip()[2:])
    assert field.description
    assert " ".join(comment).startswith(field.description)


def _path_at(lines: list[str], number: int) -> tuple[str, ...] | None:
    """Return the keys that lead to a line, or None for a comment or an empty line; independent of the writer's order."""
    if not lines[number].strip() or lines[number].lstrip().startswith("#"):
        return None
    path, depth = [lines[number].strip().partition(":")[0]], len(lines[number]) - len(lines[number].lstrip())
    for line in reversed(lines[:number]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and not line.lstrip().startswith("#") and indent < depth:
            path.insert(0, line.strip().partition(":")[0])
            depth = indent
    return tuple(path)


def test_every_description_in_the_schema_is_in_the_file() -> None:
    text = " ".join(line.strip().removeprefix("# ") for line in render(deployment()).splitlines())
    schema = json_schema()
    for definition in (schema, *schema["$defs"].values()):
        for name, entry in definition["properties"].items():
            assert f"{name}:" in text
            assert entry.get("description", "") in text


def test_a_value_that_is_not_the_default_names_the_default() -> None:
    text = render(deployment(parallel={"tp_size": 3}, quantization={"scheme": "fp8"}))
    assert "Default: 1.\n  tp_size: 3\n" in text
    assert "Default: none.\n  scheme: fp8\n" in text
    assert text.count("Default:") == 2


def test_bounds_and_choices_are_in_the_comments() -> None:
    text = render(deployment())
    assert "(whole number, 0 to 65535)" in text
    assert "(whole number, 1 or more)" in text
    assert "(auto | fp8 | int8)" in text


@settings(max_examples=60, deadline=None)
@given(
    path=TEXTS, system=st.none() | TEXTS, stops=st.lists(TEXTS), tp=st.integers(1, 2**40),
    target=st.sampled_from(["tensorrt", "reference"]), file=st.none() | TEXTS, max_seq_len=st.none() | st.integers(1),
)  # fmt: skip
def test_parsing_the_file_gives_the_same_deployment(
    path: str, system: str | None, stops: list[str], tp: int, target: str, file: str | None, max_seq_len: int | None
) -> None:
    given_deployment = spec.parse(
        {
            "model": {"path": path},
            "target": target,
            "quantization": {"calibration": {"file": file}},
            "parallel": {"tp_size": tp},
            "limits": {"max_seq_len": max_seq_len},
            "serving": {"system_prompt": system, "chat_template": system is not None, "stop_words": stops},
        },
        origin="test",
    )
    assert spec.parse(yaml.safe_load(render(given_deployment)), origin="file") == given_deployment


@settings(deadline=None)
@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.lists(TEXTS))
def test_a_scalar_is_one_line_of_yaml(value: Any) -> None:
    text = scalar(value)
    assert len(text.splitlines()) <= 1
    assert yaml.safe_load(f"key: {text}\n") == {"key": value}


def test_loading_the_file_resolves_the_model_path_and_changes_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "trtbuild.yaml"
    file.write_text(render(deployment(limits={"max_batch_size": 8})), encoding="utf-8")
    assert spec.load(file) == deployment(limits={"max_batch_size": 8})
