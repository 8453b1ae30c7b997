"""The packages that doctor asks for are those of pyproject.toml."""

from __future__ import annotations

from importlib.metadata import requires

import pytest

from trtbuild.requirements import Requirement, own_requirements


def test_the_base_installation_and_the_extras_named_are_listed() -> None:
    base = {requirement.name for requirement in own_requirements()}
    assert {"click", "numpy", "msgspec", "tritonclient"} <= base
    assert "torch" not in base
    build = own_requirements("build")
    assert {"torch", "transformers"} <= {requirement.name for requirement in build}
    assert {requirement.extra for requirement in build} == {"", "build"}
    assert len(build) <= len(requires("trtbuild") or [])


@pytest.mark.parametrize(
    ("bounds", "version", "fits"),
    [
        (">=2.4", "2.13.0+cpu", True),
        (">=2.4", "2.3.9", False),
        ("<2", "1.26.4", True),
        ("<2", "2.4.6", False),
        ("", "0.1", True),
        (">=5.14", "5.24.0rc1", True),
    ],
)
def test_versions_are_compared_by_number(bounds: str, version: str, fits: bool) -> None:
    assert Requirement("x", bounds, "").accepts(version) is fits


def test_what_is_not_installed_has_no_version() -> None:
    assert Requirement("a-package-nobody-has", "", "").installed() is None
    assert Requirement("click", "", "").installed()
