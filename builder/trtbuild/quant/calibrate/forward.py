"""Max calibration: one forward per sample through the whole model, noting the largest absolute input of every linear.

Memory: the model in the calibration dtype plus one sample's activations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from inspect import signature
from math import isfinite
from typing import Any

from trtbuild.convert.execute import require_finite_source
from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
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
    model = load_source_model(plan.source, dtype=dtype)
    input_amax: dict[str, Any] = {}
    linears = sorted(
        {name.removesuffix(".weight") for slot in plan.layout.slots() if slot.rule.quantizable for name in slot.sources}
    )
    handles = [model.get_submodule(name).register_forward_pre_hook(_note_input(name, input_amax)) for name in linears]
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
            require_finite_source(plan)  # damaged weights are the likelier cause, and are named better
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


def _note_input(name: str, found: dict[str, Any]) -> Callable[[Any, tuple[Any, ...]], None]:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> None:
        amax = arguments[0].abs().amax().float()
        found[name] = amax if name not in found else found[name].maximum(amax)

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
