"""Tiny random models of every family, as transformers objects and as something that looks like a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trtbuild.quant.inputs import InputRounding
from trtbuild.torch_model import attention_of

VOCAB_SIZE = 128
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.1] * 6,
    "long_factor": [2.0, 2.5] * 3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama_tied": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral_nemo": {"model_type": "mistral", "head_dim": 24, "sliding_window": None},
    "mistral_window": {"model_type": "mistral", "sliding_window": 12},
    "qwen2": {"model_type": "qwen2"},
    "qwen2_window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 12,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 24},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "gemma": {"model_type": "gemma", "head_dim": 24, "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 24,
        "sliding_window": 12,
        "query_pre_attn_scalar": 40,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 6.0,
        "tie_word_embeddings": False,  # or the scaled embeddings, tied, make answers that repeat one token
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 24,
        "sliding_window": 12,
        "query_pre_attn_scalar": 40,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": False,
    },
    "phi3": {"model_type": "phi3"},
    "phi3_window": {"model_type": "phi3", "sliding_window": 12},
    "phi4_mini": {
        "model_type": "phi3",
        "tie_word_embeddings": True,
        "rope_parameters": dict(LONGROPE),
        "original_max_position_embeddings": 256,
    },
    "phi4_mini_long": {
        "model_type": "phi3",
        "rope_parameters": dict(LONGROPE),
        "original_max_position_embeddings": 40,
    },
    "gpt2": {"model_type": "gpt2", "n_positions": 512},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5},
    "gpt_neox_sequential": {"model_type": "gpt_neox", "rotary_pct": 1.0, "use_parallel_residual": False},
    "falcon_7b": {"model_type": "falcon", "multi_query": True, "tie_word_embeddings": True},
    "falcon_40b": {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon_11b": {
        "model_type": "falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
    },
    "falcon_rw": {"model_type": "falcon", "multi_query": False, "parallel_attn": False, "bias": True},
}
#: Model types whose layers have one key head per query head, or say so in another way.
OTHER_KV_HEADS = ("gpt2", "gpt_neox", "falcon")


def tiny_model(family: str = "llama") -> PreTrainedModel:
    """Return a model with 3 layers, 4 heads over 2 kv heads where it can, and logits that are spread well apart.

    Biases and norms are random too: those that are all alike hide a swap.
    """
    settings: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **FAMILIES[family],
    }
    if settings["model_type"] in OTHER_KV_HEADS:
        del settings["num_key_value_heads"]
    torch.manual_seed(list(FAMILIES).index(family))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention_of(config), experts_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def prompts(count: int, *, longest: int = 60, seed: int = 0) -> list[list[int]]:
    """Return random prompts of different lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def greedy(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """Return what `model.generate` answers."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


class FakeCheckpoint:
    """Looks like `trtbuild.checkpoint.Checkpoint`, made from a transformers model."""

    def __init__(self, model: PreTrainedModel, *, bfloat16: bool = False) -> None:
        self._config = model.config.to_dict()
        self.tensors = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        if bfloat16:
            self.tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in self.tensors.items()}
        self.quant_algo: str | None = None
        self.kv_cache_quant_algo: str | None = None
        self.scales: dict[str, float] = {}
        self.kv: list[float] | None = None

    def hf_config(self) -> dict[str, Any]:
        return dict(self._config)

    def hf_tensors(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        for name, array in self.tensors.items():
            view = array.view()
            view.flags.writeable = False  # as an array of a mapped file
            yield name, view

    def input_roundings(self) -> dict[str, InputRounding]:
        return {name: InputRounding("fp8", scale) for name, scale in self.scales.items()}

    def kv_scales(self) -> list[float] | None:
        return self.kv
