"""Attention over the paged cache that reads only what each request needs.

With SDPA, transformers runs a continuous batch as one attention with a block-diagonal mask, so every query is
multiplied with the keys of every request. Here each request meets only its own keys: requests that decode one token
are padded to a common length and run as one batched call, prompts (and pieces of prompts) one by one. Registered with
transformers' `AttentionInterface`; the mask, which grows with batch tokens x pool size, is never built.

Knows the keyword arguments of a continuous batching step; does not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

RAGGED = "trtbuild_ragged"
"""Name under which the attention function is registered."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Requests that add one token each, padded to the longest of them.

    Attributes:
        rows: query rows in the batch, [requests]; None when they are all rows, in order.
        slots: cache slots of their keys, flattened [requests * length]; padding points at slot 0.
        length: keys per request after padding.
        bias: 0 for a key, -inf for padding, [requests, 1, 1, length]; None when nothing is padded.
    """

    rows: torch.Tensor | None
    slots: torch.Tensor
    length: int
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Consecutive query rows [start, stop) of one request.

    Attributes:
        slots: cache slots of its keys, earlier ones and new ones; None when there are no earlier ones.
        mask: True where a query may look, [queries, keys]; None when that is plain causal over the new keys.
    """

    start: int
    stop: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A batch cut into what is computed together."""

    decodes: tuple[DecodeGroup, ...]
    pieces: tuple[PromptPiece, ...]


class StepPlan:
    """How one step's batch is cut; computed once for all layers that look back equally far.

    Args:
        query_ends: cumulative number of query rows, starting with 0, one more entry than there are requests.
        key_ends: the same for keys; a request's keys are its earlier tokens and its new ones.
        slots: cache slot of every key, request after request, [key_ends[-1]]; empty when no request has earlier tokens.
        cache: transformers' paged cache.
        dtype: dtype of queries and keys, which a padding bias must have too.
    """

    def __init__(
        self, query_ends: Sequence[int], key_ends: Sequence[int], slots: torch.Tensor, cache: Any, dtype: torch.dtype
    ) -> None:
        self._requests = list(zip(pairwise(query_ends), pairwise(key_ends), strict=True))
        self._num_rows = query_ends[-1]
        self._slots, self._cache, self._dtype = slots, cache, dtype
        self._cuts: dict[int | None, Cut] = {}

    def pages(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values by cache slot, each [slots, kv_heads, head_dim]."""
        keys, values = self._cache.layer_to_allocator[layer_idx].get_cache_for_block_table(layer_idx)
        return keys.flatten(0, 1), values.flatten(0, 1)

    def cut(self, window: int | None) -> Cut:
        """Return the cut for layers that see the last `window` tokens only, or all of them."""
        if window not in self._cuts:
            self._cuts[window] = self._make_cut(window)
        return self._cuts[window]

    def _make_cut(self, window: int | None) -> Cut:
        decoding: list[tuple[int, int, int]] = []  # (keys, query row, first key)
        pieces: list[PromptPiece] = []
        for (start, stop), (first, last) in self._requests:
            queries, keys = stop - start, last - first
            if queries == 1 < keys:
                visible = keys if window is None else min(keys, window)
                decoding.append((visible, start, last - visible))
                continue
            past = keys - queries
            skipped = 0 if window is None else max(0, past - window + 1)  # out of sight even of the first query
            slots = self._slots[first + skipped : last] if past else None
            pieces.append(PromptPiece(start, stop, slots, _mask(queries, keys, skipped, window)))
        groups = (
            _decode_group(group, self._slots, self._num_rows, self._dtype) for group in _similar_lengths(decoding)
        )
        return Cut(tuple(groups), tuple(pieces))


