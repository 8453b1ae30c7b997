"""The support table of the documentation is the one that the registries make."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from trtbuild.arch.registry import ARCHITECTURES
from trtbuild.arch.sized import SIZED_ONLY
from trtbuild.names import TARGETS

GPU_PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
Cli = Callable[..., tuple[int, str, str]]


def test_the_page_holds_the_table(cli: Cli) -> None:
    code, out, err = cli("architectures", "--markdown")
    assert code == 0, err
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{out}"), "run: trtbuild architectures --markdown"


def test_every_registered_architecture_has_a_row(cli: Cli) -> None:
    code, out, _ = cli("architectures", "--json")
    assert code == 0
    rows = {row["architecture"]: row for row in json.loads(out)}
    assert list(rows) == [*ARCHITECTURES, *SIZED_ONLY]
    assert rows["FalconForCausalLM"]["batching"] == "static"
    assert rows["LlamaForCausalLM"]["batching"] == "continuous"
    assert list(rows["LlamaForCausalLM"]["schemes"]) == list(TARGETS)
    assert "int8_weight_only" not in rows["LlamaForCausalLM"]["schemes"]["pytorch"]
    assert not any(rows["DeepseekV3ForCausalLM"]["schemes"].values())


def test_the_page_on_gpus_holds_the_table(cli: Cli) -> None:
    code, out, err = cli("architectures", "--gpus", "--markdown")
    assert code == 0, err
    assert GPU_PAGE.read_text(encoding="utf-8").endswith(f"\n\n{out}"), "run: trtbuild architectures --gpus --markdown"


def test_the_table_of_gpus_is_printed_as_text_and_as_json(cli: Cli) -> None:
    code, out, _ = cli("architectures", "--gpus", "--json")
    assert code == 0
    table = json.loads(out)
    assert table["gpus"]["h100"] == 90
    cell = {"kind": "quantization", "name": "nvfp4", "target": "tensorrt", "sm": 90, "state": "impossible"}
    assert any(cell.items() <= each.items() and each["why"] for each in table["formats"])
    code, out, _ = cli("architectures", "--gpus")
    assert code == 0
    assert "sm121: gb10, dgx_spark" in out
