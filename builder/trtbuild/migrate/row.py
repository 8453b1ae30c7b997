"""One line of what a migration did with a setting."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: taken: it is in the new trtbuild.yaml; dropped: it has no equivalent; decide: something must be chosen or looked at.
Verdict = Literal["taken", "dropped", "decide"]


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one setting.

    Attributes:
        verdict: see `Verdict`.
        old: where it was, e.g. "tensorrt_llm: max_beam_width" or "engine: build_config.max_seq_len".
        value: what it was.
        new: the key of trtbuild.yaml that it became; empty when there is none.
        new_value: the value there.
        note: what to do about it.
    """

    verdict: Verdict
    old: str
    value: Any
    new: str = ""
    new_value: Any = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)