def _mask(queries: int, keys: int, skipped: int, window: int | None) -> torch.Tensor | None:
    """Return who sees whom, [queries, keys - skipped], the last query being that of the last key."""
    if queries == keys and (window is None or keys <= window):
        return None
    distance = torch.arange(keys - queries, keys).unsqueeze(1) - torch.arange(skipped, keys)
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def _similar_lengths(decoding: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group requests so that padding at most doubles the work of any of them."""
    groups: list[list[tuple[int, int, int]]] = []
    for item in sorted(decoding, reverse=True):
        if groups and 2 * item[0] >= groups[-1][0][0]:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _decode_group(
    group: list[tuple[int, int, int]], slots: torch.Tensor, num_rows: int, dtype: torch.dtype
) -> DecodeGroup:
    group = sorted(group, key=lambda item: item[1])
    length, shortest = max(keys for keys, _, _ in group), min(keys for keys, _, _ in group)
    padded = torch.zeros(len(group), length, dtype=slots.dtype)
    bias = torch.full((len(group), 1, 1, length), float("-inf"), dtype=dtype) if shortest < length else None
    for row, (keys, _, first) in enumerate(group):
        padded[row, :keys] = slots[first : first + keys]
        if bias is not None:
            bias[row, :, :, :keys] = 0.0
    rows = None if len(group) == num_rows else torch.tensor([row for _, row, _ in group])
    return DecodeGroup(rows, padded.flatten(), length, bias)


class StepPlanner:
    """Forward pre-hook of the whole model: plans a continuous batching step, leaves any other forward alone."""

    def __call__(
        self, model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        slots = kwargs.get("read_index")
        if slots is None:
            return None
        (key_ends,) = kwargs["cu_seq_lens_k"].values()
        cache = kwargs["cache"]
        plan = StepPlan(kwargs["cu_seq_lens_q"].tolist(), key_ends.tolist(), slots[0], cache, cache.dtype)
        # With nothing to read back, `cache.update` stores the new keys and values and returns just them.
        return inputs, {**kwargs, "read_index": [index[:0] for index in slots], "ragged_plan": plan}


def ragged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    ragged_plan: StepPlan,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each request of a step.

    Args:
        module: the attention layer; `layer_idx` tells which pages to read.
        query: [1, heads, tokens, head_dim].
        key: new keys, already stored in the cache, [1, kv_heads, tokens, head_dim].
        value: new values, as `key`.
        attention_mask: always None; who sees whom is in the plan.
        scaling: factor of the scores.
        ragged_plan: how this step is cut.
        sliding_window: how many tokens a query sees, itself included; None is all.
        softcap: scores are squeezed into +-softcap (Gemma 2); None leaves them alone.

    Returns:
        The output, [1, tokens, heads, head_dim], and no weights.
    """
    heads, tokens, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    output = query.new_empty(tokens, heads, value.shape[-1])
    cut = ragged_plan.cut(sliding_window)
    key_pages, value_pages = ragged_plan.pages(module.layer_idx)
    by_row = query[0].transpose(0, 1)
    for group in cut.decodes:
        # The query heads that share a key head are the rows of one small matrix: nothing is repeated.
        rows = by_row if group.rows is None else by_row[group.rows]
        attended = _attend(
            rows.reshape(len(rows), kv_heads, heads // kv_heads, head_dim),
            key_pages.index_select(0, group.slots).view(len(rows), group.length, kv_heads, head_dim).transpose(1, 2),
            value_pages.index_select(0, group.slots).view(len(rows), group.length, kv_heads, -1).transpose(1, 2),
            mask=group.bias,
            scaling=scaling,
            softcap=softcap,
        ).reshape(len(rows), heads, -1)
        if group.rows is None:
            output = attended
        else:
            output[group.rows] = attended
    for piece in cut.pieces:
        new = slice(piece.start, piece.stop)
        if piece.slots is None:
            keys, values = key[:, :, new], value[:, :, new]
        else:
            keys = key_pages.index_select(0, piece.slots).transpose(0, 1).unsqueeze(0)
            values = value_pages.index_select(0, piece.slots).transpose(0, 1).unsqueeze(0)
        output[new] = _attend(
            query[:, :, new],
            keys,
            values,
            mask=piece.mask,
            is_causal=piece.mask is None,
            scaling=scaling,
            softcap=softcap,
        )[0].transpose(0, 1)
    return output.unsqueeze(0), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    is_causal: bool = False,
) -> torch.Tensor:
    """Return dense attention, [batch, heads, queries, head_dim].

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, kv_heads, keys, head_dim].
        value: as `key`.
        mask: True, or 0, where a query may look; -inf where not; None when all may be seen.
        scaling: factor of the scores; None is 1 / sqrt(head_dim).
        softcap: scores become softcap x tanh(score / softcap), before the mask; None leaves them alone.
        is_causal: query i sees keys 0 to i only; goes without a mask.
    """
    has_groups = query.shape[1] != key.shape[1]
    if softcap is None:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scaling, enable_gqa=has_groups
        )
    # PyTorch's kernel has no place for the cap. The softmax is in float32, as in transformers' eager attention.
    if has_groups:
        key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def register() -> None:
    """Make `ragged_attention` known to transformers; no mask function goes with the name, so no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(RAGGED, ragged_attention)
