"""One line of doctor's report. Knows nothing of what is looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]
#: Parts of the report, in its order: what the demo needs, what an artifact needs, and what is there.
Section = Literal["demo", "artifact", "gpu", "software", "system"]
TITLES: dict[Section, str] = {
    "demo": "What `trtbuild demo` needs",
    "artifact": "Whether it can run here",
    "gpu": "GPUs",
    "software": "TensorRT-LLM and Triton",
    "system": "Limits of this system",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        status: "ok", "warn" (works, but read this) or "fail" (the demo, or the artifact asked about, will not run).
        detail: what was found.
        remedy: what to do about it; empty when there is nothing to do.
        section: the part of the report it belongs to.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    section: Section = "demo"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)
