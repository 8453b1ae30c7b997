"""Requests without a connection, for tests that give them bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.table import RecordTable


class Asked:
    """A request without a connection, and its record."""

    def __init__(self, kind: Callable[..., Exchange]) -> None:
        self.table = RecordTable()
        self.exchange: Any = kind(Job(0, 0, 0, ("x",), 8), 0, lambda each: None, self._late)
        self.exchange.sent_ns = 0

    def _late(self, exchange: Exchange, mark: Mark) -> None:
        exchange.late_mark(self.table, mark)

    def record(self) -> tuple[Outcome, str, dict[str, int]]:
        """Return (outcome, error, row)."""
        self.exchange.record(self.table)
        row = self.table.row(0)
        return Outcome(row["outcome"]), self.table.error_of(0) or "", row
