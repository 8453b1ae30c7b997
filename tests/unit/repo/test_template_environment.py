"""Templates are compiled once per process, and what changes is noticed all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.repo.template_environment import TemplateEnvironment


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """Return a template that uses one name and imports a macro that uses another."""
    (tmp_path / "macro.j2").write_text("{% macro twice(x) %}{{ x }}{{ x }}{{ end }}{% endmacro %}")
    file = tmp_path / "a.j2"
    file.write_text('{% from "macro.j2" import twice with context %}{% set own = 1 %}\n{{ own }}{{ twice(size) }}')
    return file


def environment(template: Path) -> TemplateEnvironment:
    return TemplateEnvironment(template.parent, filters={})


def test_every_name_without_a_value_is_listed_with_its_place(template: Path) -> None:
    files = sorted(template.parent.glob("*.j2"))
    with pytest.raises(TrtbuildError, match=r"size \(a\.j2:2\), end \(macro\.j2:1\)"):
        environment(template).check({}, files)
    environment(template).check({"size": 1, "end": 2}, files)


def test_a_template_that_changes_is_compiled_again(template: Path) -> None:
    made, values = environment(template), {"size": 1, "end": 2}
    made.check(values, [template])
    template.write_text("{{ other }}")
    os.utime(template, ns=(1, 1))
    with pytest.raises(TrtbuildError, match=r"other \(a\.j2:1\)"):
        made.check(values, [template])
    template.write_text("{{ size }}")
    os.utime(template, ns=(2, 2))
    made.check(values, [template])
    assert made.get_template("a.j2").render(values) == "1"


def test_a_template_that_stays_is_compiled_once(template: Path) -> None:
    made = environment(template)
    assert made.get_template("a.j2") is made.get_template("a.j2")
