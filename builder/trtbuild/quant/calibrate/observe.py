"""Watches the inputs of a layer's linears, and what it puts into the KV cache, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trtbuild.quant.calibrate.libraries import transformers as import_transformers
from trtbuild.quant.calibrate.linears import LinearGroup, SourceLinear, has_own_inputs
from trtbuild.quant.search import SEARCHES
from trtbuild.quant.search.moments import InputMoments

Hook = Callable[[Any, tuple[Any, ...]], None]


@contextmanager
def watch(
    groups: Sequence[LinearGroup], layer: Any, prefix: str, files: Mapping[LinearGroup, Path] | None = None
) -> Iterator[dict[str, InputMoments]]:
    """Have the inputs of groups noted as long as the block lasts.

    Args:
        groups: of the layer.
        layer: the decoder layer, filled.
        prefix: its name in the whole model, with a dot.
        files: where the inputs of a group lie until its moments are recalled; a group without one sums them up at once.

    Yields:
        Hugging Face module -> its inputs; linears with one input share the object. Complete when the block has ended.
    """
    found: dict[str, InputMoments] = {}
    handles = []
    for group in groups:
        for linears in _with_one_input(group):
            hook = _hook_of(linears[0], layer, prefix)
            weight = linears[0].weight(layer, prefix)
            moments = InputMoments(
                weight.shape[1],
                block=_block_of(group, weight.shape[1]),
                device=weight.device,
                file=(files or {}).get(group),
            )
            found.update({linear.module: moments for linear in linears})
            handles.append(_module_of(linears[0], layer, prefix).register_forward_pre_hook(hook(moments)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
    for moments in found.values():
        moments.finish()


def moments_bytes(group: LinearGroup, layer: Any, prefix: str) -> int:
    """Return the memory that the second moments of a group's inputs take, in bytes."""
    total = 0
    for linears in _with_one_input(group):
        in_features = linears[0].weight(layer, prefix).shape[1]
        total += 4 * in_features * _block_of(group, in_features)
    return total


def _with_one_input(group: LinearGroup) -> list[Sequence[SourceLinear]]:
    """Return the linears of a group by their inputs."""
    return [(linear,) for linear in group.linears] if has_own_inputs(group) else [group.linears]


def _block_of(group: LinearGroup, in_features: int) -> int:
    """Return how many neighbouring channels second moments are kept of: for experts, of which there are many, no more than share a scale."""
    if group.search is None or not SEARCHES[group.search.kind].needs_moments:
        return 0
    return group.search.group_size if has_own_inputs(group) else in_features


def _module_of(linear: SourceLinear, layer: Any, prefix: str) -> Any:
    return layer.get_submodule(linear.place.parameter.removeprefix(prefix).rpartition(".")[0])


def _hook_of(linear: SourceLinear, layer: Any, prefix: str) -> Callable[[InputMoments], Hook]:
    """Return what makes the hook of a linear.

    Every token is shown to every expert, as NVIDIA's exporter does: no expert stays without a range.
    """
    if linear.place.expert is None or linear.place.half is not None:
        return _note_first
    experts, number = _module_of(linear, layer, prefix), linear.place.expert

    def note_inner(moments: InputMoments) -> Hook:
        def hook(_module: Any, arguments: tuple[Any, ...]) -> None:
            # The only linear of an expert whose input is not the layer's: it reads what the other two make.
            gate, up = torch.nn.functional.linear(arguments[0], experts.gate_up_proj[number]).chunk(2, dim=-1)
            moments.add(experts.act_fn(gate) * up)

        return hook

    return note_inner


def _note_first(moments: InputMoments) -> Hook:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> None:
        moments.add(arguments[0])

    return hook


def observing_cache() -> Any:
    """Return a KV cache that keeps nothing but the ranges of what one layer puts into it: `k_amax`, `v_amax`."""
    transformers = import_transformers()

    class ObservingCache(transformers.DynamicCache):  # type: ignore[name-defined,misc]  # the base class is only known at run time
        def __init__(self) -> None:
            super().__init__()
            self.k_amax = self.v_amax = torch.zeros(())

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            self.k_amax = self.k_amax.to(key_states.device).maximum(key_states.abs().amax().float())
            self.v_amax = self.v_amax.to(value_states.device).maximum(value_states.abs().amax().float())
            return key_states, value_states

    return ObservingCache()
