"""Facts that config.json states under two names: read as transformers reads them, or refused where programs would differ."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from trtbuild.arch.registry import MODEL_TYPES, resolve
from trtbuild.convert.guesses import guesses
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LONG = {"short_factor": [1.1] * 8, "long_factor": [2.0] * 8}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
GEMMA3 = {"sliding_attention": PLAIN, "full_attention": {"rope_type": "default", "rope_theta": 1e6}}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}


def config_of(model_type: str, **changes: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 128, "max_position_embeddings": 256, "head_dim": 16,
    }  # fmt: skip
    experts = {"num_local_experts": 4} if model_type == "mixtral" else {}
    if model_type in ("gpt2", "gpt_neox", "phi3"):
        del sizes["head_dim"], sizes["num_key_value_heads"]
    if model_type == "gpt2":
        sizes = {**GPT2, "vocab_size": 128}
    config = {**sizes, **experts, "model_type": model_type, "architectures": [MODEL_TYPES[model_type]], **changes}
    return copy.deepcopy(config)


def read(model_type: str, **changes: Any) -> ModelDims:
    config = config_of(model_type, **changes)
    architecture, arch = resolve(config, where="config.json")
    return arch.read_dims(config, architecture, "config.json")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"rope_parameters": PLAIN, "rope_scaling": YARN}),
        ("llama", {"rope_parameters": PLAIN, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("llama", {"rope_parameters": PLAIN, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}),
        ("llama", {"rope_parameters": {**PLAIN, "rope_theta": 5e5}, "rope_theta": 5e5, "rope_scaling": LLAMA3}),
        ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 5e5, "rope_scaling": LLAMA3}),
        ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 5e5}, "rope_scaling": None}),
        ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 5e5}, "rope_scaling": {}}),
        ("llama", {"rope_parameters": {}, "rope_scaling": LINEAR, "rope_theta": 5e5}),
        ("llama", {"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {**LINEAR, "rope_theta": 5e5}}),
        ("qwen2", {"rope_parameters": PLAIN, "rope_scaling": YARN}),
        ("mixtral", {"rope_parameters": {**PLAIN, "rope_theta": 1e6}, "rope_scaling": LINEAR}),
        ("phi3", {"rope_parameters": PLAIN, "rope_scaling": {"type": "longrope", **LONG}}),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", **LONG}, "rope_scaling": {"type": "longrope", **LONG}}),
        ("phi3", {"partial_rotary_factor": 0.5, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
        ("gpt_neox", {"rotary_emb_base": 5e5, "rotary_pct": 0.5}),
        ("gpt_neox", {"rotary_emb_base": 5e5, "rope_parameters": {**PLAIN, "rope_theta": 5e5}}),
        ("gpt_neox", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
        ("gemma3_text", {"rope_parameters": GEMMA3, "rope_scaling": LINEAR}),
        ("gemma3_text", {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR}),
        ("gemma3_text", {"rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 5e5}}}),
        ("gemma3_text", {"rope_parameters": GEMMA3, "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    ],
)  # fmt: skip
def test_rotary_settings_in_two_spellings_mean_what_transformers_makes_of_them(
    model_type: str, changes: dict[str, Any]
) -> None:
    dims = read(model_type, **changes)
    assert dims.rope is not None
    theirs = CONFIG_MAPPING[model_type].from_dict(config_of(model_type, **changes)).rope_parameters
    theirs = dict(theirs.get("full_attention", theirs))
    assert theirs.pop("partial_rotary_factor", 1.0) == dims.rotary_pct
    assert theirs.pop("rope_theta") == dims.rope.theta
    if theirs["rope_type"] == "longrope":
        assert dims.rope.scaling is None, "the lists are fields of their own"
        return
    scaling = dict(dims.rope.scaling or {"rope_type": "default"})
    assert {key: value for key, value in theirs.items() if key != "type"} == scaling


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 1e4}, "rope_scaling": YARN},
         "rope_scaling means rope_type yarn, .*factor 4.0.* rope_parameters rope_type linear, .*factor 2.0"),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 1e4}, "rope_scaling": {"rope_type": "default"}}, "rope_type default.*rope_type yarn"),
        ("llama", {"rope_parameters": {**PLAIN, "rope_theta": 5e5}, "rope_scaling": LINEAR}, "rope_theta 10000.0.*rope_theta 500000.0"),
        ("llama", {"rope_parameters": PLAIN, "rope_scaling": {"type": "foo"}}, "rope scaling 'foo' is not supported"),
        ("llama", {"rope_parameters": {**PLAIN, "rope_theta": 5e5}, "rope_theta": 1e4}, r"rope_theta = 10000.0 and rope_parameters.rope_theta = 500000.0"),
        ("llama", {"rope_scaling": {**LINEAR, "rope_theta": 5e5}, "rope_theta": 1e4}, r"rope_theta = 10000.0 and rope_scaling.rope_theta = 500000.0"),
        ("llama", {"rope_scaling": {**LINEAR, "type": "dynamic"}}, "rope_scaling.rope_type = 'linear' and rope_scaling.type = 'dynamic'"),
        ("llama", {"rope_scaling": YARN, "original_max_position_embeddings": 64}, "original_max_position_embeddings = 64 and .* = 128"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
        ("llama", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5 is not supported"),
        ("mixtral", {"rope_parameters": PLAIN, "rope_scaling": LINEAR}, "rope_theta 1000000.0.*rope_theta 10000.0"),
        ("phi3", {"partial_rotary_factor": 0.5, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.75}}, "partial_rotary_factor = 0.5 and"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", **LONG}, "rope_scaling": {"type": "longrope", **LONG, "long_factor": [3.0] * 8}},
         r"long_factor \[8 numbers\]"),
        ("gpt_neox", {"rotary_emb_base": 5e5, "rope_parameters": PLAIN}, "rotary_emb_base = 500000.0 and rope_parameters.rope_theta = 10000.0"),
        ("gpt_neox", {"rotary_pct": 0.5, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}}, "rotary_pct = 0.5 and"),
        ("gpt_neox", {"rope_theta": 5e5}, "rope_theta = 500000.0 and the base that transformers reads = 10000.0"),
        ("gpt_neox", {"rope_parameters": PLAIN, "rope_scaling": LINEAR}, "scaled rotary positions are not supported"),
        ("gemma3_text", {"rope_parameters": GEMMA3, "rope_theta": 5e5}, "rope_theta = 500000.0 and rope_parameters.rope_theta = 1000000.0"),
        ("gemma3_text", {"rope_parameters": GEMMA3, "rope_local_base_freq": 5e5}, "rope_local_base_freq = 500000.0 and"),
        ("gemma3_text", {"rope_parameters": PLAIN}, "does not give settings per kind of layer"),
        ("gpt2", {"num_attention_heads": 8}, "n_head = 4 and num_attention_heads = 8"),
        ("gpt2", {"hidden_size": 32}, "n_embd = 64 and hidden_size = 32"),
        ("falcon", {"n_layer": 4}, "n_layer = 4 and num_hidden_layers = 2"),
        ("llama", {"dtype": "float16", "torch_dtype": "bfloat16"}, "dtype = 'float16' and torch_dtype = 'bfloat16'"),
        ("mixtral", {"num_experts": 8}, "num_experts = 8 and num_local_experts = 4"),
    ],
)  # fmt: skip
def test_spellings_that_contradict_each_other_are_refused_with_both_values(
    model_type: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrtbuildError, match=message) as caught:
        read(model_type, **changes)
    assert caught.value.hint


def test_spellings_that_agree_are_taken() -> None:
    assert read("llama", dtype="float16", torch_dtype="torch.float16").dtype == "float16"
    assert read("gpt2", num_attention_heads=4, hidden_size=64).num_attention_heads == 4
    assert read("mixtral", num_experts=4).num_experts == 4
    assert read("falcon", ffn_hidden_size=256).intermediate_size == 256, (
        "transformers does not read the other name here"
    )


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
@pytest.mark.parametrize("scaling", [None, LINEAR])
def test_a_scaling_that_replaces_another_spelling_is_said(model_type: str, scaling: dict[str, Any] | None) -> None:
    parameters = GEMMA3 if model_type == "gemma3_text" else PLAIN
    config = config_of(model_type, rope_parameters=parameters, rope_scaling=scaling)
    notes = list(guesses(config, read(model_type, rope_parameters=parameters, rope_scaling=scaling)))
    assert any("the scaling of rope_scaling is taken" in note for note in notes) == (scaling is not None)
