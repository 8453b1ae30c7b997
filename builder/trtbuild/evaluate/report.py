"""The result of an evaluation as plain values, and its JSON form. Imports neither torch nor numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtbuild.evaluate.limits import Check
    from trtbuild.evaluate.metrics import Quality


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far one decoder layer is off; relative RMS, see `metrics.RelativeError`.

    Attributes:
        index: number of the layer.
        name: Hugging Face module, "model.layers.0".
        own: error of the quantized layer's output when it is given the source's input, relative to what the source's layer adds to that
            input. Names the layer at fault.
        accumulated: error of its output in the quantized model, relative to the source's output: what all layers so far add up to.
        linears: name inside the layer -> error of the linear's output relative to the source's, when the layer is given the source's
            input; in the order in which they run, so that each includes the errors of those before it.
    """

    index: int
    name: str
    own: float
    accumulated: float
    linears: Mapping[str, float]

    @property
    def worst_linear(self) -> str | None:
        """The first linear to run whose error is at least half of the largest: later ones inherit. None when none has an error."""
        largest = max(map(badness, self.linears.values()), default=0.0)
        return next((name for name, error in self.linears.items() if badness(error) >= largest / 2 > 0), None)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A score of lm-eval.

    Attributes:
        task: name of the task or group.
        metric: its metric, with the filter if there is one.
        source: score of the source.
        quantized: score of the checkpoint.
        stderr: standard error of the latter, None where lm-eval gives none.
    """

    task: str
    metric: str
    source: float
    quantized: float
    stderr: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A quantized checkpoint against its source.

    Attributes:
        folder: the checkpoint.
        source: the model it was made from.
        quant_algo: TensorRT-LLM's name of the weight format, None for plain weights.
        kv_cache_quant_algo: of the KV cache format.
        samples: origin, number of rows, SHA-256 of the token ids.
        dtype: of the computation.
        quality: the metrics of the whole model.
        layers: one entry per decoder layer.
        seconds: time it took.
        peak_rss_bytes: of the process.
        tasks: scores of lm-eval, empty unless they were asked for.
    """

    folder: str
    source: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    samples: Mapping[str, Any]
    dtype: str
    quality: Quality
    layers: tuple[LayerError, ...]
    seconds: float
    peak_rss_bytes: int
    tasks: tuple[TaskScore, ...] = ()

    @property
    def culprit(self) -> LayerError:
        """The layer with the largest error of its own; one whose error is not a number comes before all others."""
        return max(self.layers, key=lambda layer: badness(layer.own))

    @property
    def worst(self) -> list[LayerError]:
        """All layers, the one with the largest error of its own first."""
        return sorted(self.layers, key=lambda layer: -badness(layer.own))


def badness(error: float) -> float:
    """Return a value to compare errors by: that which is not a number is worse than everything."""
    return error if math.isfinite(error) else math.inf


def to_json(evaluation: Evaluation, checks: tuple[Check, ...]) -> dict[str, Any]:
    """Return the report as JSON values; what is not a finite number is null."""
    data = asdict(evaluation)
    for layer, entry in zip(evaluation.layers, data["layers"], strict=True):
        entry["worst_linear"] = layer.worst_linear
    data["culprit"] = evaluation.culprit.name
    data["checks"] = [{**asdict(check), "passed": check.passed} for check in checks]
    judged = any(check.limit is not None for check in checks)
    failed = not all(check.passed for check in checks)
    data["passed"] = False if failed else True if judged else None  # without a limit nothing was judged
    plain: dict[str, Any] = _finite(data)
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
