"""docs/reference_target.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.reference.test_core_model import PARAMETERS

from trtbuild.reference.metrics import FAMILIES, LENGTH_FAMILIES
from trtbuild.reference.tensors import UNSUPPORTED

PAGE = (Path(__file__).parents[3] / "docs" / "reference_target.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its header."""
    section = re.split(r"\n#+ ", PAGE.split(f"# {heading}\n", 1)[1])[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


def test_every_unsupported_input_is_listed_with_its_neutral_values() -> None:
    documented = dict(table("Inputs that are not implemented"))
    assert documented == {name: ", ".join(map(str, neutral)) for name, neutral in UNSUPPORTED.items()}


def test_every_parameter_is_listed() -> None:
    assert {row[0] for row in table("Parameters of the model")} == {*PARAMETERS, "enable_kv_cache_reuse"}


def test_every_metric_family_is_listed_with_its_values() -> None:
    gauges = {family.name: (family.label, ", ".join(family.readings)) for family in FAMILIES}
    histograms = {f"{name} (histogram)": ("response_metric_type", value) for name, _, value in LENGTH_FAMILIES}
    assert {name: (label, values) for name, label, values in table("Metrics")} == {**gauges, **histograms}
