"""The paged KV cache of one rank: bytes per token, blocks of a sequence, and how a pool of bytes becomes blocks.

Formulas: checkpoint specification 7.2. A token takes 2 (keys and values) x layers x kv heads of the rank x head size x bytes of a number;
kv heads are replicated when there are more ranks than heads. The device pool is rounded up to whole blocks, the host pool down, and all
ranks take the smallest number of blocks. Layers of one window share a pool of their own, whose part of the memory is what one sequence of
full length needs of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trtbuild.dims import ModelDims
from trtbuild.dtypes import SIZES
from trtbuild.memory.windows import Windows
from trtbuild.parallel import Parallel

#: Bytes of one number by KV cache algorithm; None is the model's dtype.
ELEMENT_BYTES: dict[str, float] = {"FP8": 1, "INT8": 1, "NVFP4": 0.5 + 1 / 16}


@dataclass(frozen=True)
class Group:
    """Layers of a rank that share a window.

    Attributes:
        window: in tokens, None for full attention.
        layers: how many.
        token_bytes: of all of them together.
    """

    window: int | None
    layers: int
    token_bytes: int

    def kept(self, length: int) -> int:
        """Return how many tokens of a sequence of some length are kept."""
        return length if self.window is None else min(self.window, length)

    def blocks(self, length: int, tokens_per_block: int) -> int:
        """Return the blocks that one sequence takes."""
        return math.ceil(self.kept(length) / tokens_per_block)


@dataclass(frozen=True)
class RankCache:
    """The cache of one rank.

    Attributes:
        groups: layers by window, full attention first.
        tokens_per_block: of all groups.
    """

    groups: tuple[Group, ...]
    tokens_per_block: int

    @property
    def token_bytes(self) -> int:
        """Bytes of a token that every layer keeps."""
        return sum(group.token_bytes for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all layers."""
        return self.token_bytes * self.tokens_per_block

    @property
    def has_windows(self) -> bool:
        """Whether some layer keeps less than a whole sequence."""
        return any(group.window is not None for group in self.groups)

    def sequence_bytes(self, length: int) -> int:
        """Return the bytes of one sequence, in whole blocks."""
        per_block = self.tokens_per_block
        return sum(group.blocks(length, per_block) * per_block * group.token_bytes for group in self.groups)

    def blocks(self, pool_bytes: float, full_length: int) -> dict[int | None, int]:
        """Return window -> blocks that a pool of some bytes is made into, rounded up."""
        if not self.groups:
            return {}
        shares = {group: group.kept(full_length) * group.token_bytes for group in self.groups}
        whole = sum(shares.values())
        return {
            group.window: max(
                math.ceil(_steady(pool_bytes * share / whole / (group.token_bytes * self.tokens_per_block))), 0
            )
            for group, share in shares.items()
        }

    def pool_bytes(self, blocks: dict[int | None, int]) -> int:
        """Return the bytes of so many blocks of each window."""
        per_block = self.tokens_per_block
        return sum(blocks.get(group.window, 0) * per_block * group.token_bytes for group in self.groups)

    def sequences(self, blocks: dict[int | None, int], length: int) -> int:
        """Return how many sequences of a length fit at once."""
        found = [
            blocks.get(group.window, 0) // needed
            for group in self.groups
            if (needed := group.blocks(length, self.tokens_per_block))
        ]
        return min(found, default=0)


def _steady(value: float) -> float:
    """Return a number of blocks without the last bits, so that an exact one is not rounded up to the next."""
    return round(value, 6)


def element_bytes(quant_algo: str | None, dtype: str) -> float:
    """Return the bytes of one number of the cache.

    Args:
        quant_algo: of the cache, None for the model's dtype.
        dtype: safetensors name of the model's.
    """
    return SIZES[dtype] if quant_algo is None else ELEMENT_BYTES[quant_algo]


def rank_caches(
    dims: ModelDims, parallel: Parallel, windows: Windows, *, element: float, tokens_per_block: int
) -> list[RankCache]:
    """Return the cache of every rank in file order.

    Args:
        dims: of the model.
        parallel: how the server cuts it.
        windows: of every layer.
        element: bytes of one number.
        tokens_per_block: of the paged cache.
    """
    heads = max(1, math.ceil(dims.num_kv_heads / parallel.tp_size))
    per_layer = int(2 * heads * dims.head_dim * element)
    stages = []
    for stage in range(parallel.pp_size):
        here = [windows[layer] for layer in parallel.layers(dims.num_layers, stage)]
        groups = tuple(
            Group(window, here.count(window), here.count(window) * per_layer)
            for window in sorted(set(here), key=lambda window: (window is not None, window or 0))
        )
        stages.append(RankCache(groups, tokens_per_block))
    return [stages[rank.pp_rank] for rank in parallel.ranks()]


def latent_cache(values_per_token: int, *, element: float, tokens_per_block: int) -> RankCache:
    """Return the cache of a model with latent attention, which every tensor-parallel rank holds whole (`arch.sized`)."""
    return RankCache((Group(None, 1, int(values_per_token * element)),), tokens_per_block)


def smallest(blocks: Iterable[dict[int | None, int]]) -> dict[int | None, int]:
    """Return window -> the fewest blocks that a rank with such layers has: all ranks take that many."""
    found: dict[int | None, int] = {}
    for each in blocks:
        for window, count in each.items():
            found[window] = min(count, found.get(window, count))
    return found


def host_blocks(cache: RankCache, host_bytes: int) -> int:
    """Return the blocks of the host pool, rounded down."""
    return host_bytes // cache.block_bytes if cache.block_bytes else 0


def waste(length: int, tokens_per_block: int) -> dict[str, Any]:
    """Return the tokens that whole blocks waste: at one length, and on average over all lengths, which is half a block."""
    at_length = -length % tokens_per_block
    average = (tokens_per_block - 1) / 2
    return {
        "tokens_at_length": at_length,
        "average_tokens": average,
        "share_at_length": at_length / (length + at_length),
        "average_share": average / (length + average),
    }


def describe(cache: RankCache) -> list[dict[str, Any]]:
    """Return the groups as plain data."""
    return [
        {"window": group.window, "layers": group.layers, "bytes_per_token": group.token_bytes} for group in cache.groups
    ]
