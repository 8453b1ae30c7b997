"""Reading config.json: every spelling of the same fact gives the same dims, and wrong values are named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.conftest import T0

from trtbuild.arch.registry import ARCHITECTURES, MODEL_TYPES, resolve
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def dims(*drop: str, **changes: Any) -> ModelDims:
    config = {key: value for key, value in {**T0, **changes}.items() if key not in drop}
    architecture, arch = resolve(config, where="config.json")
    return arch.read_dims(config, architecture, "config.json")


@pytest.mark.parametrize(
    ("named", "hint"),
    [("LlamaForCausalLM", r'write architectures as \["LlamaForCausalLM"\]'), ({}, "one name in a list"), ([1], "one name in a list")],
)  # fmt: skip
def test_architectures_must_be_a_list(named: Any, hint: str) -> None:
    with pytest.raises(TrtbuildError, match="is not a list of names") as caught:
        dims(architectures=named)
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("named", [["FooForCausalLM"], ["LlamaForCausalLM", "MistralForCausalLM"]])
def test_unknown_and_ambiguous_architectures_are_refused_by_name(named: Any) -> None:
    with pytest.raises(TrtbuildError, match="FooForCausalLM|more than one") as caught:
        dims(architectures=named, model_type="foo")
    assert caught.value.hint


@pytest.mark.parametrize("named", [[], None])
def test_a_missing_architecture_is_taken_from_a_known_model_type(named: Any) -> None:
    assert dims(architectures=named).architecture == "LlamaForCausalLM"
    with pytest.raises(TrtbuildError, match="model_type = 'foo'") as caught:
        dims(architectures=named, model_type="foo")
    assert "LlamaForCausalLM" in caught.value.hint


def test_every_model_type_leads_to_a_registered_architecture() -> None:
    assert set(MODEL_TYPES.values()) <= set(ARCHITECTURES)
    for name in ARCHITECTURES:
        _, arch = resolve({"architectures": [name]}, where="x")
        assert MODEL_TYPES[arch.model_type] == name


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "64"), ("num_hidden_layers", 0), ("num_attention_heads", None), ("vocab_size", 1.5), ("intermediate_size", True),
     ("rms_norm_eps", "small"), ("rms_norm_eps", 0), ("tie_word_embeddings", "yes"), ("hidden_act", 7), ("rope_theta", -1),
     ("rope_theta", "big"), ("max_position_embeddings", -5), ("attention_bias", 1)],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_named_with_its_value(key: str, value: Any) -> None:
    with pytest.raises(TrtbuildError, match=key):
        dims(**{key: value})


def test_head_dim_is_taken_when_given_and_derived_when_not() -> None:
    assert dims().head_dim == 16
    assert dims(head_dim=None).head_dim == 16
    assert dims(head_dim=32).q_size == 128


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 3200, "num_attention_heads": 32, "num_key_value_heads": 32}, {"head_dim": 10}, {"head_dim": 264}],
)
def test_head_sizes_without_a_kernel_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TrtbuildError, match="head size (100|10|264) is not supported"):
        dims(**changes)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TrtbuildError, match="head_dim is not given"):
        dims(num_attention_heads=3)
    with pytest.raises(TrtbuildError, match="not a multiple of num_key_value_heads=3"):
        dims(num_key_value_heads=3)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {"type" if key == "rope_type" else key: value for key, value in LLAMA3.items()}},
        {"rope_scaling": {**LLAMA3, "type": "llama3"}},
        {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}, "rope_theta": None},
    ],
)
def test_llama3_scaling_keeps_all_five_values_in_every_spelling(spelling: dict[str, Any]) -> None:
    rope = dims(**{"rope_theta": 500000.0, **spelling}).rope
    assert (rope.theta, rope.scaling) == (500000.0, LLAMA3)


def test_linear_scaling_is_kept() -> None:
    assert dims(rope_scaling={"type": "linear", "factor": 4.0}).rope.scaling == {"rope_type": "linear", "factor": 4.0}


def test_a_base_inside_the_rotary_block_is_taken() -> None:
    rope = dims("rope_theta", rope_parameters={"rope_type": "default", "rope_theta": 500000.0}).rope
    assert (rope.theta, rope.scaling) == (500000.0, None)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
            "per layer type",
        ),
        ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "'longrope' is not supported"),
        ({"rope_scaling": {"factor": 4.0}}, "no rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "needs factor > 0"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "needs low_freq_factor"),
        ({"rope_scaling": "linear"}, "not an object"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 2.0}},
            "attention_factor = 2.0 would be ignored",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "truncate = False would be ignored"),
    ],
)
def test_rotary_settings_that_would_be_lost_are_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(TrtbuildError, match=message) as caught:
        dims(**block)
    assert "(None" not in caught.value.hint


def test_what_yarn_may_be_instead_is_said_in_words() -> None:
    for key, value, hint in (
        ("attention_factor", 2.0, "remove attention_factor, or set it to 1.13863, which the factor implies"),
        ("truncate", False, "remove truncate, or set it to true"),
    ):
        with pytest.raises(TrtbuildError) as caught:
            dims(rope_scaling={"type": "yarn", "factor": 4.0, key: value})
        assert caught.value.hint == hint


def test_yarn_states_the_positions_that_transformers_implies() -> None:
    assert dims(rope_scaling={"type": "yarn", "factor": 4.0}).rope.scaling == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    implied = dims(rope_scaling={"type": "yarn", "factor": 4.0, "attention_factor": 1.1386294361119891}).rope.scaling
    assert implied is not None
    assert "attention_factor" not in implied


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_is_read_in_both_spellings(key: str) -> None:
    assert dims(**{"torch_dtype": None, key: "bfloat16"}).dtype == "bfloat16"


def test_a_newer_transformers_version_in_the_config_does_not_matter() -> None:
    assert dims(transformers_version="99.0") == dims()


def test_other_activations_are_refused() -> None:
    with pytest.raises(TrtbuildError, match="hidden_act = 'gelu'"):
        dims(hidden_act="gelu")


def test_sizes_that_a_family_does_not_imply_must_be_given() -> None:
    assert dims("num_key_value_heads", "max_position_embeddings").num_kv_heads == 4
    assert dims("num_key_value_heads", "max_position_embeddings").max_position_embeddings == 2048
    with pytest.raises(TrtbuildError, match="'num_key_value_heads' is missing"):
        dims("num_key_value_heads", architectures=["MistralForCausalLM"], model_type="mistral")
    qwen3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    assert dims(**qwen3).head_dim == 128, "as transformers reads it"
    assert dims(**qwen3, head_dim=16).head_dim == 16
