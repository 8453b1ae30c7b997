"""The report as a page: well-formed, self-contained, every layer in it, and nothing in it that was not escaped."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.evaluate.reports import GOOD, evaluation

from trtbuild.evaluate.chart import accumulated_plot, own_error_plot, scale
from trtbuild.evaluate.limits import check
from trtbuild.evaluate.page import render
from trtbuild.spec import Accuracy


@given(largest=st.floats(1e-12, 1e12))
def test_axes_end_at_or_above_the_largest_value_on_round_steps(largest: float) -> None:
    top, ticks = scale(largest)
    assert largest * (1 - 1e-6) <= top <= 2 * largest
    assert ticks[0] == 0.0
    assert ticks[-1] == top
    assert 3 <= len(ticks) <= 7


@pytest.mark.parametrize("largest", [0.0, -1.0, math.nan, math.inf])
def test_an_axis_without_values_is_still_an_axis(largest: float) -> None:
    assert scale(largest) == (1.0, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("own", [(0.1,), (0.02, 0.3, 0.04), (0.0, 0.0), (math.nan, 0.1), tuple([0.1] * 126)])
def test_plots_are_well_formed_and_hold_every_layer(own: tuple[float, ...]) -> None:
    found = evaluation(own=own)
    bars = ElementTree.fromstring(own_error_plot(found.layers, culprit=found.culprit, limit=0.2))
    drawn = bars.findall("rect")
    assert len(drawn) == len(own)
    assert [position for position, bar in enumerate(drawn) if "culprit" in bar.attrib["class"]] == [found.culprit.index]
    for bar in drawn:
        assert 0 <= float(bar.attrib["y"]) <= float(bar.attrib["y"]) + float(bar.attrib["height"]) <= 250
    assert len([text for text in bars.findall("text") if text.attrib.get("text-anchor") == "middle"]) <= 18
    line = ElementTree.fromstring(accumulated_plot(found.layers))
    assert len(line.findall("circle")) == sum(map(math.isfinite, own))


def test_the_page_needs_nothing_from_elsewhere_and_escapes_what_it_shows() -> None:
    accuracy = Accuracy(max_layer_error=0.1)
    found = replace(evaluation(replace(GOOD, mean_kl=math.nan)), folder='a"><script>alert(1)</script>')
    page = render(found, check(found, accuracy))
    assert "<script" not in page
    assert not re.search(r"https?://|src=|@import", page)
    assert "prefers-color-scheme: dark" in page
    assert ">failed<" in page
    assert "not a number" in page
    assert "limit 0.1" in page
    assert all(f"model.layers.{index}" in page for index in range(3))
    ElementTree.fromstring(page.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', "").replace(
        '<meta name="color-scheme" content="light dark">', "").replace("<br>", "").replace(" class=number", ""))  # fmt: skip
