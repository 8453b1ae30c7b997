"""Calibration: run the source on sample tokens, layer by layer, note ranges, and find recipes where a scheme wants them.

Activations between layers are in files; what a layer takes says `layer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.convert.plan import ConversionPlan
from trtbuild.quant.calibrate.libraries import torch as import_torch
from trtbuild.quant.calibrate.libraries import transformers as import_transformers
from trtbuild.quant.calibrate.linears import LinearGroup, linear_groups
from trtbuild.quant.calibrate.samples import Samples
from trtbuild.quant.calibrate.state import Progress, activations_file, remove_surplus
from trtbuild.quant.search import Feed
from trtbuild.quant.stats import CalibrationStats

if TYPE_CHECKING:
    from trtbuild.streaming.activations import Activations


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
        memory_bytes: for second moments of inputs, and codes of a linear.
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
    remove_surplus(folder, progress)
    advance(progress.layers * samples.tokens)
    if progress.layers < plan.dims.num_layers:
        _run(
            plan,
            samples,
            groups,
            progress,
            dtype=dtype,
            folder=folder,
            memory_bytes=memory_bytes,
            advance=advance,
            feed=feed,
        )
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
    from trtbuild.quant.calibrate.layer import LayerWork
    from trtbuild.streaming.activations import Activations
    from trtbuild.streaming.model import compute_device
    from trtbuild.streaming.source import source_model

    model = source_model(plan, dtype=dtype, device=compute_device())

    def carried(layer: int) -> Activations:
        file = activations_file(folder, layer)
        return Activations(list(map(len, samples.rows)), model.hidden_size, dtype=model.dtype, file=file)

    inputs = carried(progress.layers)
    if progress.layers == 0:
        for number, hidden in enumerate(model.embed(samples.rows)):
            inputs.put(number, hidden)
    for layer in range(progress.layers, model.num_layers):
        outputs = carried(layer + 1)
        work = LayerWork(plan, model, layer, inputs, outputs, folder=folder, dtype=dtype)
        work.calibrate(groups[layer], progress, memory_bytes=memory_bytes, advance=advance, feed=feed)
        outputs.sync()
        progress.layers = layer + 1
        progress.write(folder)
        inputs.close()
        inputs = outputs
        remove_surplus(folder, progress)
    inputs.close()
