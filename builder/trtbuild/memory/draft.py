"""The second model of speculative decoding: its weights on each rank and its KV cache, from headers and config.json.

A draft model that trtbuild can convert is cut like the target; heads (Medusa, EAGLE, ReDrafter) are no complete model and are held whole
on every rank, with a KV cache for the decoder layers that their config.json names. Modes without a second model take nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, plan_conversion
from trtbuild.dims import ConfigReader
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.memory.kv import Group, RankCache, rank_caches
from trtbuild.memory.lines import Line
from trtbuild.memory.weights import rank_weights
from trtbuild.parallel import Parallel
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Deployment


@dataclass(frozen=True, slots=True)
class Draft:
    """A second model.

    Attributes:
        lines: on every rank.
        cache: on every rank, None without attention of its own.
    """

    lines: tuple[Line, ...]
    cache: RankCache | None

    def beside(self, cache: RankCache) -> RankCache:
        """Return a rank's cache with this model's beside it: every token is in both, and this one has no windows."""
        if self.cache is None:
            return cache
        extra, groups = self.cache.token_bytes, list(cache.groups)
        first = next((number for number, group in enumerate(groups) if group.window is None), None)
        if first is None:
            groups.insert(0, Group(None, self.cache.groups[0].layers, extra))
        else:
            groups[first] = replace(groups[first], token_bytes=groups[first].token_bytes + extra)
        return RankCache(tuple(groups), cache.tokens_per_block)


def plan_draft(deployment: Deployment, parallel: Parallel, element: float) -> Draft:
    """Return what the draft model of a deployment that has one takes.

    Raises:
        TrtbuildError: the folder cannot be opened.
        UsageError: it cannot be cut as the target is.
    """
    assert deployment.speculative.draft_model is not None
    source = SourceCheckpoint.open(Path(deployment.speculative.draft_model))
    per_block = deployment.kv_cache.tokens_per_block
    if deployment.speculative.mode == "draft_target":
        cut = Parallel(parallel.tp_size, 1)
        try:
            plan = plan_conversion(OpenedSource(source), ConversionOptions(parallel=cut))
        except TrtbuildError as error:
            raise UsageError(
                f"speculative.draft_model {source.path}: {error.message}", hint=error.hint or "use another draft model"
            ) from error
        weights = rank_weights(plan.layout, is_unified=False)[0]
        everywhere = (None,) * plan.dims.num_layers
        cache = rank_caches(plan.dims, cut, everywhere, element=element, tokens_per_block=per_block)[0]
        words = f"{source.path.name}: its own cut over tp {parallel.tp_size}, in its own dtype"
        return Draft((Line("draft model", weights.nbytes, "user", words, "exact"),), cache)
    nbytes = sum(tensor.nbytes for tensor in source.tensors.values())
    words = f"{source.path.name}: all tensors of the heads, whole on every rank"
    line = Line("draft heads", nbytes, "user", words)
    return Draft((line,), _head_cache(source.config, parallel, element, per_block))


def _head_cache(
    config: Mapping[str, Any], parallel: Parallel, element: float, tokens_per_block: int
) -> RankCache | None:
    """Return the cache of the decoder layers that heads have, as far as their config.json names them."""
    try:
        read = ConfigReader(config, "the draft model's config.json")
        layers = read.integer("num_hidden_layers")
        heads = read.integer("num_attention_heads")
        kv_heads = read.integer("num_key_value_heads", heads)
        head_dim = read.integer("head_dim", read.integer("hidden_size") // heads)
    except TrtbuildError:
        return None
    local = max(1, math.ceil(kv_heads / parallel.tp_size))
    return RankCache((Group(None, layers, int(2 * layers * local * head_dim * element)),), tokens_per_block)
