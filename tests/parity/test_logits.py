"""The reference target computes what transformers computes, from rank files of any tp x pp and from unified Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import GOLDENS, read_safetensors, write_safetensors
from transformers import AutoConfig, AutoModelForCausalLM

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.reference.model import load_model

Cli = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 131, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "initializer_range": 0.3,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3}}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral-nemo": ("mistral", {"head_dim": 16, "sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "qwen2_moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "qwen3-moe": (
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-implied-heads": (
        "qwen3_moe",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 4,
            "sliding_window_pattern": 2,
        },
    ),
    "phi3": ("phi3", {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}),
    "phi4-mini": (
        "phi3",
        {
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "num_attention_heads": 4,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.1] * 6,
                "long_factor": [2.0, 2.5] * 3,
            },
            "original_max_position_embeddings": 16,
        },
    ),
    "phi3-yarn": (
        "phi3",
        {
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "short_factor": [1.1] * 4,
                "long_factor": [2.0] * 4,
            },
            "original_max_position_embeddings": 16,
        },
    ),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 256, "intermediate_size": None}),
    "gpt-neox": ("gpt_neox", {"rotary_pct": 0.5, "num_attention_heads": 4}),
    "falcon-7b": ("falcon", {"multi_query": True, "num_attention_heads": 8, "tie_word_embeddings": True}),
    "falcon-40b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False}),
    "falcon-11b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1}),
    "falcon-rw": ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
}
#: Fields of `SMALL` that these families call otherwise.
OTHER_NAMES = {"gpt2", "falcon", "gpt_neox"}
NO_PIPELINE = {"phi3", "gpt_neox"}  # fmt: skip
CUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]


@pytest.fixture(scope="module", params=MODELS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny random model of each kind: its folder and the model itself."""
    model_type, changes = MODELS[request.param]
    torch.manual_seed(0)
    dropped = ("num_key_value_heads", "rms_norm_eps") if model_type in OTHER_NAMES else ()
    config = AutoConfig.for_model(
        model_type, **{**{key: value for key, value in SMALL.items() if key not in dropped}, **changes}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # norms that are all alike hide a swap
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.parametrize(("tp", "pp"), CUTS)
def test_logits_equal_those_of_transformers(
    original: tuple[Path, Any], tp: int, pp: int, cli: Cli, tmp_path: Path
) -> None:
    folder, model = original
    if pp > 1 and model.config.model_type in NO_PIPELINE:
        code, _, err = cli("convert", folder, "-o", tmp_path / "out", "--pp", pp)
        assert (code, "no pipeline parallelism" in err) == (2, True)
        return
    code, _, err = cli("convert", folder, "-o", tmp_path / "out", "--tp", tp, "--pp", pp, "--dtype", "float32")
    assert code == 0, err
    ids = torch.randint(0, 131, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        found = load_model(open_checkpoint(tmp_path / "out"))(ids).logits
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    assert (found - expected).abs().max() <= 1e-4


def test_logits_of_the_unified_folder_equal_those_of_transformers(
    original: tuple[Path, Any], cli: Cli, tmp_path: Path
) -> None:
    folder, model = original
    code, _, err = cli("convert", folder, "-o", tmp_path / "out", "--target", "pytorch", "--dtype", "float32")
    assert code == 0, err
    ids = torch.randint(0, 131, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        found = load_model(open_checkpoint(tmp_path / "out"))(ids).logits
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()(ids).logits
    assert (found - expected).abs().max() <= 1e-4
    assert (theirs - expected).abs().max() <= 1e-4, "transformers reads the folder otherwise"


def test_quantized_unified_folders_are_within_their_bounds_and_run(
    original: tuple[Path, Any], cli: Cli, tmp_path: Path
) -> None:
    folder, _ = original
    ids = np.random.default_rng(2).integers(0, 131, (2, 40))
    write_safetensors(tmp_path / "ids.safetensors", {"input_ids": ids})
    options = ("--target", "pytorch", "--quantization", "fp8", "--kv-cache", "fp8", "--dtype", "bfloat16")
    code, _, err = cli(
        "convert", folder, "-o", tmp_path / "out", *options, "--calibration", tmp_path / "ids.safetensors"
    )
    assert code == 0, err
    code, report, _ = cli("verify", tmp_path / "out", "--json")
    assert (code, json.loads(report)["findings"]) == (0, [])
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.input_roundings() and len(checkpoint.kv_scales() or ()) == checkpoint.dims.num_layers
    with torch.no_grad():
        assert load_model(checkpoint)(torch.from_numpy(ids)).logits.isfinite().all()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "mixtral"])
def test_logits_equal_those_recorded_with_the_exporters_files(family: str, cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("convert", GOLDENS / family / "source", "-o", tmp_path / "out", "--tp", "2")
    assert code == 0, err
    recorded = read_safetensors(GOLDENS / family / "reference_logits.safetensors")
    model = load_model(open_checkpoint(tmp_path / "out"))
    # They were recorded from a model that had been cast to float16 and back, its rotary frequencies included.
    if family != "gpt2":
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq.half().float()
    with torch.no_grad():
        found = model(torch.from_numpy(recorded["input_ids"].copy())).logits
    assert np.abs(found.numpy() - recorded["logits"]).max() <= 1e-4


def test_llama3_frequencies_are_those_of_the_published_rule(cli: Cli, tmp_path: Path) -> None:
    block = {**LLAMA3, "original_max_position_embeddings": 8192}
    config = AutoConfig.for_model(
        "llama", **{**SMALL, "num_attention_heads": 4, "rope_parameters": {"rope_theta": 500000.0, **block}}
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "model")
    assert cli("convert", tmp_path / "model", "-o", tmp_path / "out", "--dtype", "float32")[0] == 0
    frequencies = load_model(open_checkpoint(tmp_path / "out")).model.rotary_emb.inv_freq
    expected = [1.0, 0.193923, 0.037606, 0.00729266, 0.000524846, 3.4281e-05, 6.64787e-06, 1.28917e-06]
    assert frequencies.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("scheme", "tolerance"), [("int8_weight_only", 0.1), ("fp8", 0.3)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "mixtral"])
def test_quantized_logits_are_near_and_not_equal(
    family: str, scheme: str, tolerance: float, cli: Cli, tmp_path: Path
) -> None:
    options = ("--tp", "2", "--quantization", scheme, "--calibration", GOLDENS / family / "calibration_ids.safetensors")
    if scheme == "fp8":
        options += ("--kv-cache", "fp8")
    recorded = read_safetensors(GOLDENS / family / "reference_logits.safetensors")
    code, _, err = cli("convert", GOLDENS / family / "source", "-o", tmp_path / "out", *options)
    assert code == 0, err
    with torch.no_grad():
        found = load_model(open_checkpoint(tmp_path / "out"))(
            torch.from_numpy(recorded["input_ids"].copy())
        ).logits.numpy()
    error = np.abs(found - recorded["logits"]).mean() / np.abs(recorded["logits"]).mean()
    assert 1e-6 < error < tolerance
