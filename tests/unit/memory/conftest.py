"""Plans of models of published sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import write_deployment, write_model

from trtbuild import spec
from trtbuild.convert.run import plan_deployment
from trtbuild.memory.estimate import Estimate, estimate


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of a model of `shapes.CONFIGS`, written once."""
    root = tmp_path_factory.mktemp("models")

    def find(name: str) -> Path:
        folder = root / name
        return folder if folder.exists() else write_model(folder, name)

    return find


@pytest.fixture
def estimated(model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Estimate]:
    """Return a function from a model's name and sections of trtbuild.yaml to its estimate."""

    def make(
        name: str, *, lengths: tuple[int | None, int | None] = (None, None), copies: int = 1, **sections: Any
    ) -> Estimate:
        deployment = spec.load(write_deployment(tmp_path / "trtbuild.yaml", model(name), **sections))
        plan = plan_deployment(deployment)
        return estimate(deployment, plan, input_len=lengths[0], output_len=lengths[1], copies=copies)

    return make
