"""Tiny random models of every family, as transformers objects and as something that looks like a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 128
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
}


def tiny_model(family: str = "llama") -> PreTrainedModel:
    """Return a model with 3 layers, 4 heads over 2 kv heads, and logits that are spread well apart."""
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
    torch.manual_seed(sorted(FAMILIES).index(family))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
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

    def activation_scales(self) -> dict[str, float]:
        return self.scales

    def kv_scales(self) -> list[float] | None:
        return self.kv
