"""Documents that are made to exhaust whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from trtbuild.errors import TrtbuildError
from trtbuild.foreign_yaml import plain_yaml
from trtbuild.migrate.readers import words
from trtbuild.source import read_json

Cli = Callable[..., tuple[int, str, str]]
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [(BOMB, "its aliases stand for more than 1,000,000 values"), ("a: &a [*a]", "stands for what it is part of"), ("&a {x: *a}", "stands for what it is part of"), ("[" * 5000 + "]" * 5000, "nest")],
)  # fmt: skip
def test_yaml_that_stands_for_more_than_can_be_walked_is_refused(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        plain_yaml(text)


def test_aliases_that_stand_for_little_are_followed() -> None:
    assert plain_yaml("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}") == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}
    assert plain_yaml("") is None


def test_json_that_is_nested_too_deeply_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 10**5)
    with pytest.raises(TrtbuildError, match="config.json is not valid JSON"):
        read_json(tmp_path / "config.json")
    with pytest.raises(ValueError, match="nested too deeply"):
        words("[" * 10**5)


@pytest.mark.parametrize(
    ("name", "text"),
    [("trtbuild.yaml", BOMB), ("config.json", "[" * 10**5), ("config.json", "\udcff{"), ("config.json", "")],
)
@pytest.mark.parametrize("verb", [["plan"], ["doctor", "--for"], ["migrate"], ["init"]])
def test_no_verb_hangs_or_calls_it_a_defect(cli: Cli, tmp_path: Path, verb: list[str], name: str, text: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    code, _, err = cli(*verb, tmp_path / "m" / name if verb == ["plan"] and name.endswith(".yaml") else tmp_path / "m")
    assert code in (1, 2)
    assert "defect" not in err
    assert "hint: " in err
