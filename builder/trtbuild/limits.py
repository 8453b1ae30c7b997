"""What the length and size limits of a deployment come to for a given model."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.errors import UsageError
from trtbuild.spec import Deployment

#: Tokens of the KV pool when nothing is said, at most.
_DEFAULT_KV_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class ResolvedLimits:
    """Limits with every default filled in; all in tokens but for the two counts."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    tokens_per_block: int
    num_blocks: int

    @property
    def kv_tokens(self) -> int:
        """Size of the KV pool in tokens."""
        return self.num_blocks * self.tokens_per_block


def resolve_limits(deployment: Deployment, max_position_embeddings: int) -> ResolvedLimits:
    """Fill in the defaults and check the limits against the model and against each other.

    Raises:
        UsageError: a limit exceeds the model's positions, or the pool cannot hold one sequence.
    """
    limits, cache = deployment.limits, deployment.kv_cache
    max_seq_len = limits.max_seq_len or max_position_embeddings
    if max_seq_len > max_position_embeddings:
        raise UsageError(
            f"limits.max_seq_len={max_seq_len} exceeds the {max_position_embeddings} positions of the model",
            hint=f"use at most {max_position_embeddings}",
        )
    if limits.max_num_tokens < limits.max_batch_size:
        raise UsageError(
            f"limits.max_num_tokens={limits.max_num_tokens} is below limits.max_batch_size={limits.max_batch_size}",
            hint="every request of a batch gets at least one token in a step; raise the one or lower the other",
        )
    wanted = cache.max_tokens or max(min(limits.max_batch_size * max_seq_len, _DEFAULT_KV_TOKENS), max_seq_len)
    num_blocks = -(-wanted // cache.tokens_per_block)
    needed = -(-max_seq_len // cache.tokens_per_block)
    if num_blocks < needed:
        raise UsageError(
            f"kv_cache.max_tokens={cache.max_tokens} makes {num_blocks} blocks, one sequence of {max_seq_len} tokens needs {needed}",
            hint=f"use kv_cache.max_tokens >= {needed * cache.tokens_per_block}, or max_seq_len <= {num_blocks * cache.tokens_per_block}",
        )
    return ResolvedLimits(limits.max_batch_size, max_seq_len, limits.max_num_tokens, cache.tokens_per_block, num_blocks)
