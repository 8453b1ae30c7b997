"""A target that only counts, and a trtbuild.yaml of a tiny model for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild import building
from trtbuild.targets import base
from trtbuild.targets.base import Job

Make = Callable[..., Path]


class Recorder:
    """A target that writes one file, counts how often, and fails on demand."""

    runs = 0
    failure: BaseException | None = None

    def check(self, job: Job) -> list[str]:
        """Return a note that names the release."""
        return [f"for {job.release}"]

    def preflight(self, job: Job, folder: Path) -> None:
        """Need nothing."""

    def finish(self, job: Job, folder: Path, *, quiet: bool) -> dict[str, Any]:
        """Write engine/size."""
        if Recorder.failure is not None:
            raise Recorder.failure
        Recorder.runs += 1
        (folder / "engine").mkdir()
        (folder / "engine" / "size").write_text(str(job.limits.max_batch_size))
        return {"engine_bytes": 1}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """Let the target tensorrt be a recorder."""
    monkeypatch.setitem(base.TARGETS, "tensorrt", "tests.unit.build.conftest:Recorder")
    monkeypatch.setattr(Recorder, "runs", 0)
    monkeypatch.setattr(Recorder, "failure", None)
    monkeypatch.setattr(building, "load_target", lambda name: Recorder())
    return Recorder


@pytest.fixture
def settings(make_model: Make, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a trtbuild.yaml for the target tensorrt."""
    folder = make_model()

    def write(**sections: Any) -> Path:
        (tmp_path / "t.yaml").write_text(
            json.dumps({"model": {"path": str(folder)}, "target": "tensorrt", "parallel": {"tp_size": 2}, **sections})
        )
        return tmp_path / "t.yaml"

    return write
