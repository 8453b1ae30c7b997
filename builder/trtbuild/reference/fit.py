"""Whether the sizes of an engine suit each other, checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.support import LEARNED_POSITIONS

MIN_TOKENS_PER_BLOCK = 4
"""Smallest page of transformers' paged cache."""


def check_sizes(config: BatchingConfig) -> None:
    """Raise TrtbuildError if the sizes contradict each other."""
    pool, block = config.max_tokens_in_paged_kv_cache, config.tokens_per_block
    if block < MIN_TOKENS_PER_BLOCK:
        raise TrtbuildError(
            f"tokens_per_block = {block} is too small", hint=f"allowed: at least {MIN_TOKENS_PER_BLOCK}"
        )
    needed = config.blocks_of(config.max_seq_len - 1)
    if config.num_blocks < needed:
        raise TrtbuildError(
            f"max_tokens_in_paged_kv_cache = {pool} makes {config.num_blocks} blocks of {block} tokens, but one request "
            f"of max_seq_len = {config.max_seq_len} needs {needed}",
            hint=f"set it to at least {needed * block}, or max_seq_len to at most {config.num_blocks * block + 1}",
        )
    if config.max_num_tokens < config.max_batch_size:
        raise TrtbuildError(
            f"max_num_tokens = {config.max_num_tokens} is less than max_batch_size = {config.max_batch_size}",
            hint="every request in a batch needs at least one token per step",
        )


def check_positions(config: BatchingConfig, model_config: Mapping[str, Any]) -> None:
    """Raise TrtbuildError if requests may be longer than the model's table of positions.

    Args:
        config: sizes.
        model_config: a Hugging Face config, as a dict.
    """
    # GPT-2's own name comes first, since transformers writes only that one.
    positions = model_config.get("n_positions") or model_config.get("max_position_embeddings")
    if model_config.get("model_type") in LEARNED_POSITIONS and positions and config.max_seq_len > positions:
        raise TrtbuildError(
            f"max_seq_len = {config.max_seq_len} exceeds the {positions} positions of the model",
            hint=f"set max_seq_len to at most {positions}",
        )
