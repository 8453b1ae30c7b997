"""The target `reference`: the rank files are what the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.targets.base import Job


class Reference:
    """transformers and torch read the checkpoint as it is."""

    def check(self, job: Job) -> list[str]:
        """Return no notes: what the conversion plan takes, the reference runs."""
        return []

    def preflight(self, job: Job, folder: Path) -> None:
        """Look for nothing: building needs no tool."""

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Do nothing."""
        return {}
