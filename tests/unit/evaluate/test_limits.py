"""The gate fails closed: beyond a limit, or no number at all; messages name both numbers, the limit and the layer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.evaluate.reports import GOOD, evaluation

from trtbuild.errors import CheckFailed, UsageError
from trtbuild.evaluate.limits import METRICS, check, explain, has_limits, require
from trtbuild.evaluate.report import LayerError, to_json
from trtbuild.spec import Accuracy, parse


def test_without_limits_finite_metrics_pass() -> None:
    checks = check(evaluation(), Accuracy())
    assert not has_limits(Accuracy())
    assert all(each.passed for each in checks)
    assert explain(evaluation(), checks) == ""
    require(evaluation(), checks, what="ckpt", page=Path("page.html"))


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("max_perplexity_ratio", 1.0275, 1.0274),
        ("max_mean_kl", 0.01, 0.0099),
        ("max_p99_kl", 0.1, 0.09),
        ("min_top1_agreement", 0.95, 0.951),
        ("max_layer_error", 0.3, 0.29),
    ],
)
def test_each_limit_allows_its_own_value_and_nothing_beyond(field: str, allowed: float, refused: float) -> None:
    assert field in {metric.field for metric in METRICS}
    assert has_limits(Accuracy(**{field: allowed}))
    assert all(each.passed for each in check(evaluation(), Accuracy(**{field: allowed})))
    checks = check(evaluation(), Accuracy(**{field: refused}))
    assert [each.field for each in checks if not each.passed] == [field]
    with pytest.raises(CheckFailed) as raised:
        require(evaluation(), checks, what="ckpt", page=Path("page.html"))
    assert raised.value.exit_code == 3
    message = raised.value.message
    assert f"{refused:g}" in message
    assert "Perplexity is 18.7, the source's 18.2" in message
    assert "model.layers.1 (look at v_proj)" in message


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["perplexity_ratio", "mean_kl", "p99_kl", "top1_agreement"])
def test_a_metric_that_is_no_number_fails_with_and_without_a_limit(name: str, value: float) -> None:
    broken = evaluation(replace(GOOD, **{name: value}))
    for accuracy in (Accuracy(), Accuracy(max_perplexity_ratio=100.0, max_mean_kl=100.0, max_p99_kl=100.0)):
        assert not all(each.passed for each in check(broken, accuracy))
    assert "allowed is a finite number" in explain(broken, check(broken, Accuracy()))


def test_a_layer_whose_error_is_no_number_is_the_culprit() -> None:
    broken = evaluation(own=(0.1, math.nan, 9.0))
    assert broken.culprit.name == "model.layers.1"
    assert [layer.index for layer in broken.worst] == [1, 2, 0]
    assert not all(each.passed for each in check(broken, Accuracy()))
    report = json.loads(json.dumps(to_json(broken, check(broken, Accuracy())), allow_nan=False))
    assert report["passed"] is False
    assert report["layers"][1]["own"] is None
    assert report["culprit"] == "model.layers.1"


def test_the_linear_to_look_at_is_the_first_of_the_bad_ones() -> None:
    layer = LayerError(0, "model.layers.0", 1.0, 1.0, {"q_proj": 0.1, "v_proj": 0.8, "o_proj": 1.0, "down_proj": 0.9})
    assert layer.worst_linear == "v_proj"
    assert replace(layer, linears={}).worst_linear is None
    assert replace(layer, linears={"q_proj": 0.0}).worst_linear is None
    assert replace(layer, linears={"q_proj": 1.0, "k_proj": math.nan}).worst_linear == "k_proj"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"max_perplexity_ratio": 0.9}, "accuracy.max_perplexity_ratio"),
        ({"max_mean_kl": math.inf}, "accuracy.max_mean_kl"),
        ({"max_layer_error": math.nan}, "accuracy.max_layer_error"),
        ({"min_top1_agreement": math.nan}, "accuracy.min_top1_agreement"),
        ({"min_top1_agreement": 95}, "accuracy.min_top1_agreement"),
        ({"max_ppl_ratio": 1.1}, "max_perplexity_ratio"),
    ],
)
def test_limits_that_check_nothing_are_refused(section: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse({"model": {"path": "m"}, "accuracy": section}, origin="trtbuild.yaml")


@pytest.mark.parametrize(("ratio", "passes"), [(1.04, True), (0.97, True), (1.06, False), (0.23, False)])
def test_a_perplexity_may_be_too_low_as_well(ratio: float, passes: bool) -> None:
    found = replace(evaluation(), quality=replace(GOOD, perplexity_ratio=ratio))
    first = check(found, Accuracy(max_perplexity_ratio=1.05))[0]
    assert first.passed == passes
    assert "within a factor of 1.05" in str(first)


def test_without_limits_nothing_is_judged() -> None:
    found = evaluation()
    assert to_json(found, check(found, Accuracy()))["passed"] is None
    assert to_json(found, check(found, Accuracy(max_mean_kl=1.0)))["passed"] is True
