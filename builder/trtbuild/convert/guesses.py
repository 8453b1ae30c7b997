"""What a config.json leaves open and is decided all the same: said as a note, never in silence.

Sizes that tensors confirm (heads, widths, vocabulary) are not guesses, a wrong one is an error of `source_check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.arch.registry import lookup
from trtbuild.dims import ModelDims
from trtbuild.rope_block import is_replaced

#: What is decided -> the names that families have for it. Defaults are those of transformers' config classes.
_NAMES: dict[str, tuple[str, ...]] = {
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "sliding_window": ("sliding_window",),
    "norm epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
}


def guesses(config: Mapping[str, Any], dims: ModelDims) -> Iterator[str]:
    """Yield a note for each fact that config.json does not state.

    Args:
        config: of the model.
        dims: what was made of it.
    """
    named = config.get("architectures")
    if not (isinstance(named, list) and named):
        yield f"config.json names no architecture: {dims.architecture} is taken, from model_type '{dims.model_type}'"
    if is_replaced(config):
        yield "config.json has both rope_scaling and rope_parameters: the scaling of rope_scaling is taken, as transformers does"
    taken: dict[str, float | None] = {
        "max_position_embeddings": dims.max_position_embeddings,
        "rope_theta": dims.rope.theta if dims.rope else None,
        "sliding_window": lookup(dims.architecture, where="config.json")
        .config_fields(dims, config)
        .get("sliding_window"),
        "norm epsilon": dims.norm_epsilon,
    }
    for what, value in taken.items():
        if value is not None and not any(name in block for name in _NAMES[what] for block in _blocks(config)):
            yield f"config.json says nothing of {what}: {value:g} is taken, the default of the family"


def _blocks(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings that may state a fact, without what is null."""
    rope = config.get("rope_parameters")
    nested = rope.values() if isinstance(rope, Mapping) else ()
    for block in (config, rope, *nested):
        if isinstance(block, Mapping):
            yield {key: value for key, value in block.items() if value is not None}
