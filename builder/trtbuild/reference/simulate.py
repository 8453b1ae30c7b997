"""Simulate static quantization of activations and of the KV cache inside a transformers model.

Knows number formats and where in a decoder layer they apply. Does not know checkpoints: scales come in as numbers.
Rounding happens in float32; real value = code * scale, as written in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from trtbuild.errors import TrtbuildError
from trtbuild.places import place_of
from trtbuild.quant.codecs.base import TINY
from trtbuild.quant.codecs.fp8 import E4M3_MAX
from trtbuild.quant.codecs.nvfp4 import GROUP, MAGNITUDES, MIDDLES
from trtbuild.quant.inputs import InputRounding

INT8_MAX = 127.0
#: Inputs of a token that share a scale in `round_e4m3_group`.
_E4M3_GROUP = 128
#: Kinds of input rounding with a stored scale.
_STATIC = ("fp8", "int8", "nvfp4")


class Rounding(Protocol):
    """Returns values snapped to what the number format can hold under `scale`; the input is left alone."""

    def __call__(self, values: torch.Tensor, scale: float, /) -> torch.Tensor: ...


def round_e4m3(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to E4M3 (half to even) after clamping the code to +-448; same shape and dtype as `values`."""
    codes = (values.float() / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.float().mul_(scale).to(values.dtype)


def round_int8(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to INT8 (half to even), codes beyond -128 and 127 clamped as by cvt.sat.s8; same shape and dtype as `values`."""
    return (values.float() / scale).round_().clamp_(-INT8_MAX - 1, INT8_MAX).mul_(scale).to(values.dtype)


def round_int8_token(values: torch.Tensor, _scale: float = 0.0) -> torch.Tensor:
    """Round to INT8 with a scale of its own for each token: amax over the last axis / 127 (tensorrt_llm quantize_per_token)."""
    scale = values.float().abs().amax(dim=-1, keepdim=True).clamp_(min=TINY) / INT8_MAX
    return (values.float() / scale).round_().mul_(scale).to(values.dtype)


def round_e4m3_token(values: torch.Tensor, _scale: float = 0.0) -> torch.Tensor:
    """Round to E4M3 with a scale of its own for each token: amax over the last axis / 448."""
    return _round_groups(values, values.shape[-1])


def round_e4m3_group(values: torch.Tensor, _scale: float = 0.0) -> torch.Tensor:
    """Round to E4M3 with a scale of its own for each 128 inputs of a token."""
    return _round_groups(values, _E4M3_GROUP)


def round_nvfp4(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to NVFP4: E2M1 in blocks of 16 along the last axis, block scales E4M3 under `scale` (checkpoint specification 2.14)."""
    blocks = values.float().reshape(-1, GROUP)
    amax = blocks.abs().amax(dim=1, keepdim=True)
    block_scale = (amax / (MAGNITUDES[-1] * scale)).clamp_(2.0**-9, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale
    magnitude = (blocks.abs() / block_scale).contiguous()
    middles = torch.tensor(MIDDLES, device=values.device)
    # They differ at a tie only, which goes to the even one.
    low, high = torch.bucketize(magnitude, middles), torch.bucketize(magnitude, middles, right=True)
    codes = torch.where(low % 2 == 0, low, high)
    rounded = torch.tensor(MAGNITUDES, device=values.device)[codes] * block_scale * blocks.sign()
    return rounded.reshape(values.shape).to(values.dtype)


def _round_groups(values: torch.Tensor, size: int) -> torch.Tensor:
    width = values.shape[-1]
    padded = nn.functional.pad(values.float(), (0, -width % size)).reshape(-1, size)
    scale = padded.abs().amax(dim=1, keepdim=True).clamp_(min=TINY) / E4M3_MAX
    rounded = (padded / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.reshape(*values.shape[:-1], -1)[..., :width].to(values.dtype)


KV_ROUNDING: dict[str, Rounding] = {"FP8": round_e4m3, "INT8": round_int8}
#: Kind of `InputFormat` -> arithmetic.
INPUT_ROUNDING: dict[str, Rounding] = {
    "fp8": round_e4m3,
    "int8": round_int8,
    "fp8_token": round_e4m3_token,
    "int8_token": round_int8_token,
    "fp8_group": round_e4m3_group,
    "nvfp4": round_nvfp4,
}


@dataclass(frozen=True)
class _Rounded:
    """The rounding of one input: multiplied, rounded, divided again, since the model's weights are those of plain inputs."""

    rounding: Rounding
    scale: float
    multiplier: torch.Tensor | None

    @classmethod
    def of(cls, given: InputRounding) -> _Rounded:
        multiplier = None if given.multiplier is None else torch.from_numpy(given.multiplier.copy())
        return cls(INPUT_ROUNDING[given.kind], given.scale, multiplier)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if self.multiplier is None:
            return self.rounding(values, self.scale)
        factor = self.multiplier.to(values.device)
        return (self.rounding(values.float() * factor, self.scale) / factor).to(values.dtype)


def round_linear_inputs(model: nn.Module, roundings: Mapping[str, InputRounding]) -> None:
    """Make the named linear layers see rounded inputs.

    Args:
        model: changed in place, by forward hooks.
        roundings: by module name of the checkpoint ("model.layers.0.self_attn.q_proj").

    Raises:
        TrtbuildError: a name is not a linear layer of the model, or a static scale is not a positive number.
    """
    modules = dict(model.named_modules())
    experts: dict[str, dict[str, InputRounding]] = {}
    for name, given in roundings.items():
        if given.kind in _STATIC:
            _require_scale(given.scale, name)
        place = place_of(f"{name}.weight")
        owner, _, parameter = place.parameter.rpartition(".")
        module = modules.get(owner)
        if place.expert is not None and module is not None:
            # One for all experts of a layer: the kernels take the largest, and rank files hold that already.
            found = experts.setdefault(owner, {})
            if parameter not in found or found[parameter].scale < given.scale:
                found[parameter] = given
        elif isinstance(module, (nn.Linear, Conv1D)):
            module.register_forward_pre_hook(_InputHook(_Rounded.of(given)))
        else:
            raise TrtbuildError(
                f"the checkpoint has an activation scale for '{name}', which is not a linear layer of the model",
                hint="convert the model again",
            )
    for owner, inputs in experts.items():
        modules[owner].forward = _RoundedExperts(
            modules[owner], _Rounded.of(inputs["gate_up_proj"]), _Rounded.of(inputs["down_proj"])
        )


def round_kv_cache(layers: Sequence[nn.Module], scales: Sequence[float], algorithm: str) -> None:
    """Make every attention layer keep and read keys (after RoPE) and values rounded with its scale.

    Args:
        layers: the self-attention modules in order; changed in place, by forward hooks.
        scales: one kv_cache_scaling_factor per layer.
        algorithm: "FP8" or "INT8".

    Raises:
        TrtbuildError: the number of scales is not the number of layers, or a scale is not a positive number.
    """
    if len(scales) != len(layers):
        raise TrtbuildError(
            f"the checkpoint has {len(scales)} KV cache scales for {len(layers)} layers", hint="convert the model again"
        )
    for index, (layer, scale) in enumerate(zip(layers, scales, strict=True)):
        _require_scale(scale, f"KV cache of layer {index}")
        layer.register_forward_pre_hook(_CacheHook(KV_ROUNDING[algorithm], scale), with_kwargs=True)


def _require_scale(scale: float, name: str) -> None:
    if not 0.0 < scale < float("inf"):
        raise TrtbuildError(f"scale {scale} of {name} is not a positive number", hint="convert the model again")


class _InputHook:
    """Forward pre-hook of one linear layer."""

    def __init__(self, rounded: _Rounded) -> None:
        self._rounded = rounded

    def __call__(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (self._rounded(inputs[0]), *inputs[1:])


class _RoundedExperts:
    """The forward of a module of stacked experts, with the inputs of both matrix products rounded.

    Follows the loop of transformers' own experts (transformers/models/mixtral/modeling_mixtral.py, MixtralExperts).
    """

    def __init__(self, experts: nn.Module, outer: _Rounded, inner: _Rounded) -> None:
        self._experts: Any = experts
        self._outer, self._inner = outer, inner

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts: hidden_states [tokens, hidden], the others [tokens, top_k]."""
        experts, result = self._experts, torch.zeros_like(hidden_states)
        rounded = self._outer(hidden_states)
        for expert in top_k_index.unique().tolist():
            tokens, position = torch.where(top_k_index == expert)
            gate, up = nn.functional.linear(rounded[tokens], experts.gate_up_proj[expert]).chunk(2, dim=-1)
            inner = self._inner(experts.act_fn(gate) * up)
            output = nn.functional.linear(inner, experts.down_proj[expert]) * top_k_weights[tokens, position, None]
            result.index_add_(0, tokens, output.to(result.dtype))
        return result


class _CacheHook:
    """Forward pre-hook of one attention layer: puts a rounding step in front of whatever cache the layer was given.

    An attention layer of transformers calls `cache.update` between RoPE and the attention itself, so this is the one
    place where keys and values can be changed for plain forward passes, `generate` and the paged cache alike.
    """

    def __init__(self, rounding: Rounding, scale: float) -> None:
        self._rounding, self._scale = rounding, scale

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = "layer_past" if "layer_past" in kwargs else "cache"  # the former in GPT-NeoX and Falcon
        return inputs, {**kwargs, name: _RoundingCache(kwargs.get(name), self._rounding, self._scale)}


class _RoundingCache:
    """Stands in for a layer's cache during one forward; without a cache it still rounds."""

    def __init__(self, cache: Any, rounding: Rounding, scale: float) -> None:
        self._cache, self._rounding, self._scale = cache, rounding, scale

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Round new keys and values [batch, kv_heads, tokens, head_dim], then store them as the real cache does."""
        keys, values = self._rounding(keys, self._scale), self._rounding(values, self._scale)
        if self._cache is None:
            return keys, values
        updated: tuple[torch.Tensor, torch.Tensor] = self._cache.update(keys, values, layer_idx, **kwargs)
        return updated
