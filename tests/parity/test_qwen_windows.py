"""Qwen's sliding windows: refused exactly where transformers gives a layer one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.parity.test_config_defaults import FAMILIES, read
from transformers import CONFIG_MAPPING

from trtbuild.errors import TrtbuildError

LAYERS = 6
FULL = ["full_attention"] * LAYERS
CASES = [
    {"use_sliding_window": is_on, **window, **limit, **kinds}
    for is_on, window, limit, kinds in product(
        (True, False),
        ({}, {"sliding_window": None}, {"sliding_window": 16}),
        ({}, {"max_window_layers": 0}, {"max_window_layers": 5}, {"max_window_layers": 6}, {"max_window_layers": 28}),
        ({}, {"layer_types": None}, {"layer_types": FULL}),
    )
]


def has_window(model_type: str, config: dict[str, Any]) -> bool:
    theirs = CONFIG_MAPPING[model_type].from_dict(dict(config))
    if model_type == "qwen3_moe":
        return theirs.sliding_window is not None
    return theirs.sliding_window is not None and "sliding_attention" in theirs.layer_types


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
def test_a_model_is_refused_where_transformers_gives_a_layer_a_window(model_type: str) -> None:
    seen = set()
    for changes in CASES:
        config = {**FAMILIES[model_type], "num_hidden_layers": LAYERS, "model_type": model_type, **changes}
        expected = has_window(model_type, config)
        try:
            read(config)
            found = False
        except TrtbuildError as error:
            assert "layers have a sliding window" in error.message
            assert "use_sliding_window" in error.hint
            found = True
        assert found == expected, changes
        seen.add(found)
    assert seen == {True, False}


def test_layers_that_are_named_are_counted() -> None:
    kinds = [*FULL[:-1], "sliding_attention"]
    config = {**FAMILIES["qwen2"], "model_type": "qwen2", "num_hidden_layers": LAYERS, "layer_types": kinds}
    with pytest.raises(TrtbuildError, match="1 of 6 layers have a sliding window"):
        read(config)
