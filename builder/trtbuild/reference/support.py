"""Which models the reference target serves how. Imports nothing heavy, so that tables and reports can be made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Batching = Literal["continuous", "static"]

STATIC_BATCHES = frozenset({"gpt_neox", "falcon"})
"""Hugging Face model types that are served in static batches.

Their attention layers in transformers 5.24 call `layer_past.update(key, value, layer_idx)` and drop the indices that a
paged cache needs (models/gpt_neox/modeling_gpt_neox.py, models/falcon/modeling_falcon.py), their models ask the cache
for a length that a paged cache does not have, and Falcon's attention is not looked up in `AttentionInterface`."""

LEARNED_POSITIONS = frozenset({"gpt2"})
"""Hugging Face model types that have a table of positions and nothing beyond its end."""


def rope_switch(config: Mapping[str, Any]) -> int | None:
    """Return the length from which on a model rotates all positions otherwise ("longrope"); None when it never does.

    A sequence of more tokens than this uses the long factors for every position, its first ones included, so it cannot
    share a step with a shorter one, and one that grows past it is read again.

    Args:
        config: a Hugging Face config, as a dict.
    """
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "longrope":
        return None
    # Before transformers 5 the length stood beside the block; models that have both keep them equal.
    length = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    return None if length is None else int(length)


def batching_of(config: Mapping[str, Any], max_seq_len: int) -> Batching:
    """Return how a model is served.

    Args:
        config: a Hugging Face config, as a dict.
        max_seq_len: prompt plus answer of the longest request, in tokens.
    """
    switch = rope_switch(config)
    crosses = switch is not None and max_seq_len > switch
    return "static" if crosses or config.get("model_type") in STATIC_BATCHES else "continuous"
