"""Rounding to E4M3 and INT8, and where in a model it happens."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.reference.tiny_models import tiny_model
from torch import nn

from trtbuild.errors import TrtbuildError
from trtbuild.quant.inputs import InputRounding
from trtbuild.reference.simulate import round_e4m3, round_int8, round_int8_token, round_kv_cache, round_linear_inputs

VALUES = st.lists(st.floats(-2000, 2000, width=32), min_size=1, max_size=20)


@given(VALUES, st.sampled_from([0.25, 1.0, 3.7e-3]))
def test_e4m3_rounding_is_that_of_ml_dtypes_with_the_code_clamped(values: list[float], scale: float) -> None:
    array = np.array(values, dtype=np.float32)
    codes = np.clip(array / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(round_e4m3(torch.from_numpy(array), scale).numpy(), codes * np.float32(scale))


@given(VALUES, st.sampled_from([0.25, 1.0, 3.7e-3]))
def test_int8_rounding_is_half_to_even_and_saturates(values: list[float], scale: float) -> None:
    array = np.array(values, dtype=np.float32)
    codes = np.clip(np.rint(array / np.float32(scale)), -128, 127)
    assert np.array_equal(round_int8(torch.from_numpy(array), scale).numpy(), codes * np.float32(scale))
    assert round_int8(torch.tensor([0.5, 1.5, 2.5, -2.5, 200.0, -200.0]), 1.0).tolist() == [0, 2, 2, -2, 127, -128]


def test_int8_per_token_has_each_tokens_own_scale() -> None:
    values = torch.tensor([[127.0, 0.4, -63.6], [1.27, 0.004, -0.5], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[127.0, 0.0, -64.0], [1.27, 0.0, -0.5], [0.0, 0.0, 0.0]])
    assert torch.allclose(round_int8_token(values), expected, rtol=1e-6)
    noise = torch.randn(5, 7, 33, generator=torch.Generator().manual_seed(0))
    bound = noise.abs().amax(dim=-1, keepdim=True) / 127 / 2 * (1 + 1e-5)
    assert ((round_int8_token(noise) - noise).abs() <= bound).all()


def test_rounded_linear_computes_with_rounded_inputs_only() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    inputs = torch.randn(5, 4)
    hidden = model[0](inputs)
    expected = model[1](round_e4m3(hidden, 0.01))
    round_linear_inputs(model, {"1": InputRounding("fp8", 0.01)})
    assert torch.equal(model(inputs), expected)
    assert not torch.equal(expected, model[1].weight @ hidden.T)


@pytest.mark.parametrize(
    ("name", "scale", "problem"), [("2", 1.0, "'2'.*not a linear"), ("1", 0.0, "0.0 of 1"), ("1", float("nan"), "nan")]
)
def test_a_scale_that_cannot_be_used_is_an_error(name: str, scale: float, problem: str) -> None:
    with pytest.raises(TrtbuildError, match=problem):
        round_linear_inputs(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), {name: InputRounding("fp8", scale)})


@pytest.mark.parametrize(("algorithm", "rounding"), [("FP8", round_e4m3), ("INT8", round_int8)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_keys_and_values_are_rounded_after_rope_with_or_without_a_cache(
    algorithm: str, rounding: object, use_cache: bool
) -> None:
    model, plain = tiny_model("llama"), tiny_model("llama")
    layers = [layer.self_attn for layer in model.model.layers]
    scales = [0.02, 0.05, 0.03]
    round_kv_cache(layers, scales, algorithm)
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        output = model(ids, use_cache=use_cache)
        if use_cache:
            kept = output.past_key_values.layers[0]
            original = plain(ids).past_key_values.layers[0]
            assert torch.equal(kept.keys, rounding(original.keys, scales[0]))
            assert torch.equal(kept.values, rounding(original.values, scales[0]))
            assert not torch.equal(kept.keys, original.keys)
        assert torch.equal(output.logits, model(ids, use_cache=not use_cache).logits)
        assert not torch.equal(output.logits, plain(ids).logits)


def test_the_number_of_kv_scales_must_be_the_number_of_layers() -> None:
    layers = [layer.self_attn for layer in tiny_model("llama").model.layers]
    with pytest.raises(TrtbuildError, match="2 KV cache scales for 3 layers"):
        round_kv_cache(layers, [1.0, 1.0], "FP8")
