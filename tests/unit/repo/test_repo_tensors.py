"""The rendered models declare exactly the tensors of the upstream ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo.public_tensors import PUBLIC, Tensor

from trtbuild.repo.context import RepoContext
from trtbuild.repo.proto import datatype_name, parse_config
from trtbuild.repo.render import render


def declared(tensors: Any) -> dict[str, Tensor]:
    """Return declarations in the form of the table; a name that comes twice fails."""
    table: dict[str, Tensor] = {}
    for tensor in tensors:
        assert tensor.name not in table, tensor.name
        flags = {"r"} if tensor.HasField("reshape") and not tensor.reshape.shape else set()
        flags |= {"o"} if getattr(tensor, "optional", False) else set()
        flags |= {"g"} if getattr(tensor, "allow_ragged_batch", False) else set()
        table[tensor.name] = (
            datatype_name(tensor.data_type).removeprefix("TYPE_"),
            tuple(tensor.dims),
            frozenset(flags),
        )
    return table


@pytest.mark.parametrize("target", ["reference", "tensorrt"])
@pytest.mark.parametrize("model", PUBLIC)
def test_a_model_has_the_public_tensors_of_upstream(
    context: Callable[..., RepoContext], templates: Path, tmp_path: Path, model: str, target: str
) -> None:
    repository = render(context(target=target), tmp_path / "out", templates=templates).path
    config = parse_config((repository / model / "config.pbtxt").read_text(encoding="utf-8"))
    inputs, outputs = PUBLIC[model]
    if target == "tensorrt":  # the engine's logits are float16
        inputs, outputs = _with_half_logits(inputs), _with_half_logits(outputs)
    assert declared(config.input) == inputs
    assert declared(config.output) == outputs


def _with_half_logits(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: (("FP16", *tensor[1:]) if name.endswith("_logits") and tensor[0] == "FP32" else tensor)
        for name, tensor in table.items()
    }
