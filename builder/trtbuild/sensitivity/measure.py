"""Measures the error of every scale group's outputs under several schemes, layer by layer.

Weights are rounded to the nearest code, without a search; inputs stay exact. That ranks linears and formats; it is not the error of the
finished checkpoint, which `trtbuild evaluate` measures. Memory: one decoder layer and the second moments of one scale group at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from trtbuild.convert.execute import digest_source
from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
from trtbuild.layout import Layout, Slot
from trtbuild.quant.calibrate.linears import LinearGroup, linear_groups
from trtbuild.quant.calibrate.observe import moments_bytes, watch
from trtbuild.quant.calibrate.samples import Samples
from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.scheme import QuantScheme
from trtbuild.quant.search.moments import InputMoments
from trtbuild.sensitivity.choose import Group
from trtbuild.streaming.activations import Activations
from trtbuild.streaming.model import LayerModel, compute_device
from trtbuild.streaming.source import source_model

#: Has second moments of whole inputs kept (`quant/search`).
_ALL_MOMENTS = SearchSettings("gptq", 1)


def measure(
    plan: ConversionPlan,
    schemes: Sequence[QuantScheme],
    samples: Samples,
    *,
    memory_bytes: int,
    advance: Callable[[int], None],
) -> list[Group]:
    """Return the errors of all scale groups.

    Args:
        plan: of the model, unquantized.
        schemes: to try; "none" costs the model's dtype and has no error.
        samples: token ids.
        memory_bytes: for second moments, and for activations in memory.
        advance: called with the tokens a layer just finished: in all, tokens times layers.
    """
    model = source_model(plan, dtype="float32", device=compute_device())
    lengths = list(map(len, samples.rows))
    found: list[Group] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="trtbuild-sensitivity-")))

        def carried(layer: int) -> Activations:
            return Activations.fitting(
                lengths, model.hidden_size, dtype=model.dtype, file=folder / str(layer), memory_bytes=memory_bytes // 4
            )

        inputs = carried(0)
        for number, hidden in enumerate(model.embed(samples.rows)):
            inputs.put(number, hidden)
        for layer in range(model.num_layers):
            outputs = carried(layer + 1)
            found += _measure_layer(plan, model, layer, schemes, inputs, outputs, memory_bytes, advance)
            inputs.close()
            inputs = outputs
        inputs.close()
    return found


def _measure_layer(
    plan: ConversionPlan,
    model: LayerModel,
    layer: int,
    schemes: Sequence[QuantScheme],
    inputs: Activations,
    outputs: Activations,
    memory_bytes: int,
    advance: Callable[[int], None],
) -> Iterator[Group]:
    groups = [replace(group, search=_ALL_MOMENTS) for group in linear_groups(plan, layer)]
    slots = _slots_of(plan.layout, layer)
    prefix = f"{model.layer_name(layer)}."
    with model.layer(layer) as module, torch.no_grad():
        pending, is_first = list(groups), True
        while pending:
            chosen = [pending.pop(0)]
            used = moments_bytes(chosen[0], module, prefix)
            while pending and used + (size := moments_bytes(pending[0], module, prefix)) <= memory_bytes // 2:
                chosen.append(pending.pop(0))
                used += size
            with watch(chosen, module, prefix) as moments:
                for row in range(len(inputs)):
                    hidden = model.run(layer, inputs.get(row).to(model.device))
                    if is_first:
                        outputs.put(row, hidden)
                        advance(hidden.shape[1])
            is_first = False
            for group in chosen:
                names = {linear.module for linear in group.linears}
                yield _group(plan, layer, group, [slot for slot in slots if slot.parts[0].module in names], schemes, moments, module, prefix)  # fmt: skip


def _slots_of(layout: Layout, layer: int) -> list[Slot]:
    return [slot for slot in layout.slots if slot.layer == layer and slot.rule.quantizable]


def _group(
    plan: ConversionPlan,
    layer: int,
    group: LinearGroup,
    slots: Sequence[Slot],
    schemes: Sequence[QuantScheme],
    moments: dict[str, InputMoments],
    module: torch.nn.Module,
    prefix: str,
) -> Group:
    weights, energy = 0, 0.0
    errors = {scheme.name: 0.0 for scheme in schemes}
    for linear in group.linears:
        weight = linear.weight(module, prefix).detach().float()
        weights += weight.numel()
        energy += moments[linear.module].error(weight)
        for scheme in schemes:
            errors[scheme.name] += moments[linear.module].error(_rounded(weight, scheme) - weight)
    if not all(map(isfinite, (energy, *errors.values()))):
        digest_source(plan, plan.layout.parts, advance=lambda _: None)  # names a damaged tensor
        raise TrtbuildError(
            f"the outputs of {group.linears[0].module} are not finite numbers in float32",
            hint="look at the model's weights, or calibrate on other samples",
        )
    bits = {scheme.name: 8 * _stored_bytes(plan.layout, slots, scheme) / weights for scheme in schemes}
    relative = {name: error / energy if energy > 0 else 0.0 for name, error in errors.items()}
    return Group(layer, tuple(linear.module for linear in group.linears), weights, bits, relative)


def _rounded(weight: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Return the numbers that the nearest codes stand for."""
    form = scheme.ranks or scheme.unified
    codec = form.codec if form else None
    if codec is None:
        return weight
    exact = weight.cpu().contiguous().numpy()
    scales = codec.of_block(exact, codec.whole(float(np.abs(exact).max())))
    return torch.from_numpy(codec.decode(codec.encode(exact, scales, "F32"), scales)).to(weight.device)


def _stored_bytes(layout: Layout, slots: Sequence[Slot], scheme: QuantScheme) -> int:
    """Return what a scheme stores for some linears, on one rank."""
    alone = replace(layout, scheme=scheme, overrides=(), parallel=replace(layout.parallel, tp_size=1, moe_ep_size=1))
    return sum(tensor.nbytes for slot in slots for tensor in alone.stored(slot, 0))
