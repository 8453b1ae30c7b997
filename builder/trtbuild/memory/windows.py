"""How far back each layer of a model attends, in tokens, and what the server will therefore keep in its KV cache.

Knows the key names of Hugging Face configs for windows. Sources: transformers' configurations of the families; NVIDIA's attribute
`max_attention_window` (LLM API specification 1.4), one entry per layer, repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.arch.gemma import attends_to_all
from trtbuild.arch.llama import MISTRAL_WINDOW

#: A layer's window in tokens; None attends to everything.
Windows = tuple[int | None, ...]


def _everywhere(config: Mapping[str, Any], layers: int) -> Windows:
    return (_window(config),) * layers


def _mistral(config: Mapping[str, Any], layers: int) -> Windows:
    return (_window(config, MISTRAL_WINDOW),) * layers


def _nowhere(_config: Mapping[str, Any], layers: int) -> Windows:
    return (None,) * layers


def _gemma(config: Mapping[str, Any], layers: int) -> Windows:
    window = _window(config, 4096)
    return tuple(None if attends_to_all(config, layer) else window for layer in range(layers))


def _window(config: Mapping[str, Any], default: int | None = None) -> int | None:
    value = config.get("sliding_window", default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


#: Architecture -> windows of its layers; what is not listed has none (Qwen's are refused when they are switched on).
_OF: dict[str, Callable[[Mapping[str, Any], int], Windows]] = {
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _everywhere,
    "Phi3ForCausalLM": _everywhere,
    "Gemma2ForCausalLM": _gemma,
    "Gemma3ForCausalLM": _gemma,
}


def layer_windows(
    architecture: str, config: Mapping[str, Any], num_layers: int, asked: Sequence[int], max_seq_len: int
) -> Windows:
    """Return the window of each layer that matters for sequences of at most max_seq_len tokens.

    Args:
        architecture: as config.json names it.
        config: of the model.
        num_layers: of the model.
        asked: `kv_cache.max_attention_window`, repeated over the layers; empty: the model's own.
        max_seq_len: a window that is not below it is none.
    """
    if asked:
        found: Windows = tuple(asked[layer % len(asked)] for layer in range(num_layers))
    else:
        found = _OF.get(architecture, _nowhere)(config, num_layers)
    return tuple(window if window is not None and window < max_seq_len else None for window in found)
