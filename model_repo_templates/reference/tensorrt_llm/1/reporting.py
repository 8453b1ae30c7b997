"""Export the engine's statistics as Prometheus metrics of the server."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils

from trtbuild.reference.metrics import FAMILIES, LENGTH_BUCKETS, LENGTH_FAMILIES, read
from trtbuild.reference.sequence import Sequence
from trtbuild.reference.stats import EngineStats


class Reporting:
    """The metric families of one model.

    Two threads that touch one metric at once crash the server, so all updates are made under one lock.

    Args:
        model: name of the model, a label of every metric.
        version: its version, likewise.
    """

    def __init__(self, model: str, version: str) -> None:
        labels = {"model": model, "version": version}
        self._lock = threading.Lock()
        self._families: list[Any] = []  # a family must outlive its metrics
        self._gauges: dict[tuple[str, str], Any] = {}
        for family in FAMILIES:
            gauges = self._family(family.name, family.description, pb_utils.MetricFamily.GAUGE)
            for value in family.readings:
                self._gauges[family.name, value] = gauges.Metric(labels={**labels, family.label: value})
        self._lengths = [
            self._family(name, description, pb_utils.MetricFamily.HISTOGRAM).Metric(
                labels={**labels, "response_metric_type": value}, buckets=list(LENGTH_BUCKETS)
            )
            for name, description, value in LENGTH_FAMILIES
        ]
        self._shown: dict[tuple[str, str], float] = {}

    def update(self, stats: EngineStats) -> None:
        """Set the gauges whose values have changed."""
        with self._lock:
            for key, value in read(stats).items():
                if self._shown.get(key) != value:
                    self._gauges[key].set(value)
                    self._shown[key] = value

    def observe(self, sequence: Sequence) -> None:
        """Count the lengths of a finished request."""
        with self._lock:
            for metric, length in zip(self._lengths, (len(sequence.prompt), sequence.num_released), strict=True):
                metric.observe(length)

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family
