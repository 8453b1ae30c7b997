"""The rendered models declare exactly the tensors of the upstream ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo.public_tensors import PUBLIC, Tensor, public_of

from trtbuild.repo.context import RepoContext
from trtbuild.repo.proto import datatype_name, parse_config
from trtbuild.repo.render import render
from trtbuild.repo.signatures import CHECKED
from trtbuild.trtllm.versions import find_release


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


#: One of each line that serves engines.
LINES = ("0.17", "0.18", "0.19", "0.20", "0.21", "1.0", "1.1", "1.2")


@pytest.mark.parametrize("target", ["reference", "tensorrt"])
@pytest.mark.parametrize("line", LINES)
def test_every_model_has_the_public_tensors_of_its_release(
    context: Callable[..., RepoContext], engine: Path, tmp_path: Path, line: str, target: str
) -> None:
    (engine / "config.json").write_text((engine / "config.json").read_text().replace("1.2.0", str(find_release(line))))
    repository = render(context(target=target, tensorrt_llm=line), tmp_path / "out").path
    for model, (inputs, outputs) in public_of(line).items():
        text = (repository / model / "config.pbtxt").read_text(encoding="utf-8")
        assert not any(mark in text for mark in ("${", "{{", "{%")), model
        config = parse_config(text)
        if target == "tensorrt":  # the engine's logits are float16
            inputs, outputs = _with_half_logits(inputs), _with_half_logits(outputs)
        if model == "preprocessing":  # it gets the numbers of a request too, to check them
            inputs = inputs | {
                name: tensor for name, tensor in public_of(line)["ensemble"][0].items() if name in CHECKED
            }
        assert declared(config.input) == inputs, model
        assert declared(config.output) == outputs, model


@pytest.mark.parametrize("line", LINES)
def test_an_ensemble_hands_on_every_tensor_it_has(
    context: Callable[..., RepoContext], tmp_path: Path, line: str
) -> None:
    repository = render(context(tensorrt_llm=line), tmp_path / "out").path
    config = parse_config((repository / "ensemble" / "config.pbtxt").read_text(encoding="utf-8"))
    steps = config.ensemble_scheduling.step
    assert {name for step in steps for name in step.input_map.values() if not name.startswith("_")} == {
        tensor.name for tensor in config.input
    }
    assert {name for step in steps for name in step.output_map.values() if not name.startswith("_")} == {
        tensor.name for tensor in config.output
    }


def test_the_tables_of_neighbouring_releases_differ_where_the_specification_says() -> None:
    distinct = {line: str(public_of(line)) for line in LINES}
    assert len(set(distinct.values())) == 4
    assert distinct["0.17"] == distinct["0.18"]
    assert len({distinct[line] for line in ("0.21", "1.0", "1.1", "1.2")}) == 1
    assert public_of("1.2") == PUBLIC


def _with_half_logits(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: (("FP16", *tensor[1:]) if name.endswith("_logits") and tensor[0] == "FP32" else tensor)
        for name, tensor in table.items()
    }
