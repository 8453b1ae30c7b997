"""What to change so that a deployment fits: the nearest setting of each kind, each planned before it is named.

Single changes come first; pairs are tried where no single one is enough. Nothing is suggested that its own plan refuses: a tensor-parallel
size that does not divide, a scheme that the GPU or the model does not take, a search that lacks calibration data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from trtbuild.checks import check_deployment
from trtbuild.convert.work import Work
from trtbuild.errors import TrtbuildError
from trtbuild.gpus import find_gpu
from trtbuild.hardware import KV_CACHE, SCHEME, Kind, verdict
from trtbuild.memory.change import CONVERTING, changed, planned
from trtbuild.memory.estimate import Estimate, estimate
from trtbuild.memory.fit import problems
from trtbuild.memory.pool import longest_sequence, smallest_fraction
from trtbuild.spec import Deployment
from trtbuild.targets.base import check_job

Settings = dict[str, Any]
#: GPUs of a node when hardware.count is empty.
_NODE = 8
#: Schemes by how little they change, and how many are named at most.
_SCHEMES = (
    "fp8",
    "fp8_per_channel_per_token",
    "nvfp4",
    "int4_awq",
    "int4_gptq",
    "int4_rtn",
    "int8_weight_only",
    "int4_weight_only",
)
_MOST = 6
#: Kinds of changes that are tried together.
_PAIRS = (("scheme", "kv"), ("scheme", "length"), ("scheme", "batch"), ("tp", "scheme"), ("tp", "kv"), ("tp", "length"))
_FEWEST_TOKENS = 512
_SHORTEST = 256


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Settings with which the deployment fits, as its plan says.

    Attributes:
        settings: dotted key of trtbuild.yaml -> value.
        estimate: of the changed deployment.
    """

    settings: Settings
    estimate: Estimate

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())


def suggestions(it: Estimate, work: Work, *, copies: int) -> list[Suggestion]:
    """Return what to change; empty when nothing that was tried fits.

    Args:
        it: an estimate that does not fit.
        work: what makes its checkpoint.
        copies: of the model on each GPU.
    """
    kinds, search = _kinds(it), _Search(work, copies)
    found = [hit for options in kinds.values() if (hit := search.first(options)) is not None]
    if any(hit.estimate.parallel.world_size <= it.parallel.world_size for hit in found):
        return found[:_MOST]
    for one, other in _PAIRS:
        if found and "tp" in (one, other):
            continue  # more GPUs alone are enough
        hit = search.first({**a, **b} for a, b in product(kinds[one], kinds[other]))
        found += [hit] if hit else []
    return found[:_MOST]


class _Search:
    """Tries settings; what is written by the same settings is planned once."""

    def __init__(self, work: Work, copies: int) -> None:
        self._base, self._copies = work, copies
        self._works: dict[str, Work | None] = {}

    def first(self, options: Iterable[Settings]) -> Suggestion | None:
        """Return the first settings that fit."""
        for settings in options:
            try:
                deployment = changed(self._base.deployment, settings, origin="suggestion")
                check_deployment(deployment)
                work = self._planned(deployment, settings)
                if work is None:
                    continue
                result = estimate(*work.in_memory, copies=self._copies)
                if problems(result):
                    continue
                check_job(work.job())
            except TrtbuildError:
                continue
            return Suggestion(settings, result)
        return None

    def _planned(self, deployment: Deployment, settings: Settings) -> Work | None:
        """Return what makes the checkpoint of a deployment, None when nothing does."""
        key = repr([(name, value) for name, value in settings.items() if name.startswith(CONVERTING)])
        if key not in self._works:
            try:
                self._works[key] = planned(deployment, self._base, settings, is_done=True)
            except TrtbuildError:
                self._works[key] = None
        work = self._works[key]
        return work and replace(work, deployment=deployment)


def _kinds(it: Estimate) -> dict[str, list[Settings]]:
    """Return kind of change -> settings, the nearest first."""
    limits, deployment = it.limits, it.deployment
    return {
        "fraction": [{"kv_cache.free_gpu_memory_fraction": value} for value in _fractions(it)],
        "length": [{"limits.max_seq_len": value} for value in _lengths(it)],
        "kv": [{"quantization.kv_cache": name} for name in _formats(it, KV_CACHE, ("fp8", "int8"), deployment.quantization.kv_cache)],
        "tokens": [{"limits.max_num_tokens": value} for value in _halves(limits.max_num_tokens, max(_FEWEST_TOKENS, limits.max_batch_size))],
        "batch": [{"limits.max_batch_size": value} for value in _halves(limits.max_batch_size, 1)],
        "scheme": [{"quantization.scheme": name} for name in _formats(it, SCHEME, _SCHEMES, deployment.quantization.scheme)],
        "tp": [{"parallel.tp_size": size} for size in _sizes(it)],
        "pp": [{"parallel.tp_size": size, "parallel.pp_size": 1} for size in _sizes(it)] if it.parallel.pp_size > 1 else [],
    }  # fmt: skip


def _sizes(it: Estimate) -> Iterator[int]:
    """Larger tensor-parallel sizes within a node; smaller ones when there are too few GPUs."""
    most = (it.deployment.hardware.count or _NODE) // it.parallel.pp_size
    sizes = [size for size in range(1, most + 1) if size != it.parallel.tp_size]
    return iter(sorted(sizes, key=lambda size: (size < it.parallel.tp_size, abs(size - it.parallel.tp_size))))


def _formats(it: Estimate, kind: Kind, names: Iterable[str], now: str) -> list[str]:
    gpu, target = it.deployment.hardware.gpu, it.deployment.target
    if kind is SCHEME and now != "none":
        names = [name for name in names if name.startswith("int4") or name == "nvfp4"]
    others = [name for name in names if name != now]
    if gpu is None:
        return others
    sm = find_gpu(gpu).sm
    return [name for name in others if verdict(kind, name, target=target, sm=sm).state == "supported"]


def _halves(value: int, least: int) -> Iterator[int]:
    while (value := value // 2) >= least:
        yield value


def _lengths(it: Estimate) -> Iterator[int]:
    """The longest sequence that the pool as it is holds, then halves: a shorter one leaves smaller buffers too."""
    caches = [rank.cache for rank in it.ranks]
    longest = longest_sequence(caches, it.pool, it.limits.max_beam_width, it.limits.max_seq_len)
    if 0 < longest < it.limits.max_seq_len:
        yield longest
    yield from _halves(it.limits.max_seq_len, _SHORTEST)


def _fractions(it: Estimate) -> Iterator[float]:
    caches = [rank.cache for rank in it.ranks]
    if it.copies > 1 or not it.pool.free_bytes:
        return
    fraction = smallest_fraction(caches, it.pool, it.limits.max_seq_len, it.limits.max_beam_width)
    if fraction is not None and fraction > it.deployment.kv_cache.free_gpu_memory_fraction:
        yield fraction
