"""What the length and size limits of a deployment come to for a given model, and where each value comes from.

Rules: checkpoint specification 4.4 (what the builder does, in its order) and 7.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtbuild.errors import UsageError
from trtbuild.spec import Deployment

#: Who decided a value: trtbuild.yaml or an option, a default, the model's config.json, or a rule over the others.
Origin = Literal["user", "default", "model", "rule"]
#: Requests in a batch and tokens in a step when nothing is said. TensorRT-LLM's own default of 2048 requests reserves buffers that few use.
_DEFAULT_SIZES: dict[str, tuple[int, int]] = {"reference": (16, 512), "tensorrt": (256, 8192), "pytorch": (256, 8192)}
#: Tokens of the KV pool of the target reference when nothing is said, at most.
_DEFAULT_KV_TOKENS = 16384
#: Kinds of rotary scaling whose factor does not lengthen `max_position_embeddings`.
_FACTOR_IS_ONE = ("su", "longrope", "llama3")


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value, who decided it, and in which words."""

    value: int
    origin: Origin
    why: str


@dataclass(frozen=True, slots=True)
class ResolvedLimits:
    """Limits with every default filled in; all in tokens but for the counts.

    Attributes:
        max_input_len: longest prompt that leaves room for one token of answer.
        num_blocks: blocks of the KV pool that were asked for; on a GPU only when max_tokens was given, else what one full batch needs.
        draft_len: tokens that speculation adds to a step of each request.
        origins: name of a limit -> where it comes from.
        notes: what a user should know about how the limits meet.
    """

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    tokens_per_block: int
    num_blocks: int
    max_input_len: int = 0
    max_beam_width: int = 1
    draft_len: int = 0
    origins: Mapping[str, Sourced] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """Size of the KV pool in tokens."""
        return self.num_blocks * self.tokens_per_block

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks that one sequence of max_seq_len needs, beams included."""
        return -(-self.max_seq_len // self.tokens_per_block) * self.max_beam_width


def positions(max_position_embeddings: int, rotary_scaling: Mapping[str, Any] | None) -> int:
    """Return how many positions a model serves: its own, times the factor of a scaling that lengthens them.

    Args:
        max_position_embeddings: of config.json.
        rotary_scaling: the scaling block with `rope_type`, or None.
    """
    scaling = rotary_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = 1.0 if kind in _FACTOR_IS_ONE else float(scaling.get("factor") or 1.0)
    return int(max_position_embeddings * factor)


def resolve_limits(
    deployment: Deployment, max_position_embeddings: int, rotary_scaling: Mapping[str, Any] | None = None
) -> ResolvedLimits:
    """Fill in the defaults and check the limits against the model and against each other.

    Args:
        deployment: the resolved trtbuild.yaml.
        max_position_embeddings: of the model.
        rotary_scaling: its scaling block; see `positions`.

    Raises:
        UsageError: a limit exceeds the model's positions, two limits contradict each other, or the pool cannot hold one sequence.
    """
    limits, cache = deployment.limits, deployment.kv_cache
    batch_default, tokens_default = _DEFAULT_SIZES[deployment.target]
    longest = positions(max_position_embeddings, rotary_scaling)
    max_seq_len = _given(limits.max_seq_len) or Sourced(longest, "model", "positions of the model")
    if max_seq_len.value > longest:
        raise UsageError(
            f"limits.max_seq_len={max_seq_len.value} exceeds the {longest} positions of the model",
            hint=f"use at most {longest}",
        )
    if max_seq_len.value < 2:
        raise UsageError(
            f"{'limits.max_seq_len=1' if limits.max_seq_len else 'the model has 1 position, which'} leaves no room for a prompt and an answer",
            hint="max_seq_len is prompt plus answer: use 2 or more",
        )
    draft_len = deployment.speculative.max_draft_len or 0
    if draft_len >= max_seq_len.value:
        raise UsageError(
            f"speculative.max_draft_len={draft_len} leaves no room within max_seq_len={max_seq_len.value}",
            hint=f"use at most {max_seq_len.value - 1}; 3 to 5 is usual",
        )
    max_batch_size = _given(limits.max_batch_size) or _batch(deployment, draft_len + 1, batch_default)
    windows = _windows(cache.max_attention_window, longest, max_seq_len.value)
    max_num_tokens = _num_tokens(deployment, max_batch_size.value * (draft_len + 1), max_seq_len.value, tokens_default)
    max_input_len, notes = _input_len(deployment, max_seq_len.value, max_num_tokens.value)
    beams = limits.max_beam_width
    needed = -(-max_seq_len.value // cache.tokens_per_block) * beams
    pool = _pool(deployment, max_batch_size.value * beams, max_seq_len.value)
    num_blocks = -(-pool.value // cache.tokens_per_block)
    if num_blocks < needed:
        raise UsageError(
            f"kv_cache.max_tokens={cache.max_tokens} makes {num_blocks} blocks, one sequence of {max_seq_len.value} tokens needs {needed}",
            hint=f"use kv_cache.max_tokens >= {needed * cache.tokens_per_block}, "
            f"or max_seq_len <= {num_blocks // beams * cache.tokens_per_block}",
        )
    return ResolvedLimits(
        max_batch_size.value,
        max_seq_len.value,
        max_num_tokens.value,
        cache.tokens_per_block,
        num_blocks,
        max_input_len=max_input_len.value,
        max_beam_width=beams,
        draft_len=draft_len,
        origins={
            "max_batch_size": max_batch_size,
            "max_seq_len": max_seq_len,
            "max_num_tokens": max_num_tokens,
            "max_input_len": max_input_len,
            "kv_tokens": Sourced(num_blocks * cache.tokens_per_block, pool.origin, pool.why),
        },
        notes=(*notes, *windows, *_blocks(cache.tokens_per_block, max_seq_len.value)),
    )


def _batch(deployment: Deployment, least: int, default: int) -> Sourced:
    """Return the requests of a batch when none are given: no more than the tokens of a step serve, each with its draft."""
    tokens = deployment.limits.max_num_tokens
    if tokens is None or tokens // least >= default:
        return Sourced(default, "default", f"of the target {deployment.target}")
    if tokens < least:
        raise UsageError(
            f"limits.max_num_tokens={tokens} is below the {least} tokens that a step of one request takes with its draft",
            hint=f"use limits.max_num_tokens >= {least}, or a smaller speculative.max_draft_len",
        )
    return Sourced(tokens // least, "rule", "what limits.max_num_tokens serves in one step")


def _windows(asked: tuple[int, ...], longest: int, max_seq_len: int) -> tuple[str, ...]:
    """Return a note about windows that are none.

    Raises:
        UsageError: one is beyond the positions of the model.
    """
    beyond = sorted({window for window in asked if window > longest})
    if beyond:
        raise UsageError(
            f"kv_cache.max_attention_window: {', '.join(map(str, beyond))} exceeds the {longest} positions of the model",
            hint=f"use at most {longest} for a layer that attends to everything, or leave the key out",
        )
    if asked and min(asked) >= max_seq_len:
        return (
            f"kv_cache.max_attention_window={list(asked)} is no window: no sequence is longer than max_seq_len={max_seq_len}",
        )
    return ()


def _blocks(tokens_per_block: int, max_seq_len: int) -> Iterator[str]:
    if tokens_per_block > max_seq_len:
        yield (
            f"kv_cache.tokens_per_block={tokens_per_block} is more than a sequence has: each takes a whole block, most of it empty "
            f"(max_seq_len={max_seq_len})"
        )


def _given(value: int | None) -> Sourced | None:
    return Sourced(value, "user", "as given") if value is not None else None


def _num_tokens(deployment: Deployment, least: int, max_seq_len: int, default: int) -> Sourced:
    """Return the tokens of a step; every request of a batch gets at least one, with speculation its draft as well."""
    limits = deployment.limits
    if limits.max_num_tokens is not None:
        if limits.max_batch_size is not None and limits.max_num_tokens < least:
            raise UsageError(
                f"limits.max_num_tokens={limits.max_num_tokens} is below the {least} tokens that a step of "
                f"limits.max_batch_size={limits.max_batch_size} requests takes",
                hint="every request of a batch gets at least one token in a step, and its draft; raise the one or lower the other",
            )
        return Sourced(limits.max_num_tokens, "user", "as given")
    most = (limits.max_batch_size or least) * max_seq_len
    if default > most:
        return Sourced(max(most, least), "rule", "max_batch_size x max_seq_len; more is never used")
    if default >= least:
        return Sourced(default, "default", f"of the target {deployment.target}")
    return Sourced(least, "rule", "one token for each request of a batch, and its draft")


def _input_len(deployment: Deployment, max_seq_len: int, max_num_tokens: int) -> tuple[Sourced, tuple[str, ...]]:
    """Return the longest usable prompt. Without chunked context a prompt is one step (field report EB01)."""
    given = deployment.limits.max_input_len
    chunked = deployment.scheduling.chunked_context or deployment.target == "reference"
    longest = max_seq_len - 1 if chunked else min(max_seq_len - 1, max_num_tokens)
    if given is None:
        if longest < max_seq_len - 1:
            note = (
                f"prompts are limited to {longest} tokens: chunked_context is off and limits.max_num_tokens={max_num_tokens}; "
                f"with it on they may have {max_seq_len - 1}"
            )
            return Sourced(longest, "rule", "max_num_tokens, since chunked_context is off"), (note,)
        return Sourced(longest, "rule", "max_seq_len less one token of answer"), ()
    if given >= max_seq_len:
        raise UsageError(
            f"limits.max_input_len={given} leaves no room for an answer within limits.max_seq_len={max_seq_len}",
            hint=f"max_seq_len is prompt plus answer: use max_input_len <= {max_seq_len - 1}, or a larger max_seq_len",
        )
    if given > longest:
        raise UsageError(
            f"limits.max_input_len={given} exceeds limits.max_num_tokens={max_num_tokens}, and scheduling.chunked_context is off",
            hint=f"use max_num_tokens >= {given}, or chunked_context: true",
        )
    return Sourced(given, "user", "as given"), ()


def _pool(deployment: Deployment, sequences: int, max_seq_len: int) -> Sourced:
    cache = deployment.kv_cache
    if cache.max_tokens is not None:
        return Sourced(cache.max_tokens, "user", "as given")
    full = sequences * max_seq_len
    if deployment.target == "reference":
        most = max(min(full, _DEFAULT_KV_TOKENS), max_seq_len * deployment.limits.max_beam_width)
        return Sourced(
            most,
            "default",
            f"max_batch_size x max_seq_len, at most {_DEFAULT_KV_TOKENS} unless one sequence needs more",
        )
    return Sourced(full, "rule", "a full batch; the GPU's free memory decides")
