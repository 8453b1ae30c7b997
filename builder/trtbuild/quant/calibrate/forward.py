"""Max calibration: one forward per sample through the whole model, noting the largest absolute input of every linear.

Memory: the model in the calibration dtype plus one sample's activations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from inspect import signature
from math import isfinite
from typing import Any

from trtbuild.convert.execute import digest_source
from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
from trtbuild.places import Place, place_of
from trtbuild.quant.calibrate.libraries import torch as import_torch
from trtbuild.quant.calibrate.libraries import transformers as import_transformers
from trtbuild.quant.calibrate.model import load_source_model
from trtbuild.quant.calibrate.samples import Samples
from trtbuild.quant.stats import CalibrationStats


def calibrate(
    plan: ConversionPlan, samples: Samples, *, dtype: str, advance: Callable[[int], None]
) -> CalibrationStats:
    """Run the source model on the samples and return the ranges.

    Args:
        plan: what will be converted; names the linears.
        samples: token ids; each row is fed once, alone.
        dtype: "float32", "float16" or "bfloat16", of weights and activations.
        advance: called with the number of tokens just finished.

    Raises:
        TrtbuildError: torch or transformers is missing, or an activation is not finite.
    """
    torch = import_torch()
    import_transformers()
    model = load_source_model(plan, dtype=dtype)
    input_amax: dict[str, Any] = {}
    handles = _watch(model, plan, input_amax)
    cache = _observing_cache(plan.dims.num_layers)
    # transformers 5.24 renames the argument and warns about the old name.
    name = "cache" if "cache" in signature(model.base_model.forward).parameters else "past_key_values"
    with torch.inference_mode():
        for row in samples.rows:
            model.base_model(input_ids=torch.tensor([row]), use_cache=True, **{name: cache})
            advance(len(row))
    for handle in handles:
        handle.remove()
    observed = {f"the input of {name}": float(value) for name, value in input_amax.items()}
    observed |= {f"the keys of layer {layer}": float(value) for layer, value in enumerate(cache.k_amax)}
    observed |= {f"the values of layer {layer}": float(value) for layer, value in enumerate(cache.v_amax)}
    for what, value in observed.items():
        if not isfinite(value):
            digest_source(
                plan, plan.layout.parts, advance=lambda _: None
            )  # damaged weights are the likelier cause, and are named better
            raise TrtbuildError(
                f"calibration in {dtype}: {what} reached {value}", hint="use --calibration-dtype float32 or bfloat16"
            )
    stats = CalibrationStats(
        input_amax={name: float(value) for name, value in input_amax.items()},
        k_amax=tuple(map(float, cache.k_amax)),
        v_amax=tuple(map(float, cache.v_amax)),
        samples=len(samples.rows),
        tokens=samples.tokens,
        digest=samples.digest,
    )
    del model, handles
    gc.collect()
    return stats


def _watch(model: Any, plan: ConversionPlan, found: dict[str, Any]) -> list[Any]:
    """Have the input ranges of all quantizable linears noted; return the hooks' handles."""
    names = {part.source for slot in plan.layout.slots if slot.rule.quantizable for part in slot.parts}
    handles = []
    experts: dict[str, list[tuple[str, Place]]] = {}
    for name in sorted(names):
        place, module = place_of(name), name.removesuffix(".weight")
        if place.expert is None:
            linear = model.get_submodule(place.parameter.removesuffix(".weight"))
            handles.append(linear.register_forward_pre_hook(_note_input(module, found)))
        else:
            experts.setdefault(place.parameter.rpartition(".")[0], []).append((module, place))
    for block, linears in experts.items():
        handles.append(model.get_submodule(block).register_forward_pre_hook(_note_expert_inputs(linears, found)))
    return handles


def _note_expert_inputs(
    linears: list[tuple[str, Place]], found: dict[str, Any]
) -> Callable[[Any, tuple[Any, ...]], None]:
    """Return a hook that shows every token to every expert, as NVIDIA's exporter does: no expert stays without a range.

    Args:
        linears: (Hugging Face module, place of its weight) of all experts of a layer.
        found: Hugging Face module -> range.
    """
    torch = import_torch()

    def hook(experts: Any, arguments: tuple[Any, ...]) -> None:
        hidden = arguments[0]
        for module, place in linears:
            if place.half is not None:
                _widen(found, module, hidden)
                continue
            # The only linear of an expert whose input is not the layer's: it reads what the other two make.
            gate, up = torch.nn.functional.linear(hidden, experts.gate_up_proj[place.expert]).chunk(2, dim=-1)
            _widen(found, module, experts.act_fn(gate) * up)

    return hook


def _widen(found: dict[str, Any], module: str, values: Any) -> None:
    amax = values.abs().amax().float()
    found[module] = amax if module not in found else found[module].maximum(amax)


def _note_input(name: str, found: dict[str, Any]) -> Callable[[Any, tuple[Any, ...]], None]:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> None:
        _widen(found, name, arguments[0])

    return hook


def _observing_cache(num_layers: int) -> Any:
    """Return a KV cache that keeps nothing but the ranges of what is put into it."""
    torch = import_torch()
    transformers = import_transformers()

    class ObservingCache(transformers.DynamicCache):  # type: ignore[name-defined,misc]  # the base class is only known at run time
        def __init__(self) -> None:
            super().__init__()
            self.k_amax = [torch.zeros(()) for _ in range(num_layers)]
            self.v_amax = [torch.zeros(()) for _ in range(num_layers)]

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            self.k_amax[layer_idx] = self.k_amax[layer_idx].maximum(key_states.abs().amax().float())
            self.v_amax[layer_idx] = self.v_amax[layer_idx].maximum(value_states.abs().amax().float())
            return key_states, value_states

    return ObservingCache()
