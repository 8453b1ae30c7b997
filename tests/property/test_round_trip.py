"""Hugging Face -> ranks -> Hugging Face is the identity for unquantized weights, whatever the odd dimensions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.conftest import T0, llama_tensors, write_safetensors

from trtbuild.arch.registry import resolve
from trtbuild.checkpoint import Checkpoint
from trtbuild.cli.edge import run
from trtbuild.convert import execute
from trtbuild.dims import ModelDims

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}


@st.composite
def models(draw: st.DrawFn) -> tuple[str, dict[str, Any], int, int]:
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    family = draw(st.sampled_from(sorted(FAMILIES)))
    config = {
        **T0,
        **FAMILIES[family],
        "hidden_size": draw(st.integers(1, 9)) * 8,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([8, 16])),
        "intermediate_size": draw(st.integers(1, 9)) * tp,
        "num_hidden_layers": draw(st.integers(pp, 4)),
        "vocab_size": draw(st.integers(tp, 40)),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
    }
    assume(heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0))
    return family, config, tp, pp


def dims_of(config: dict[str, Any]) -> ModelDims:
    architecture, arch = resolve(config, where="x")
    return arch.read_dims(config, architecture, "x")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(models(), st.booleans(), st.sampled_from([64, 1 << 24]))
def test_merging_the_ranks_gives_the_source_back(
    model: tuple[str, dict[str, Any], int, int], vocab: bool, block: int
) -> None:
    family, config, tp, pp = model
    biases = ("q_proj", "k_proj", "v_proj") if family == "qwen2" else ()
    tensors = llama_tensors(config, biases=biases, qk_norm=family == "qwen3")
    before = execute.BLOCK_BYTES
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "model", Path(name) / "out"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", tensors)
        execute.BLOCK_BYTES = block
        try:
            options = [
                "--tp",
                str(tp),
                "--pp",
                str(pp),
                "--dtype",
                config["torch_dtype"],
                "--embedding",
                "vocab" if vocab else "replicated",
            ]
            assert run(["convert", str(folder), "-o", str(out), "--quiet", *options]) == 0
        finally:
            execute.BLOCK_BYTES = before
        checkpoint = Checkpoint.open(out)
        merged = dict(checkpoint.hf_tensors())
    assert sorted(merged) == sorted(tensors)
    for key, tensor in tensors.items():
        assert merged[key].dtype == tensor.dtype
        assert merged[key].tobytes() == np.ascontiguousarray(tensor).tobytes(), key
    rebuilt = checkpoint.hf_config()
    assert dims_of(rebuilt) == dims_of(config)
    assert rebuilt.get("sliding_window") == config.get("sliding_window")
