"""Sources that hold several parts in one tensor, or stored otherwise than the target: rows traced by constants, ranks cut by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conftest import read_safetensors, write_safetensors

Cli = Callable[..., tuple[int, str, str]]
Tensors = dict[str, np.ndarray]
LAYER = "transformer.layers.0"


def convert(
    config: dict[str, Any], tensors: Tensors, *options: Any, cli: Cli, folder: Path, dtype: str = "float32"
) -> list[Tensors]:
    source, out = folder / "model", folder / "out"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"torch_dtype": dtype, "max_position_embeddings": 64, **config}))
    write_safetensors(source / "model.safetensors", tensors)
    code, _, err = cli("convert", source, "-o", out, "--dtype", dtype, *options)
    assert code == 0, err
    return [read_safetensors(file) for file in sorted(out.glob("rank*.safetensors"))]


def filled(rows: list[float], columns: int) -> np.ndarray:
    """Return a matrix whose rows hold one number each."""
    return np.repeat(np.array(rows, np.float32)[:, None], columns, axis=1)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def phi3(tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    config = {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 8, "tie_word_embeddings": True,
    }  # fmt: skip
    hf = "model.layers.0"
    norms = {f"{hf}.{name}_layernorm.weight": ones(64) for name in ("input", "post_attention")}
    other = {
        "model.embed_tokens.weight": ones(8, 64),
        "model.norm.weight": ones(64),
        f"{hf}.self_attn.o_proj.weight": ones(64, 64),
    }
    return config, {**norms, **other, f"{hf}.mlp.down_proj.weight": ones(64, 8), **tensors}


def test_a_stacked_qkv_is_cut_by_its_real_parts_and_gate_up_by_halves(cli: Cli, tmp_path: Path) -> None:
    qkv = filled([1] * 64 + [2] * 32 + [3] * 32, 64)
    gate_up = filled([10 + row for row in range(8)] + [20 + row for row in range(8)], 64)
    config, tensors = phi3(
        {"model.layers.0.self_attn.qkv_proj.weight": qkv, "model.layers.0.mlp.gate_up_proj.weight": gate_up}
    )
    for rank, found in enumerate(convert(config, tensors, "--tp", 2, cli=cli, folder=tmp_path)):
        assert found[f"{LAYER}.attention.qkv.weight"][:, 0].tolist() == [1] * 32 + [2] * 16 + [3] * 16
        up, gate = [20 + 4 * rank + row for row in range(4)], [10 + 4 * rank + row for row in range(4)]
        assert found[f"{LAYER}.mlp.fc.weight"][:, 0].tolist() == [*up, *gate], "up above gate, each rank its own slices"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_grouped_qkv_is_reordered_by_heads(tp: int, cli: Cli, tmp_path: Path) -> None:
    # Groups of (q q k v), two rows per head; numbers name the head: q 0-3, k 10-11, v 20-21.
    heads = [0, 1, 10, 20, 2, 3, 11, 21]
    hf = "transformer.h.0"
    config = {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True, "ffn_hidden_size": 8, "vocab_size": 8,
    }  # fmt: skip
    rows = [float(head) for head in heads for _ in range(8)]
    tensors = {
        "transformer.word_embeddings.weight": ones(8, 32),
        f"{hf}.self_attention.query_key_value.weight": filled(rows, 32),
        f"{hf}.self_attention.query_key_value.bias": np.array(rows, np.float32),
        f"{hf}.self_attention.dense.weight": ones(32, 32),
        f"{hf}.self_attention.dense.bias": ones(32),
        f"{hf}.mlp.dense_h_to_4h.weight": ones(8, 32),
        f"{hf}.mlp.dense_h_to_4h.bias": ones(8),
        f"{hf}.mlp.dense_4h_to_h.weight": ones(32, 8),
        f"{hf}.mlp.dense_4h_to_h.bias": ones(32),
        **{f"{hf}.{norm}.{kind}": ones(32) for norm in ("ln_attn", "ln_mlp") for kind in ("weight", "bias")},
        **{f"transformer.ln_f.{kind}": ones(32) for kind in ("weight", "bias")},
    }
    expected = {
        1: [[0, 1, 2, 3, 10, 11, 20, 21]],
        2: [[0, 1, 10, 20], [2, 3, 11, 21]],
        4: [[0, 10, 20], [1, 10, 20], [2, 11, 21], [3, 11, 21]],
    }
    ranks = convert(config, tensors, "--tp", tp, cli=cli, folder=tmp_path)
    for found, order in zip(ranks, expected[tp], strict=True):
        assert found[f"{LAYER}.attention.qkv.weight"][::8, 0].tolist() == order
        assert found[f"{LAYER}.attention.qkv.bias"][::8].tolist() == order
        assert found[f"{LAYER}.attention.dense.bias"].tolist() == [1] * 32, "a row-parallel bias stays whole"


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_conv1d_weights_are_transposed_and_masks_ignored(prefix: str, cli: Cli, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 7, "max_position_embeddings": 7, "vocab_size": 9,
    }  # fmt: skip
    tensors = {
        "wte.weight": random(9, 16), "wpe.weight": random(7, 16), "ln_f.weight": random(16), "ln_f.bias": random(16),
        "h.0.ln_1.weight": random(16), "h.0.ln_1.bias": random(16), "h.0.ln_2.weight": random(16), "h.0.ln_2.bias": random(16),
        "h.0.attn.c_attn.weight": random(16, 48), "h.0.attn.c_attn.bias": random(48), "h.0.attn.bias": random(1, 1, 7, 7),
        "h.0.attn.c_proj.weight": random(16, 16), "h.0.attn.c_proj.bias": random(16), "h.0.mlp.c_fc.weight": random(16, 64),
        "h.0.mlp.c_fc.bias": random(64), "h.0.mlp.c_proj.weight": random(64, 16), "h.0.mlp.c_proj.bias": random(16),
    }  # fmt: skip
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    ranks = convert(config, named, "--tp", 2, "--embedding", "vocab", cli=cli, folder=tmp_path)
    attn, out, fc, proj = (
        tensors[f"h.0.{name}.weight"] for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    )
    for rank, found in enumerate(ranks):
        head = slice(8 * rank, 8 * rank + 8)
        parts = [attn[:, 16 * part :][:, head].T for part in range(3)]
        assert np.array_equal(found[f"{LAYER}.attention.qkv.weight"], np.concatenate(parts))
        biases = [tensors["h.0.attn.c_attn.bias"][16 * part :][head] for part in range(3)]
        assert np.array_equal(found[f"{LAYER}.attention.qkv.bias"], np.concatenate(biases))
        assert np.array_equal(found[f"{LAYER}.attention.dense.weight"], out.T[:, head])
        assert np.array_equal(found[f"{LAYER}.mlp.fc.weight"], fc.T[32 * rank : 32 * rank + 32])
        assert np.array_equal(found[f"{LAYER}.mlp.proj.weight"], proj.T[:, 32 * rank : 32 * rank + 32])
        positions = np.concatenate([tensors["wpe.weight"], np.zeros((1, 16), np.float32)])
        assert np.array_equal(found["transformer.position_embedding.weight"], positions[4 * rank : 4 * rank + 4])


#: tp, ep -> per rank: its experts, and which of the rows of w1 and w3 (6) it holds.
EXPERTS = {
    (2, 1): [([0, 1, 2, 3], (0, 3)), ([0, 1, 2, 3], (3, 6))],
    (2, 2): [([0, 1], (0, 6)), ([2, 3], (0, 6))],
    (4, 2): [([0, 1], (0, 3)), ([2, 3], (0, 3)), ([0, 1], (3, 6)), ([2, 3], (3, 6))],
}


@pytest.mark.parametrize(("tp", "ep"), EXPERTS)
def test_experts_are_dealt_out_and_cut(tp: int, ep: int, cli: Cli, tmp_path: Path) -> None:
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 6, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 8,
    }  # fmt: skip
    hf = "model.layers.0"
    tensors = {
        "model.embed_tokens.weight": ones(8, 32), "model.norm.weight": ones(32), "lm_head.weight": ones(8, 32),
        f"{hf}.block_sparse_moe.gate.weight": np.arange(128, dtype=np.float32).reshape(4, 32),
        **{f"{hf}.{name}_layernorm.weight": ones(32) for name in ("input", "post_attention")},
        **{f"{hf}.self_attn.{name}_proj.weight": ones(32, 32) for name in "qkvo"},
    }  # fmt: skip
    for expert in range(4):
        name = f"{hf}.block_sparse_moe.experts.{expert}"
        tensors[f"{name}.w1.weight"] = filled([100 * expert + 10 + row for row in range(6)], 32)
        tensors[f"{name}.w3.weight"] = filled([100 * expert + 30 + row for row in range(6)], 32)
        tensors[f"{name}.w2.weight"] = filled([100 * expert + 50 + row for row in range(6)], 32).T
    half = {key: value.astype(np.float16) for key, value in tensors.items()}
    ranks = convert(config, half, "--tp", tp, "--ep", ep, cli=cli, folder=tmp_path, dtype="float16")
    for found, (experts, (first, last)) in zip(ranks, EXPERTS[tp, ep], strict=True):
        rows = range(first, last)
        fc = [[100 * expert + base + row for base in (30, 10) for row in rows] for expert in experts]
        assert found[f"{LAYER}.mlp.fc.weight"][:, :, 0].astype(np.float32).tolist() == fc, "w3 above w1 in every expert"
        proj = [[100 * expert + 50 + row for row in rows] for expert in experts]
        assert found[f"{LAYER}.mlp.proj.weight"][:, 0, :].astype(np.float32).tolist() == proj
        router = found[f"{LAYER}.mlp.router.weight"]
        assert (router.dtype, router.shape) == (np.float32, (4, 32)), "whole and float32 on every rank"
        assert np.array_equal(router, half[f"{hf}.block_sparse_moe.gate.weight"].astype(np.float32))


def test_one_is_added_to_gemmas_norms_in_float32(cli: Cli, tmp_path: Path) -> None:
    config = {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 8,
    }  # fmt: skip
    norm = np.array([0.00390625, -0.0078125, 0.01171875, -1.0] * 4, np.float32).astype(ml_dtypes.bfloat16)
    hf = "model.layers.0"
    tensors = {
        "model.embed_tokens.weight": ones(8, 16), "model.norm.weight": norm,
        **{f"{hf}.{name}_layernorm.weight": norm for name in ("input", "post_attention")},
        f"{hf}.self_attn.q_proj.weight": ones(16, 16), f"{hf}.self_attn.o_proj.weight": ones(16, 16),
        **{f"{hf}.self_attn.{name}_proj.weight": ones(8, 16) for name in "kv"},
        **{f"{hf}.mlp.{name}_proj.weight": ones(8, 16) for name in ("gate", "up")}, f"{hf}.mlp.down_proj.weight": ones(16, 8),
    }  # fmt: skip
    bf16 = {key: value.astype(ml_dtypes.bfloat16) for key, value in tensors.items()}
    (found,) = convert(config, bf16, cli=cli, folder=tmp_path, dtype="bfloat16")
    expected = (norm.astype(np.float32) + 1).astype(ml_dtypes.bfloat16)
    for name in (f"{LAYER}.input_layernorm.weight", f"{LAYER}.post_layernorm.weight", "transformer.ln_f.weight"):
        assert found[name].tobytes() == expected.tobytes()
    assert found["lm_head.weight"].tobytes() == bf16["model.embed_tokens.weight"].tobytes(), "a tied head is written"
