"""Calibration: run the source on sample tokens, layer by layer, note ranges, and find recipes where a scheme wants them.

Memory: one decoder layer in the calibration dtype, or one vocabulary matrix, plus what `memory_bytes` allows for second moments (no less
than those of one scale group) and the temporaries of one linear. Activations are in files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.convert.execute import digest_source
from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
from trtbuild.quant.calibrate.libraries import torch as import_torch
from trtbuild.quant.calibrate.libraries import transformers as import_transformers
from trtbuild.quant.calibrate.linears import LinearGroup, linear_groups
from trtbuild.quant.calibrate.samples import Samples
from trtbuild.quant.calibrate.state import Progress, activations_file, activations_pattern
from trtbuild.quant.recipes import Recipe, write_layer
from trtbuild.quant.search import SEARCHES, Feed
from trtbuild.quant.stats import CalibrationStats

if TYPE_CHECKING:
    from trtbuild.quant.search.moments import InputMoments
    from trtbuild.streaming.activations import Activations
    from trtbuild.streaming.model import LayerModel


def calibrate(
    plan: ConversionPlan,
    samples: Samples,
    *,
    dtype: str,
    folder: Path,
    memory_bytes: int,
    advance: Callable[[int], None],
    feed: Feed = "original",
) -> CalibrationStats:
    """Run the source model on the samples and return the ranges; write the recipes of linears whose scheme has a search.

    Runs where `compute_device` says: the same code on a GPU, where it was never run.

    Args:
        plan: what will be converted; names the linears.
        samples: token ids; each row is fed once, alone.
        dtype: "float32", "float16" or "bfloat16", of weights and activations.
        folder: takes recipes, and what is carried from layer to layer; what an interrupted run of the same work left there is used,
            and the result is the same to the byte.
        memory_bytes: for second moments of inputs.
        advance: called with the number of tokens a layer just finished: in all, tokens times layers.
        feed: whose output a layer passes on: the original's, or (for searched linears) the quantized one's.

    Raises:
        TrtbuildError: torch or transformers is missing, or an activation is not finite.
    """
    import_torch()
    import_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    groups = [linear_groups(plan, layer) for layer in range(plan.dims.num_layers)]
    progress = Progress.open(folder, _key(groups, samples, dtype, feed), len(groups))
    _remove_activations(folder, but_of=progress.layers)
    advance(progress.layers * samples.tokens)
    if progress.layers < plan.dims.num_layers:
        _run(plan, samples, groups, progress, dtype=dtype, folder=folder, memory_bytes=memory_bytes, advance=advance, feed=feed)  # fmt: skip
    return CalibrationStats(
        input_amax=progress.input_amax,
        k_amax=tuple(progress.k_amax),
        v_amax=tuple(progress.v_amax),
        samples=len(samples.rows),
        tokens=samples.tokens,
        digest=samples.digest,
    )


def _key(groups: Sequence[Sequence[LinearGroup]], samples: Samples, dtype: str, feed: Feed) -> str:
    searches = [[asdict(group.search) if group.search else None for group in of_layer] for of_layer in groups]
    return json.dumps([samples.digest, dtype, feed, searches])


def _run(
    plan: ConversionPlan,
    samples: Samples,
    groups: Sequence[Sequence[LinearGroup]],
    progress: Progress,
    *,
    dtype: str,
    folder: Path,
    memory_bytes: int,
    advance: Callable[[int], None],
    feed: Feed,
) -> None:
    """Finish the layers that are left, and keep the progress after each."""
    from trtbuild.streaming.activations import Activations
    from trtbuild.streaming.model import compute_device
    from trtbuild.streaming.source import source_model

    model = source_model(plan, dtype=dtype, device=compute_device())

    def carried(layer: int) -> Activations:
        file = activations_file(folder, layer)
        return Activations(list(map(len, samples.rows)), model.hidden_size, dtype=model.dtype, file=file)

    inputs = carried(progress.layers)
    if progress.layers == 0:
        for number, row in enumerate(samples.rows):
            inputs.put(number, model.embed(row))
    for layer in range(progress.layers, model.num_layers):
        outputs = carried(layer + 1)
        with model.layer(layer) as module:
            work = _Layer(plan, model, layer, module, inputs, outputs, dtype)
            recipes = work.calibrate(groups[layer], progress, memory_bytes=memory_bytes, advance=advance)
            if recipes and feed == "quantized":
                work.feed_quantized(groups[layer], recipes)
        if recipes:
            write_layer(folder, layer, recipes)
        outputs.sync()
        progress.layers = layer + 1
        progress.write(folder)
        inputs.close()
        _remove_activations(folder, but_of=layer + 1)
        inputs = outputs
    inputs.close()
    _remove_activations(folder, but_of=None)


def _remove_activations(folder: Path, *, but_of: int | None) -> None:
    kept = None if but_of is None else activations_file(folder, but_of)
    for file in folder.glob(activations_pattern()):
        if file != kept:
            file.unlink()


class _Layer:
    """A decoder layer that is filled, with what goes in and out."""

    def __init__(
        self,
        plan: ConversionPlan,
        model: LayerModel,
        index: int,
        module: Any,
        inputs: Activations,
        outputs: Activations,
        dtype: str,
    ) -> None:
        self._plan, self._model, self._index, self._module = plan, model, index, module
        self._inputs, self._outputs, self._dtype = inputs, outputs, dtype
        self._prefix = f"{model.layer_name(index)}."

    def calibrate(
        self,
        groups: Sequence[LinearGroup],
        progress: Progress,
        *,
        memory_bytes: int,
        advance: Callable[[int], None],
    ) -> dict[str, Recipe]:
        """Run all rows, as often as the memory for second moments makes it necessary; return the recipes by module."""
        from trtbuild.quant.calibrate.observe import moments_bytes, observing_cache, watch

        sizes = [moments_bytes(group, self._module, self._prefix) for group in groups]
        cache = observing_cache()
        recipes: dict[str, Recipe] = {}
        for number, chosen in enumerate(_passes(groups, sizes, memory_bytes)):
            with watch(chosen, self._module, self._prefix) as found:
                if number == 0:
                    self._run_rows(cache=cache, advance=advance)
                else:
                    self._run_rows(cache=None, advance=lambda _: None)
            ranges = {name: float(moments.amax.max()) for name, moments in found.items()}
            observed = {f"the input of {name}": value for name, value in ranges.items()}
            if number == 0:
                progress.k_amax.append(float(cache.k_amax))
                progress.v_amax.append(float(cache.v_amax))
                observed[f"the keys of layer {self._index}"] = progress.k_amax[-1]
                observed[f"the values of layer {self._index}"] = progress.v_amax[-1]
            self._require_finite(observed)
            for group in chosen:
                recipes |= self._search(group, found)
            progress.input_amax |= {name: _range_of(moments, recipes.get(name)) for name, moments in found.items()}
        return recipes

    def feed_quantized(self, groups: Sequence[LinearGroup], recipes: Mapping[str, Recipe]) -> None:
        """Round the weights and run all rows again: the next layer gets what this one will make of them."""
        torch = import_torch()
        from trtbuild.quant.search.apply import quantized_weight

        with torch.no_grad():
            for group in groups:
                is_per_tensor = group.search is not None and group.search.is_per_tensor
                for linear in (linear for linear in group.linears if linear.module in recipes):
                    weight, recipe = linear.weight(self._module, self._prefix), recipes[linear.module]
                    weight.copy_(quantized_weight(weight.float(), recipe, is_per_tensor=is_per_tensor))
        self._run_rows(cache=None, advance=lambda _: None)

    def _run_rows(self, *, cache: Any, advance: Callable[[int], None]) -> None:
        for row in range(len(self._inputs)):
            hidden = self._model.run(self._index, self._inputs.get(row).to(self._model.device), cache=cache)
            self._outputs.put(row, hidden)
            advance(hidden.shape[1])

    def _search(self, group: LinearGroup, found: Mapping[str, InputMoments]) -> dict[str, Recipe]:
        if group.search is None:
            return {}
        from trtbuild.quant.search.group import Linear, ScaleGroup

        linears = [
            Linear(linear.module, linear.weight(self._module, self._prefix).detach().float(), found[linear.module])
            for linear in group.linears
        ]
        return SEARCHES[group.search.kind].run(ScaleGroup(linears, self._plan.layout.dtype, group.search))

    def _require_finite(self, observed: Mapping[str, float]) -> None:
        for what, value in observed.items():
            if not isfinite(value):
                # Damaged weights are the likelier cause, and are named better.
                digest_source(self._plan, self._plan.layout.parts, advance=lambda _: None)
                raise TrtbuildError(
                    f"calibration in {self._dtype}: {what} reached {value}",
                    hint="use --calibration-dtype float32 or bfloat16",
                )


def _range_of(moments: InputMoments, recipe: Recipe | None) -> float:
    """Return the range of a linear's inputs as it multiplies with them: smoothed, if they are to be."""
    if recipe is None or recipe.pre_quant_scale is None:
        return float(moments.amax.max())
    if recipe.input_amax is not None:
        return float(recipe.input_amax[0])
    factor = import_torch().from_numpy(recipe.pre_quant_scale).to(moments.amax.device)
    return float((moments.amax * factor).max())


def _passes(groups: Sequence[LinearGroup], sizes: Sequence[int], memory_bytes: int) -> list[list[LinearGroup]]:
    """Share groups out over passes, so that the second moments of a pass fit into the memory, or are those of one group."""
    passes: list[list[LinearGroup]] = [[]]
    used = 0
    for group, size in zip(groups, sizes, strict=True):
        if passes[-1] and used + size > memory_bytes:
            passes.append([])
            used = 0
        passes[-1].append(group)
        used += size
    return passes
