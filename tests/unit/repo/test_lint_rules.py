"""The registry of rules, its page, and how rules are chosen and explained."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trtbuild.errors import UsageError
from trtbuild.repo.lint.rules import RULES, SECTIONS, section_of
from trtbuild.repo.lint.select import choose, explain

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_the_one_that_the_registry_makes() -> None:
    spec = importlib.util.spec_from_file_location("generate_lint", DOCS / "generate_lint.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "lint.md").read_text(encoding="utf-8") == module.page()


def test_no_two_modules_have_a_rule_of_one_name() -> None:
    assert sum(len(module.RULES) for modules in SECTIONS.values() for module in modules) == len(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_explained_with_its_place_in_the_page(name: str) -> None:
    text, page = explain(name), (DOCS / "lint.md").read_text(encoding="utf-8")
    assert RULES[name].why in text and RULES[name].mend in text
    assert text.endswith(f"docs/lint.md#{name}")
    assert f"\n### {name}\n" in page.partition(f"\n## {section_of(name)}\n")[2]


def test_the_ids_that_scripts_rely_on_are_there() -> None:
    known = """unfilled syntax model-name name-differs no-version no-model-file empty-parameter duplicate-parameter instance-count batch-size
    duplicate-tensor tensor-type tensor-dims ensemble-member ensemble-tensor ensemble-unused ensemble-unset ensemble-required ensemble-datatype
    ensemble-dims ensemble-batch-size ensemble-scheduling batch-sizes-differ decoupled-differs llmapi-differs tokenizer-differs
    postprocessing-instances"""
    assert set(known.split()) <= set(RULES)


def test_rules_are_chosen_by_name_and_by_pattern() -> None:
    assert choose() == set(RULES)
    assert choose(["unfilled,syntax"], ["syntax"]) == {"unfilled"}
    assert all(name.startswith("ensemble-") for name in choose(["ensemble-*"]))
    assert "ensemble-dims" not in choose((), ["ensemble-*"])


@pytest.mark.parametrize("call", [lambda: choose(["ensemble-dim"]), lambda: choose((), ["ensemble-dim"]), lambda: explain("ensemble-dim")])  # fmt: skip
def test_an_unknown_rule_is_refused_with_the_nearest(call) -> None:  # type: ignore[no-untyped-def] # three functions
    with pytest.raises(UsageError, match="no lint rule 'ensemble-dim' near: ensemble-dims"):
        call()
