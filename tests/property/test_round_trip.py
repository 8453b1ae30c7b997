"""Hugging Face -> ranks -> Hugging Face is the identity for unquantized weights, for every architecture and whatever the odd dimensions."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.conftest import write_safetensors

from trtbuild.arch.registry import ARCHITECTURES, lookup
from trtbuild.checkpoint import Checkpoint
from trtbuild.cli.edge import run
from trtbuild.convert import budget
from trtbuild.layout import Layout
from trtbuild.names import EMBEDDINGS
from trtbuild.parallel import Parallel
from trtbuild.quant.scheme import load_scheme

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
MOE = ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM")
#: Families whose every query head has its own kv head.
NO_GQA = ("GPT2LMHeadModel", "GPTNeoXForCausalLM")


@dataclass(frozen=True)
class Case:
    architecture: str
    config: dict[str, Any]
    tp: int
    pp: int
    ep: int


def config_of(architecture: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return config.json in the family's own words."""
    config = {"architectures": [architecture], "model_type": lookup(architecture, where="x").model_type, **sizes}
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    if architecture == "GPT2LMHeadModel":
        return {
            **{key: config[key] for key in ("architectures", "model_type", "vocab_size", "torch_dtype")},
            "n_embd": hidden, "n_head": heads, "n_layer": sizes["num_hidden_layers"], "n_positions": 13,
            "n_inner": sizes["intermediate_size"],
        }  # fmt: skip
    if architecture == "FalconForCausalLM":
        config |= {
            "new_decoder_architecture": True, "num_kv_heads": sizes["num_key_value_heads"], "ffn_hidden_size": sizes["intermediate_size"],
        }  # fmt: skip
    if architecture == "GPTNeoXForCausalLM":
        config["tie_word_embeddings"] = False
    if architecture in MOE:
        width = sizes["intermediate_size"]
        config |= {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width}
        config |= {"shared_expert_intermediate_size": width}
    if architecture == "Gemma3ForCausalLM":
        config |= {"sliding_window_pattern": 2}
    return config


@st.composite
def cases(draw: st.DrawFn) -> Case:
    architecture = draw(st.sampled_from(sorted(ARCHITECTURES)))
    arch = lookup(architecture, where="x")
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 3])) if arch.has_pipeline else 1
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if tp % n == 0])) if architecture in MOE else 1
    kv_heads = draw(st.sampled_from([1, 2, 3, 4]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    if architecture in NO_GQA:
        kv_heads = heads
    assume(heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0))
    head_dim = draw(st.sampled_from([8, 16]))
    has_own_head_dim = architecture not in (*NO_GQA, "FalconForCausalLM", "Phi3ForCausalLM")
    sizes = {
        "hidden_size": draw(st.integers(1, 5)) * 8 if has_own_head_dim else heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **({"head_dim": head_dim} if has_own_head_dim else {}),
        "intermediate_size": draw(st.integers(1, 5)) * tp,
        "num_hidden_layers": draw(st.integers(pp, 4)),
        "vocab_size": draw(st.integers(tp, 40)),
        "max_position_embeddings": 64,
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(sorted(DTYPES))),
    }
    return Case(architecture, config_of(architecture, sizes), tp, pp, ep)


def has_columns(case: Case) -> bool:
    """Say whether the embedding can be cut over the hidden size."""
    arch = lookup(case.architecture, where="")
    first = [rule.target for rule in arch.rules if rule.stage == "first"]
    hidden = case.config.get("hidden_size") or case.config["n_embd"]
    return len(first) == 1 and not arch.shards_embedding and hidden % case.tp == 0


def source_tensors(case: Case) -> dict[str, np.ndarray]:
    """Return a source whose values are all different, as far as the dtype goes; norms survive having one added."""
    arch = lookup(case.architecture, where="x")
    dims = arch.read_dims(case.config, case.architecture, "x")
    layout = Layout(arch, dims, Parallel(), load_scheme("none"), None, "F32")
    tensors, counter = {}, 0
    for slot in layout.slots:
        for part in slot.parts:
            size = int(np.prod(part.source_shape))
            values = (np.arange(counter, counter + size, dtype=np.float64) * 0.6180339887) % 1.0 - 0.5
            if slot.rule.offset:
                values = np.round(values * 64) / 64 + 0.0  # no negative zero
            counter += size
            tensors.setdefault(
                part.source, values.reshape(part.source_shape).astype(DTYPES[case.config["torch_dtype"]])
            )
    return tensors


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(cases(), st.sampled_from(EMBEDDINGS), st.sampled_from([64, 1 << 24]))
def test_merging_the_ranks_gives_the_source_back(case: Case, embedding: str, block: int) -> None:
    tensors = source_tensors(case)
    before = budget.LARGEST_BLOCK_BYTES
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "model", Path(name) / "out"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(case.config))
        write_safetensors(folder / "model.safetensors", tensors)
        budget.LARGEST_BLOCK_BYTES = block
        options = [f"--tp={case.tp}", f"--pp={case.pp}", f"--ep={case.ep}", f"--dtype={case.config['torch_dtype']}"]
        options += [f"--embedding={embedding if embedding != 'hidden' or has_columns(case) else 'vocab'}"]
        try:
            assert run(["convert", str(folder), "-o", str(out), "--quiet", *options]) == 0
        finally:
            budget.LARGEST_BLOCK_BYTES = before
        checkpoint = Checkpoint.open(out)
        merged = dict(checkpoint.hf_tensors())
    assert sorted(merged) == sorted(tensors)
    for key, tensor in tensors.items():
        assert merged[key].dtype in (tensor.dtype, np.float32)  # a router is float32 whatever the model is
        assert merged[key].astype(tensor.dtype).tobytes() == np.ascontiguousarray(tensor).tobytes(), key
    rebuilt, arch = checkpoint.hf_config(), lookup(case.architecture, where="x")
    expected = arch.read_dims(case.config, case.architecture, "x")
    found = arch.read_dims(rebuilt, case.architecture, "x")
    assert replace(found, dtype=expected.dtype) == expected


@pytest.mark.parametrize("architecture", MOE)
@pytest.mark.parametrize(
    ("tp", "ep", "message"),
    [
        (2, 2, "num_experts=5 cannot be split over ep=2"),
        (4, 1, "moe_intermediate_size=6 cannot be split over moe_tp=4"),
    ],
)
def test_experts_that_do_not_divide_are_one_clear_error(
    architecture: str, tp: int, ep: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 6, "num_hidden_layers": 1,
        "vocab_size": 16, "max_position_embeddings": 64, "torch_dtype": "float16",
    }  # fmt: skip
    experts = {"num_experts": 5, "num_local_experts": 5, "shared_expert_intermediate_size": 8}
    case = Case(architecture, {**config_of(architecture, sizes), **experts}, tp, 1, ep)
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    write_safetensors(tmp_path / "model.safetensors", source_tensors(case))
    assert run(["convert", str(tmp_path), "--dry-run", f"--tp={tp}", f"--ep={ep}"]) == 2
    assert message in capsys.readouterr().err
