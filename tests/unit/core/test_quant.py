"""Number formats: worked examples, stated bounds, and the corners where scales vanish."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from trtbuild.names import QUANTIZATIONS
from trtbuild.quant.fp8 import Fp8
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS
from trtbuild.quant.scheme import load_scheme, scheme_of_algo
from trtbuild.quant.weight_only import Int4WeightOnly, Int8WeightOnly

W = np.array(
    [[0.70, -0.20, 0.10, 0.0], [-1.40, 0.60, 0.20, -0.20], [0.35, 0.05, -0.30, 0.10], [-0.07, 0.0, 0.07, 0.014]],
    np.float32,
)
FINITE = st.floats(-1e4, 1e4, width=32)


def test_fp8_codes_of_the_worked_example() -> None:
    scheme = Fp8()
    scales = scheme.scales(weight_amax=1.4, input_amax=4.48)
    assert scales["weights_scaling_factor"] == pytest.approx([0.003125])
    assert scales["activation_scaling_factor"] == pytest.approx([0.01])
    codes = scheme.encode(W, scales).view(np.uint8)
    assert [row.tobytes().hex() for row in codes] == ["76e86000", "fe7468e8", "6e58ec60", "db005b49"]


def test_fp8_rounds_once_and_clamps_before_the_cast() -> None:
    scales = Fp8().scales(weight_amax=4.48, input_amax=1.0)
    values = np.array([[0.49, -2.05, 1.01, 4.48]], np.float32)
    assert Fp8().encode(values, scales).astype(np.float32).tolist() == [[48, -208, 104, 448]]
    beyond = Fp8().encode(np.array([[4.65, 5.0, 1e4, -1e4]], np.float32), scales).astype(np.float32)
    assert beyond.tolist() == [[448, 448, 448, -448]]


def test_fp8_scales_of_a_zero_tensor_are_positive_and_finite() -> None:
    scales = Fp8().scales(weight_amax=0.0, input_amax=0.0)
    assert all(np.isfinite(scale).all() and (scale > 0).all() for scale in scales.values())
    zeros = np.zeros((3, 5), np.float32)
    assert not Fp8().decode(Fp8().encode(zeros, scales), scales).any()


@settings(deadline=None)
@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=FINITE))
def test_fp8_error_bound(weight: np.ndarray) -> None:
    scales = Fp8().scales(weight_amax=float(np.abs(weight).max()), input_amax=1.0)
    codes = Fp8().encode(weight, scales)
    assert codes.dtype == ml_dtypes.float8_e4m3fn
    scale = float(scales["weights_scaling_factor"][0])
    error = np.abs(Fp8().decode(codes, scales).astype(np.float64) - weight.astype(np.float64))
    bound = np.maximum(np.abs(weight) * 2.0**-4, scale * 2.0**-10)
    assert (error <= bound * (1 + 1e-5)).all()


def test_weight_only_codes_of_the_worked_example() -> None:
    # By hand, per row: scale = amax / 8 and amax / 128; codes round half away from zero, the largest positive one is clipped.
    four = np.array([[7, -2, 1, 0], [-8, 3, 1, -1], [7, 1, -7, 2], [-8, 0, 7, 2]]) * (
        np.abs(W).max(axis=1, keepdims=True) / 8
    )
    assert np.abs(Int4WeightOnly().decode(W, {}) - four).max() < 1e-6
    eight = np.array([[127, -37, 18, 0], [-128, 55, 18, -18], [127, 18, -110, 37], [-128, 0, 127, 26]])
    assert np.abs(Int8WeightOnly().decode(W, {}) - eight * (np.abs(W).max(axis=1, keepdims=True) / 128)).max() < 1e-6


@settings(deadline=None)
@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=7),
        elements=st.floats(-1, 1, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20),
    )
)
@pytest.mark.parametrize(("scheme", "levels"), [(Int8WeightOnly(), 128), (Int4WeightOnly(), 8)])
def test_weight_only_error_bound(scheme: Int8WeightOnly | Int4WeightOnly, levels: int, weight: np.ndarray) -> None:
    decoded = scheme.decode(weight, {})
    scale = np.abs(weight).max(axis=1, keepdims=True) / levels
    assert np.isfinite(decoded).all()
    clipped = weight > (levels - 0.5) * scale
    assert (np.abs(decoded - weight) <= np.where(clipped, scale, scale / 2) * (1 + 1e-5)).all()


def test_kv_scales_follow_the_ranges_and_the_stated_floor() -> None:
    fp8, int8 = KV_CACHE_FORMATS["fp8"], KV_CACHE_FORMATS["int8"]
    assert fp8 is not None
    assert int8 is not None
    assert fp8.scale(4.48) == 1.0, "clamped, as rank files are"
    assert fp8.scale(896.0) == 2.0
    assert int8.scale(127.0) == 1.0
    assert int8.scale(1.27) == pytest.approx(0.01)
    assert int8.scale(0.0) > 0


def test_every_available_scheme_is_found_by_name_and_by_algorithm() -> None:
    for name in (name for name, entry in QUANTIZATIONS.items() if entry):
        scheme = load_scheme(name)
        assert scheme.name == name
        found = scheme_of_algo(scheme.quant_algo)
        assert found is not None
        assert found.name == name
    assert scheme_of_algo("NVFP4") is None
