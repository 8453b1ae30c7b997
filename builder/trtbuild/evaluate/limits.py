"""The gate: which metrics are compared with which limits. A metric that is no number fails, whether it has a limit or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtbuild.errors import CheckFailed
from trtbuild.evaluate.report import Evaluation
from trtbuild.spec import Accuracy

Kind = Literal["at most", "at least", "within a factor of"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that can have a limit.

    Attributes:
        field: of `spec.Accuracy`, its limit.
        name: for people.
        kind: which side is allowed.
        value: takes it out of an evaluation.
    """

    field: str
    name: str
    kind: Kind
    value: Callable[[Evaluation], float]


METRICS = (
    Metric(
        "max_perplexity_ratio", "perplexity ratio", "within a factor of", lambda found: found.quality.perplexity_ratio
    ),
    Metric("max_mean_kl", "mean KL divergence", "at most", lambda found: found.quality.mean_kl),
    Metric("max_p99_kl", "99th percentile of KL divergence", "at most", lambda found: found.quality.p99_kl),
    Metric("min_top1_agreement", "top-1 agreement", "at least", lambda found: found.quality.top1_agreement),
    Metric("max_layer_error", "largest error of a layer", "at most", lambda found: found.culprit.own),
)


@dataclass(frozen=True, slots=True)
class Check:
    """A metric and its limit.

    Attributes:
        field: of `spec.Accuracy`.
        name: of the metric, for people.
        value: what was found.
        kind: which side of the limit is allowed.
        limit: None when only a finite number is asked for.
    """

    field: str
    name: str
    value: float
    kind: Kind
    limit: float | None

    @property
    def passed(self) -> bool:
        """Whether the value is a finite number within its limit."""
        if not math.isfinite(self.value):
            return False
        if self.limit is None:
            return True
        if self.kind == "within a factor of":  # damage can lower a perplexity, too
            return 1 / self.limit <= self.value <= self.limit
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        allowed = "a finite number" if self.limit is None else f"{self.kind} {self.limit:g}"
        return f"{self.name} is {self.value:.6g}, allowed is {allowed}"


def has_limits(accuracy: Accuracy) -> bool:
    """Say whether any metric has a limit."""
    return any(getattr(accuracy, metric.field) is not None for metric in METRICS)


def check(evaluation: Evaluation, accuracy: Accuracy) -> tuple[Check, ...]:
    """Return one check per metric."""
    return tuple(
        Check(metric.field, metric.name, metric.value(evaluation), metric.kind, getattr(accuracy, metric.field))
        for metric in METRICS
    )


def explain(evaluation: Evaluation, checks: tuple[Check, ...]) -> str:
    """Return what failed, both models' numbers and the layer to look at, as one line; empty when all passed."""
    failed = [str(each) for each in checks if not each.passed]
    if not failed:
        return ""
    quality, worst = evaluation.quality, evaluation.culprit
    linear = f" (look at {worst.worst_linear})" if worst.worst_linear else ""
    return (
        f"{'; '.join(failed)}. Perplexity is {quality.quantized_perplexity:.6g}, the source's {quality.source_perplexity:.6g}. "
        f"Largest error of its own: {worst.name}{linear}, {worst.own:.3g}"
    )


def require(evaluation: Evaluation, checks: tuple[Check, ...], *, what: str, page: Path) -> None:
    """Refuse an artifact that does not pass.

    Args:
        evaluation: of it.
        checks: of the evaluation.
        what: the artifact, for the message.
        page: the report, for the message.

    Raises:
        CheckFailed: a check failed.
    """
    if reason := explain(evaluation, checks):
        raise CheckFailed(
            f"{what} does not pass the accuracy gate: {reason}",
            hint=f"nothing was built; the report is {page}. Use more calibration data or another scheme; with other limits in the section "
            "accuracy the conversion is not repeated",
        )
