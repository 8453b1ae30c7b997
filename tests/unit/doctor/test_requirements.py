"""Reading our own requirements without a parser of the packaging world."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.errors import TrtbuildError
from trtbuild.requirements import Requirement, own_requirements, parse

ROOT = Path(__file__).parents[3]
VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("click>=8.1", Requirement("click", ">=8.1", "")),
        ("tritonclient[grpc,http]>=2.41", Requirement("tritonclient", ">=2.41", "")),
        ('torch>=2.4; extra == "build"', Requirement("torch", ">=2.4", "build")),
        ("tensorrt-llm<1.3,>=0.17; extra == 'gpu'", Requirement("tensorrt-llm", "<1.3,>=0.17", "gpu")),
        ('types-pyyaml ; extra == "dev"', Requirement("types-pyyaml", "", "dev")),
    ],
)
def test_the_forms_that_metadata_use_are_read(line: str, parsed: Requirement) -> None:
    assert parse(line) == parsed


def test_a_form_that_we_do_not_use_is_refused() -> None:
    with pytest.raises(TrtbuildError, match="cannot read the requirement"):
        parse("x @ file:///x.whl ; python_version < '3.9'")


def test_every_requirement_of_ours_is_read() -> None:
    lines = requires("trtbuild") or []
    assert len(own_requirements("build", "dev", "gpu", "triton")) == len(lines) > 10
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = {re.sub(r"[-_.]+", "-", requirement.name).lower() for requirement in own_requirements("build")}
    assert {"torch", "transformers", "tokenizers", "gguf", "accelerate", "tritonclient"} <= names
    assert all(name in pyproject.lower().replace("_", "-") for name in names)


@pytest.mark.parametrize(
    ("bounds", "found", "fits"),
    [
        (">=2.4", "2.13.0+cpu", True),
        (">=2.4", "2.3.1", False),
        (">=5.14", "5.9.0", False),
        (">=0.17,<1.3", "1.2.1", True),
        (">=0.17,<1.3", "1.3.0rc1", False),
        ("==2.0", "2", True),
        (">=1.0", "1", True),
        ("", "0.0.1", True),
    ],
)
def test_versions_are_compared_by_their_numbers(bounds: str, found: str, fits: bool) -> None:
    assert Requirement("x", bounds, "").accepts(found) is fits


@given(VERSIONS, VERSIONS)
def test_a_lower_bound_orders_versions_as_numbers(low: list[int], found: list[int]) -> None:
    width = max(len(low), len(found))
    padded = [numbers + [0] * (width - len(numbers)) for numbers in (low, found)]
    requirement = Requirement("x", ">=" + ".".join(map(str, low)), "")
    assert requirement.accepts(".".join(map(str, found))) is (padded[1] >= padded[0])
