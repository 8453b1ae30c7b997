"""Ragged attention against one dense attention per request."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from trtbuild.reference.attention import StepPlan, ragged_attention

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
PAGE = 4


class OneLayerCache:
    """Stands in for transformers' paged cache: one layer, shuffled slots."""

    def __init__(self, num_slots: int) -> None:
        self.layer_to_allocator = [self]
        self.keys = torch.randn(num_slots, KV_HEADS, HEAD_DIM)
        self.values = torch.randn(num_slots, KV_HEADS, HEAD_DIM)

    def get_cache_for_block_table(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (-1, PAGE, KV_HEADS, HEAD_DIM)
        return self.keys.view(shape), self.values.view(shape)


class Layer(torch.nn.Module):
    layer_idx = 0


def dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, softcap: float | None
) -> torch.Tensor:
    """The oracle: [tokens, heads, head_dim] of one request, keys being its last tokens' and all before."""
    past = len(keys) - len(query)
    distance = torch.arange(past, len(keys)).unsqueeze(1) - torch.arange(len(keys))
    mask = (distance >= 0) & (distance < (window or len(keys)))
    repeated = [tensor.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for tensor in (keys, values)]
    if softcap is None:
        return scaled_dot_product_attention(query.transpose(0, 1), *repeated, attn_mask=mask).transpose(0, 1)
    scores = torch.einsum("qhd,hkd->hqk", query, repeated[0]) / HEAD_DIM**0.5
    weights = torch.where(mask, torch.exp(softcap * torch.tanh(scores / softcap)), 0.0)
    return torch.einsum("hqk,hkd->qhd", weights / weights.sum(-1, keepdim=True), repeated[1])


REQUESTS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=6)


@settings(deadline=None)
@given(REQUESTS, st.sampled_from([None, 1, 3, 8]), st.sampled_from([None, 0.5, 5.0]), st.integers(0, 1000))
def test_every_request_attends_to_its_own_visible_keys(
    requests: list[tuple[int, int]], window: int | None, softcap: float | None, seed: int
) -> None:
    torch.manual_seed(seed)
    total = sum(queries + past for queries, past in requests)
    cache = OneLayerCache(-(-(total + 1) // PAGE) * PAGE)
    slots = torch.randperm(total) + 1
    query_ends, key_ends, new_rows = [0], [0], []
    for queries, past in requests:
        query_ends.append(query_ends[-1] + queries)
        key_ends.append(key_ends[-1] + queries + past)
        new_rows += range(key_ends[-1] - queries, key_ends[-1])
    query = torch.randn(1, HEADS, query_ends[-1], HEAD_DIM)
    new: list[Any] = [tensor[slots[new_rows]].transpose(0, 1).unsqueeze(0) for tensor in (cache.keys, cache.values)]
    reads = slots if any(past for _, past in requests) else slots[:0]
    plan = StepPlan(query_ends, key_ends, reads, cache, torch.float32)
    output, weights = ragged_attention(
        Layer(), query, *new, None, ragged_plan=plan, sliding_window=window, softcap=softcap
    )
    assert weights is None and output.shape == (1, query_ends[-1], HEADS, HEAD_DIM)
    for index in range(len(requests)):
        mine = slice(query_ends[index], query_ends[index + 1])
        own = slots[key_ends[index] : key_ends[index + 1]]
        expected = dense(query[0, :, mine].transpose(0, 1), cache.keys[own], cache.values[own], window, softcap)
        assert torch.allclose(output[0, mine], expected, atol=1e-5)


def test_padding_at_most_doubles_the_keys_of_a_decoding_request() -> None:
    lengths = [3, 300, 160, 2, 40, 170, 41]
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    plan = StepPlan(list(range(len(lengths) + 1)), ends, torch.arange(ends[-1]), None, torch.float32)
    groups = plan.cut(None).decodes
    padded = {int(row): group.length for group in groups for row in group.rows}
    assert sorted(padded) == list(range(len(lengths)))
    assert all(length <= padded[row] <= 2 * length for row, length in enumerate(lengths))
