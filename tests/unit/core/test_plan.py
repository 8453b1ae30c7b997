"""The conversion plan: everything headers show is an error here, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.names import QUANTIZATIONS
from trtbuild.parallel import Parallel
from trtbuild.quant.scheme import load_scheme
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import require_target

Make = Callable[..., Path]
SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def plan(folder: Path, tp: int = 1, pp: int = 1, *, vocab_embedding: bool = False, **options: Any) -> ConversionPlan:
    parallel = Parallel(tp, pp, vocab_embedding=vocab_embedding)
    return plan_conversion(OpenedSource(SourceCheckpoint.open(folder)), ConversionOptions(parallel=parallel, **options))


def shapes(made: ConversionPlan, rank: int = 0) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in made.layout.tensors(list(made.layout.parallel.ranks())[rank])}


def test_shapes_of_the_tiny_model_at_tp_2(make_model: Make) -> None:
    found = shapes(plan(make_model(), 2), 1)
    layer = "transformer.layers.1"
    assert {name.removeprefix(layer): shape for name, shape in found.items() if name.startswith(layer)} == {
        ".input_layernorm.weight": (64,),
        ".attention.qkv.weight": (64, 64),
        ".attention.dense.weight": (64, 32),
        ".post_layernorm.weight": (64,),
        ".mlp.fc.weight": (96, 64),
        ".mlp.gate.weight": (96, 64),
        ".mlp.proj.weight": (64, 96),
    }
    assert found["lm_head.weight"] == (64, 64)
    assert found["transformer.vocab_embedding.weight"] == (128, 64), "replicated unless asked otherwise"


def test_an_explicit_head_dim_decides_shapes_and_is_written(make_model: Make) -> None:
    made = plan(make_model(head_dim=32), 2)
    found = shapes(made)
    assert found["transformer.layers.0.attention.qkv.weight"] == (128, 64)
    assert found["transformer.layers.0.attention.dense.weight"] == (64, 64)
    assert made.config()["head_size"] == 32


def test_config_has_what_the_loader_reads(make_model: Make) -> None:
    config = plan(make_model(rope_theta=500000.0), 2, 3).config()
    assert config == {
        "architecture": "LlamaForCausalLM", "model_type": "llama", "dtype": "bfloat16", "logits_dtype": "float32",
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "head_size": 16,
        "intermediate_size": 192, "vocab_size": 128, "max_position_embeddings": 256, "hidden_act": "silu", "norm_epsilon": 1e-5,
        "position_embedding_type": "rope_gpt_neox", "rotary_base": 500000.0, "rotary_scaling": None, "tie_word_embeddings": False,
        "use_parallel_embedding": False, "embedding_sharding_dim": 0, "attn_bias": False, "mlp_bias": False, "residual_mlp": False,
        "mapping": {"world_size": 6, "tp_size": 2, "pp_size": 3},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }  # fmt: skip


def test_qwen_configs_carry_their_mandatory_fields(make_model: Make) -> None:
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "biases": SEVEN[:3]}
    config = plan(make_model(**qwen2)).config()
    assert (config["qwen_type"], config["attn_bias"], config["seq_length"]) == ("qwen2", True, 8192)
    qwen3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "qk_norm": True, "head_dim": 32}
    made = plan(make_model(name="q3", **qwen3))
    config = made.config()
    assert (config["qwen_type"], config["attn_bias"], config["head_size"]) == ("qwen3", False, 32)
    assert shapes(made)["transformer.layers.0.attention.q_layernorm.weight"] == (32,)


def test_keys_that_the_loader_expands_to_arguments_are_known_ones(make_model: Make) -> None:
    known = {"quant_algo", "kv_cache_quant_algo", "exclude_modules", "group_size", "smoothquant_val", "clamp_val"}
    known |= {"use_meta_recipe", "has_zero_point", "pre_quant_scale"}
    for name in (name for name in QUANTIZATIONS if load_scheme(name).ranks):
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
        folder = make_model(name=name, **sizes, num_key_value_heads=4)
        config = plan(folder, quantization=name, kv_cache="fp8", allow_unverified=True).config()
        assert set(config["mapping"]) == {"world_size", "tp_size", "pp_size"}
        assert set(config["quantization"]) <= known
        assert not {"quant_mode", "quant_algo", "kv_dtype", "rank"} & set(config), (
            "read-only or ignored at the top level"
        )


def test_weight_only_leaves_the_exclusion_list_out(make_model: Make) -> None:
    assert plan(make_model(), quantization="int8_weight_only").config()["quantization"] == {
        "quant_algo": "W8A16",
        "kv_cache_quant_algo": None,
    }


def test_packed_integers_are_never_taken_for_weights(make_model: Make) -> None:
    def pack(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((192, 64), np.int32)

    with pytest.raises(TrtbuildError, match="up_proj.weight is I32, not a plain weight"):
        plan(make_model(edit=pack))


def test_missing_tensors_are_counted_and_named(make_model: Make) -> None:
    with pytest.raises(TrtbuildError, match="lacks 1 tensors .*: model.norm.weight"):
        plan(make_model(edit=lambda tensors: tensors.pop("model.norm.weight")))


def test_a_missing_head_of_an_untied_model_is_an_error(make_model: Make) -> None:
    with pytest.raises(TrtbuildError, match="lm_head.weight"):
        plan(make_model(edit=lambda tensors: tensors.pop("lm_head.weight")))


def test_biases_are_used_when_flagged_and_refused_when_not(make_model: Make) -> None:
    made = plan(make_model(biases=SEVEN, attention_bias=True, mlp_bias=True), 2)
    found = shapes(made, 1)
    assert found["transformer.layers.0.attention.qkv.bias"] == (64,)
    assert found["transformer.layers.0.attention.dense.bias"] == (64,)
    assert found["transformer.layers.0.mlp.fc.bias"] == (96,)
    assert found["transformer.layers.0.mlp.proj.bias"] == (64,)
    with pytest.raises(TrtbuildError, match="holds 21 tensors that LlamaForCausalLM does not use"):
        plan(make_model(name="unflagged", biases=SEVEN))
    with pytest.raises(TrtbuildError, match="does not use: .*o_proj.bias"):
        qwen = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        plan(make_model(name="qwen", biases=("q_proj", "k_proj", "v_proj", "o_proj"), **qwen))


def test_old_rotary_buffers_are_ignored(make_model: Make) -> None:
    def add(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)

    plan(make_model(edit=add))


@pytest.mark.parametrize(("embedding", "head"), [(130, 130), (126, 126), (130, 128), (128, 130)])
def test_vocabularies_that_disagree_quote_both_numbers(make_model: Make, embedding: int, head: int) -> None:
    def resize(tensors: dict[str, np.ndarray]) -> None:
        for name, rows in (("model.embed_tokens.weight", embedding), ("lm_head.weight", head)):
            tensors[name] = np.resize(tensors[name], (rows, 64))

    wrong = embedding if embedding != 128 else head
    with pytest.raises(TrtbuildError, match=rf"model.safetensors.*\[{wrong}, 64\].*config.json implies \[128, 64\]"):
        plan(make_model(edit=resize))


def test_float32_sources_become_float16_only_when_the_dtype_is_automatic(make_model: Make) -> None:
    folder = make_model(torch_dtype="float32")
    assert plan(folder).config()["dtype"] == "float16"
    assert plan(folder, dtype="float32").config()["dtype"] == "float32"
    assert plan(make_model(name="bf16", drop=("torch_dtype",))).config()["dtype"] == "bfloat16", "told by the tensors"


def test_what_is_done_beyond_the_request_is_said(make_model: Make) -> None:
    notes = " ".join(plan(make_model(vocab_size=129), 4).warnings)
    assert "each of the 2 kv heads is held by 2 ranks" in notes
    assert "padded with zero rows to 132" in notes
    assert "multiples of 64" in " ".join(plan(make_model(name="w"), 2, quantization="int4_weight_only").warnings)
    assert plan(make_model(name="plain")).warnings == ()


def test_totals_are_the_sums_of_what_is_listed(make_model: Make) -> None:
    made = plan(make_model(), 2, 2, quantization="fp8", kv_cache="fp8")
    data = made.to_json(tensors=True)
    assert data["write_bytes"] == sum(tensor["bytes"] for rank in data["ranks"] for tensor in rank["tensors"])
    assert [rank["layers"] for rank in data["ranks"]] == [[0, 1], [0, 1], [2, 2], [2, 2]]
    assert data["calibration_needed"]
    assert data["read_bytes"] == made.source.nbytes


def test_targets_and_sizes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown target 'pytorhc', did you mean 'pytorch'"):
        require_target("pytorhc")


def test_experts_are_refused_where_there_are_none(make_model: Make) -> None:
    opened = OpenedSource(SourceCheckpoint.open(make_model()))
    for tp in (1, 2, 3):  # also where ep does not divide it: that would only be the second fault
        options = ConversionOptions(parallel=Parallel(tp, moe_ep_size=2))
        with pytest.raises(TrtbuildError, match="moe_ep_size=2: LlamaForCausalLM has no experts"):
            plan_conversion(opened, options)


def test_a_converted_checkpoint_is_no_source(make_model: Make) -> None:
    with pytest.raises(TrtbuildError, match="converted already"):
        plan(make_model(architecture="LlamaForCausalLM", mapping={}))
