"""How much is generated at once. One event loop; nothing here waits."""

from __future__ import annotations

from types import TracebackType

from trtbuild.gateway.errors import refused, too_many, unavailable


class Gate:
    """Counts answers in flight.

    Args:
        most: answers at once.

    Attributes:
        in_flight: answers at this moment.
        is_draining: no new request is let in.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_flight = 0
        self.is_draining = False

    def enter(self) -> Slot:
        """Return the room for one answer.

        Raises:
            ApiError: there is none (429), or the gateway is stopping (503).
        """
        if self.is_draining:
            raise unavailable("the gateway is stopping", code="draining")
        return Slot(self)


class Slot:
    """Room of one request, given back at the end of the block."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._taken = 0
        self._take(1)

    def widen(self, answers: int) -> None:
        """Take room for all answers of the request instead of one.

        Raises:
            ApiError: there is not enough room now (429), or ever (400).
        """
        if answers > self._gate.most:
            raise refused(f"{answers} answers are asked for, at most {self._gate.most} can be made at once", param="n")
        self._take(answers - self._taken)

    def _take(self, answers: int) -> None:
        gate = self._gate
        if gate.in_flight + answers > gate.most:
            raise too_many(f"{gate.in_flight} answers are being made, at most {gate.most} at once: try again later")
        gate.in_flight += answers
        self._taken += answers

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.in_flight -= self._taken
        self._taken = 0
