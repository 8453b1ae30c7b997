"""What config.json leaves open is what transformers' config class of the family implies, or the model is refused; for every key of every family."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from trtbuild.arch.registry import MODEL_TYPES, resolve
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError

SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "max_position_embeddings": 256,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
#: Model type -> sizes of a tiny model; everything else is what the class implies.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen2_moe": {**GROUPED, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {**GROUPED, **EXPERTS, "num_local_experts": 4},
    "gemma": {**GROUPED, "head_dim": 16},
    "gemma2": {**GROUPED, "head_dim": 16},
    "gemma3_text": {**GROUPED, "head_dim": 16},
    "phi3": GROUPED,
    "gpt2": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": SIZES,
    "falcon": {**{key: value for key, value in SIZES.items() if key != "intermediate_size"}, "num_kv_heads": 2},
}


def saved(model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json that transformers saves for a config.json: it states everything."""
    whole: dict[str, Any] = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(config)).to_dict()
    return {**copy.deepcopy(whole), "architectures": [MODEL_TYPES[model_type]]}


def read(config: dict[str, Any]) -> tuple[ModelDims, dict[str, Any]]:
    architecture, arch = resolve(config, where="config.json")
    dims = arch.read_dims(config, architecture, "config.json")
    return dims, arch.config_fields(dims, config)


def cases() -> Iterator[tuple[str, str]]:
    for model_type, sizes in FAMILIES.items():
        for key in saved(model_type, {**sizes, "model_type": model_type}):
            if key not in ("model_type", "architectures"):
                yield model_type, key


@pytest.mark.parametrize(("model_type", "key"), list(cases()))
def test_a_key_that_is_left_out_is_what_transformers_implies_or_is_asked_for(model_type: str, key: str) -> None:
    config = saved(model_type, {**FAMILIES[model_type], "model_type": model_type})
    del config[key]
    try:
        found = read(config)
    except TrtbuildError as error:
        assert key in FAMILIES[model_type], "only sizes may be asked for"
        assert "is missing" in error.message
        return
    if key == "intermediate_size" and found[0].num_experts:
        return  # the width of dense layers, of which the model has none
    assert found == read(saved(model_type, config))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_sizes_alone_are_read_as_transformers_reads_them(model_type: str) -> None:
    config = {**FAMILIES[model_type], "model_type": model_type}
    assert read(config) == read(saved(model_type, config))
