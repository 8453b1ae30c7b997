"""Modules that adapter_config.json selects: as PEFT decides, and A and B of others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.lora.adapters import Q, pair, write_adapter

from trtbuild.errors import TrtbuildError
from trtbuild.lora import Adapter

LATE = "model.layers.3.self_attn.q_proj"
EXPERT = "model.layers.1.mlp.experts.0.up_proj"


@pytest.mark.parametrize(
    ("module", "config", "is_taken"),
    [
        (Q, {"target_modules": ["q_proj"]}, True),
        (Q, {"target_modules": [Q]}, True),
        (Q, {"target_modules": ["proj"]}, False),
        (Q, {"target_modules": ["k_proj", "v_proj"]}, False),
        (Q, {"target_modules": []}, True),
        (Q, {"target_modules": None}, True),
        (Q, {"target_modules": "all-linear"}, True),
        (Q, {"target_modules": r".*\.(q|k)_proj"}, True),
        (Q, {"target_modules": "q_proj"}, False),
        (Q, {"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, False),
        (Q, {"target_modules": ["q_proj"], "exclude_modules": r".*layers\.0\..*"}, False),
        (LATE, {"target_modules": ["q_proj"], "exclude_modules": r".*layers\.0\..*"}, True),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": [0, 1]}, False),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": [3]}, True),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": 3}, True),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": []}, True),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": "layers"}, True),
        (LATE, {"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": ["h", "blocks"]}, False),
        (LATE, {"target_modules": [LATE], "layers_to_transform": [0]}, True),
        (EXPERT, {"target_modules": ["up_proj"], "layers_to_transform": [1]}, True),
        (EXPERT, {"target_modules": ["up_proj"], "layers_to_transform": [0]}, False),
        ("lm_head", {"target_modules": ["lm_head"], "layers_to_transform": [0]}, True),
    ],
)
def test_modules_outside_of_the_selection_are_refused(
    tmp_path: Path, module: str, config: dict[str, Any], is_taken: bool
) -> None:
    folder = write_adapter(tmp_path, {module: pair(4, 8, 8, seed=0)}, **config)
    if is_taken:
        assert [found.name for found in Adapter.open(folder).modules] == [module]
        return
    with pytest.raises(
        TrtbuildError, match=f"1 of 1 modules that adapter_config.json does not select .*: {module}"
    ) as caught:
        Adapter.open(folder)
    assert "PEFT leaves them out" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target_modules", {"q": 1}, "target_modules={'q': 1} is neither"),
        ("target_modules", [1], "target_modules=\\[1\\] is neither"),
        ("target_modules", "(", "target_modules has '\\(', which is not a regular expression"),
        ("exclude_modules", 3, "exclude_modules=3 is neither"),
        ("layers_to_transform", ["0"], "layers_to_transform=\\['0'\\] is neither"),
        ("layers_to_transform", True, "layers_to_transform=True is neither"),
        ("layers_pattern", ["("], "layers_pattern has '\\(', which is not"),
    ],
)
def test_fields_of_another_type_are_refused(tmp_path: Path, field: str, value: Any, message: str) -> None:
    folder = write_adapter(tmp_path, {Q: pair(4, 8, 8, seed=0)}, **{field: value})
    with pytest.raises(TrtbuildError, match=message):
        Adapter.open(folder)
