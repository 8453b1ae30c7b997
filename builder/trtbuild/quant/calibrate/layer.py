"""Calibration of one decoder layer: run it on all rows, and find the recipes of its linears.

Memory: while the layer runs it is in memory, in the calibration dtype, with the second moments that fit into `memory_bytes` beside the codes
of the largest linear. Inputs of a group that does not fit go to a file, its weights as well; its moments are summed up and its recipes found
when the layer's memory was given back. Then there is room for one matrix of in * in float32, the codes of one linear, and some row blocks.
Experts with inputs of their own have small moments, which stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trtbuild.convert.execute import digest_source
from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
from trtbuild.quant.calibrate.linears import LinearGroup, has_own_inputs
from trtbuild.quant.calibrate.observe import moments_bytes, observing_cache, watch
from trtbuild.quant.calibrate.state import Progress, work_file
from trtbuild.quant.recipes import Recipe, Recipes, write_recipes
from trtbuild.quant.search import SEARCHES, Feed
from trtbuild.quant.search.apply import quantize
from trtbuild.quant.search.group import Linear, ScaleGroup
from trtbuild.quant.search.moments import InputMoments
from trtbuild.quant.search.rows import FloatRows, Rows, StoredRows, row_blocks
from trtbuild.safetensors_file import TensorReader

if TYPE_CHECKING:
    from trtbuild.streaming.activations import Activations
    from trtbuild.streaming.model import LayerModel


class LayerWork:
    """The work on one decoder layer, with what goes in and out."""

    def __init__(
        self,
        plan: ConversionPlan,
        model: LayerModel,
        index: int,
        inputs: Activations,
        outputs: Activations,
        *,
        folder: Path,
        dtype: str,
    ) -> None:
        self._plan, self._model, self._index = plan, model, index
        self._inputs, self._outputs = inputs, outputs
        self._folder, self._dtype = folder, dtype
        self._prefix = f"{model.layer_name(index)}."

    def calibrate(
        self,
        groups: Sequence[LinearGroup],
        progress: Progress,
        *,
        memory_bytes: int,
        advance: Callable[[int], None],
        feed: Feed,
    ) -> None:
        """Write the recipes, note the ranges, and put the outputs that the next layer gets.

        Raises:
            TrtbuildError: an activation is not finite.
        """
        ranges: dict[str, float] = {}
        is_fed = feed == "quantized" and any(group.search for group in groups)
        with self._model.layer(self._index) as module:
            large = self._large(groups, module, memory_bytes)
            files = {group: work_file(self._folder, "inputs", number) for number, group in enumerate(large)}
            cache = observing_cache()
            with watch(groups, module, self._prefix, files) as found:
                self._run_rows(cache=cache, advance=advance)
            self._note_cache(cache, found, progress)
            for group in (group for group in groups if group not in files):
                held = {linear.module: FloatRows(self._weight(linear, module)) for linear in group.linears}
                ranges |= self._finish(group, held, found)
            stored = {group: self._store(group, module) for group in large}
            if is_fed and not large:
                self._feed_quantized(groups, module)
        for group, weights in stored.items():
            ranges |= self._finish(group, weights, found)
            for rows in weights.values():
                rows.remove()
        if is_fed and large:
            with self._model.layer(self._index) as module:
                self._feed_quantized(groups, module)
        progress.input_amax |= {linear.module: ranges[linear.module] for group in groups for linear in group.linears}

    def _large(self, groups: Sequence[LinearGroup], module: Any, memory_bytes: int) -> list[LinearGroup]:
        """Return the groups whose second moments do not fit into memory while the layer is there."""
        large, moments, codes = [], 0, 0
        for group in groups:
            size = moments_bytes(group, module, self._prefix)
            largest = max(self._weight(linear, module).numel() for linear in group.linears) if group.search else 0
            if size and not has_own_inputs(group) and moments + size + max(codes, largest) > memory_bytes:
                large.append(group)
            else:
                moments, codes = moments + size, max(codes, largest)
        return large

    def _weight(self, linear: Any, module: Any) -> Any:
        return linear.weight(module, self._prefix).detach()

    def _run_rows(self, *, cache: Any, advance: Callable[[int], None]) -> None:
        for row in range(len(self._inputs)):
            hidden = self._model.run(self._index, self._inputs.get(row).to(self._model.device), cache=cache)
            self._outputs.put(row, hidden)
            advance(hidden.shape[1])

    def _note_cache(self, cache: Any, found: Mapping[str, InputMoments], progress: Progress) -> None:
        k_amax, v_amax = float(cache.k_amax), float(cache.v_amax)
        self._require_finite(
            {
                **{f"the input of {name}": float(moments.amax.max()) for name, moments in found.items()},
                f"the keys of layer {self._index}": k_amax,
                f"the values of layer {self._index}": v_amax,
            }
        )
        progress.k_amax.append(k_amax)
        progress.v_amax.append(v_amax)

    def _store(self, group: LinearGroup, module: Any) -> dict[str, StoredRows]:
        """Put the weights of a group into files."""
        stored = {}
        for number, linear in enumerate(group.linears):
            weight = self._weight(linear, module)
            file = work_file(self._folder, f"weights-{group.linears[0].module}", number)
            stored[linear.module] = StoredRows(file, weight.shape[1], device=weight.device)
            for rows in row_blocks(weight):
                stored[linear.module].append(weight[rows])
        return stored

    def _finish(
        self, group: LinearGroup, weights: Mapping[str, Rows], found: dict[str, InputMoments]
    ) -> dict[str, float]:
        """Return the ranges of a group's inputs as they are multiplied, smoothed if they are to be; write its recipes, drop its moments."""
        moments = {linear.module: found.pop(linear.module) for linear in group.linears}
        ranges = {name: float(each.amax.max()) for name, each in moments.items()}
        if group.search is None:
            return ranges
        for each in {id(each): each for each in moments.values()}.values():
            each.recall()
        linears = [Linear(linear.module, weights[linear.module], moments[linear.module]) for linear in group.linears]
        recipes = SEARCHES[group.search.kind].run(ScaleGroup(linears, self._plan.layout.dtype, group.search))

        def noted() -> Iterator[tuple[str, Recipe]]:
            for name, recipe in recipes:
                ranges[name] = _range_of(moments[name], recipe)
                yield name, recipe

        write_recipes(self._folder, self._index, noted())
        return ranges

    def _feed_quantized(self, groups: Sequence[LinearGroup], module: Any) -> None:
        """Round the weights and run all rows again: the next layer gets what this one will make of them."""
        recipes = Recipes.open(self._folder, self._index)
        with torch.no_grad(), TensorReader() as reader:
            for group in groups:
                if group.search is None:
                    continue
                is_per_tensor = group.search.is_per_tensor
                for linear in group.linears:
                    quantize(self._weight(linear, module), linear.module, recipes, reader, is_per_tensor=is_per_tensor)
        self._run_rows(cache=None, advance=lambda _: None)

    def _require_finite(self, observed: Mapping[str, float]) -> None:
        for what, value in observed.items():
            if not isfinite(value):
                # Damaged weights are the likelier cause, and are named better.
                digest_source(self._plan, self._plan.layout.parts, advance=lambda _: None)
                raise TrtbuildError(
                    f"calibration in {self._dtype}: {what} reached {value}",
                    hint="use --calibration-dtype float32 or bfloat16",
                )


def _range_of(moments: InputMoments, recipe: Recipe) -> float:
    """Return the range of a linear's inputs as it multiplies with them: smoothed, if they are to be."""
    if recipe.input_amax is not None:
        return float(recipe.input_amax[0])
    if recipe.pre_quant_scale is None:
        return float(moments.amax.max())
    factor = torch.from_numpy(recipe.pre_quant_scale).to(moments.amax.device)
    return float((moments.amax * factor).max())
