"""Number formats: worked examples, stated bounds, and the corners where scales vanish."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtbuild.names import QUANTIZATIONS, SMOOTHQUANT_MODES
from trtbuild.quant.codecs.base import Codec, Scales
from trtbuild.quant.codecs.fp8 import Fp8Codec, scale_of
from trtbuild.quant.codecs.int4 import Int4Codec, pack_rows, unpack_rows
from trtbuild.quant.codecs.int8 import Int8Codec
from trtbuild.quant.codecs.nvfp4 import Nvfp4Codec
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS
from trtbuild.quant.scheme import SchemeOptions, load_scheme, scheme_of_algo
from trtbuild.quant.weight_only import LoadedAs

W = np.array(
    [[0.70, -0.20, 0.10, 0.0], [-1.40, 0.60, 0.20, -0.20], [0.35, 0.05, -0.30, 0.10], [-0.07, 0.0, 0.07, 0.014]],
    np.float32,
)
CODECS: dict[str, Codec] = {
    "fp8": Fp8Codec(),
    "fp8, rounded twice": Fp8Codec(rounds_twice=True),
    "fp8 rows": Fp8Codec("rows"),
    "fp8 blocks": Fp8Codec("blocks"),
    "int4": Int4Codec(16),
    "w4a8": Int4Codec(16, has_second=True),
    "int8": Int8Codec(),
    "int8, one scale": Int8Codec("tensor", needs_range=True),
    "int8, one scale for all rows": Int8Codec(needs_range=True),
    "nvfp4": Nvfp4Codec(),
}
#: Zeros, subnormals, outliers, constant rows and the largest float16, beside anything else.
_CORNERS = [float(np.float32(value)) for value in (0.0, 1e-42, -1e-38, 65504.0, -65504.0, 1.0, 0.5, 3e-8)]
VALUES = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from(_CORNERS))
DTYPES = st.sampled_from(["F16", "BF16", "F32"])


def scales_of(codec: Codec, weight: np.ndarray) -> Scales:
    return codec.of_block(weight, codec.whole(float(np.abs(weight).max())))


def hex_rows(codes: np.ndarray) -> list[str]:
    return [row.tobytes().hex() for row in codes.view(np.uint8)]


@settings(deadline=None, max_examples=60)
@given(arrays(np.float32, (4, 32), elements=VALUES), DTYPES)
@pytest.mark.parametrize("name", CODECS)
def test_decoded_weights_are_within_the_stated_bound_and_finite(name: str, weight: np.ndarray, dtype: str) -> None:
    codec = CODECS[name]
    scales = scales_of(codec, weight)
    for part in (scales.weight, scales.second):
        if part is not None:
            assert np.isfinite(part.astype(np.float32)).all()
            assert (part.astype(np.float32) > 0).all()
    decoded = codec.decode(codec.encode(weight, scales, dtype), scales)
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded.astype(np.float64) - weight) <= codec.bound(weight, scales)).all()
    assert not decoded[weight == 0].any()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 65504.0])
def test_constant_rows_and_zeros_lose_next_to_nothing(name: str, value: float) -> None:
    codec = CODECS[name]
    weight = np.full((4, 32), value, np.float32)
    scales = scales_of(codec, weight)
    decoded = codec.decode(codec.encode(weight, scales, "F32"), scales)
    assert decoded == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize("name", CODECS)
def test_blocks_of_rows_give_what_the_whole_gives(name: str) -> None:
    codec = CODECS[name]
    weight = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    whole = codec.whole(float(np.abs(weight).max()))
    expected = codec.encode(weight, codec.of_block(weight, whole), "F16")
    step = 128 // codec.packing[0]
    found = [codec.encode(block, codec.of_block(block, whole), "F16") for block in (weight[:128], weight[128:])]
    assert np.concatenate(found).tobytes() == expected.tobytes()
    assert found[0].shape == (step, 256 // codec.packing[1])


def test_fp8_codes_of_the_worked_example() -> None:
    assert scale_of(1.4) == pytest.approx(0.003125)
    codec = Fp8Codec()
    assert hex_rows(codec.encode(W, codec.whole(1.4), "F32")) == ["76e86000", "fe7468e8", "6e58ec60", "db005b49"]
    rows = Fp8Codec("rows")
    scales = rows.of_block(W, Scales())
    assert scales.weight == pytest.approx([0.0015625, 0.003125, 0.00078125, 0.00015625])
    assert hex_rows(rows.encode(W, scales, "F32")) == ["7ef06800", "fe7468e8", "7e68fc70", "fe007e6b"]


def test_fp8_rounds_once_and_clamps_before_the_cast() -> None:
    scales = Scales(scale_of(4.48))
    codec = Fp8Codec()
    values = np.array([[0.49, -2.05, 1.01, 4.48]], np.float32)
    assert codec.encode(values, scales, "F16").astype(np.float32).tolist() == [[48, -208, 104, 448]]
    beyond = codec.encode(np.array([[4.65, 5.0, 1e4, -1e4]], np.float32), scales, "F16").astype(np.float32)
    assert beyond.tolist() == [[448, 448, 448, -448]]


def test_fp8_blocks_have_the_exporters_shapes() -> None:
    weight = np.ones((130, 300), np.float32)
    scale = Fp8Codec("blocks").of_block(weight, Scales()).weight
    assert scale is not None
    assert scale.shape == (2, 1, 3, 1)


def test_int4_codes_of_the_worked_example() -> None:
    codec = Int4Codec(4)
    scales = codec.of_block(W, Scales())
    assert scales.weight is not None
    assert scales.weight.ravel() == pytest.approx([0.1, 0.2, 0.05, 0.01])
    assert hex_rows(codec.encode(W, scales, "F32")) == ["973e11f0", "97017a12"]


def test_int4_codes_beyond_a_clipped_scale_saturate() -> None:
    codec = Int4Codec(4)
    scales = Scales(np.full((4, 1), 0.05, np.float32))
    codes = unpack_rows(codec.encode(W, scales, "F32"))
    assert codes[1].tolist() == [-8, 7, 4, -4]
    assert (np.abs(codec.decode(codec.encode(W, scales, "F32"), scales) - W) <= codec.bound(W, scales)).all()


@given(arrays(np.int8, (6, 5), elements=st.integers(-8, 7)))
def test_packed_rows_come_back(codes: np.ndarray) -> None:
    packed = pack_rows(codes)
    assert packed.shape == (3, 5)
    assert (unpack_rows(packed) == codes).all()


def test_int8_codes_of_the_worked_example() -> None:
    codec = Int8Codec()
    scales = codec.of_block(W, Scales())
    expected = [[127, -36, 18, 0], [-127, 54, 18, -18], [127, 18, -109, 36], [-127, 0, 127, 25]]
    assert codec.encode(W, scales, "F32").tolist() == expected


def test_nvfp4_codes_of_the_worked_example() -> None:
    row = [[0, 0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.75, 1, -1.5, 2, -3, 0.05, -0.05, 0.25, 3]]
    weight = np.array(row, np.float32)
    codec = Nvfp4Codec()
    scales = scales_of(codec, weight)
    assert scales.second == pytest.approx(0.00111607, rel=1e-5)
    assert scales.weight is not None
    assert scales.weight.dtype == ml_dtypes.float8_e4m3fn
    assert scales.weight.view(np.uint8).tolist() == [[0x7E]]
    assert hex_rows(codec.encode(weight, scales, "F32")) == ["00192a3ad4f68071"]


def test_nvfp4_ties_go_to_the_even_code() -> None:
    codec = Nvfp4Codec()
    middles = np.array([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2], np.float32)
    scales = Scales(np.ones((1, 1), ml_dtypes.float8_e4m3fn), np.array(1.0, np.float32))
    assert codec.decode(codec.encode(middles, scales, "F32"), scales)[0, :8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]


def test_weight_only_codes_of_the_worked_example() -> None:
    # By hand, per row: scale = amax / 8 and amax / 128; codes round half away from zero, the largest positive one is clipped.
    four = np.array([[7, -2, 1, 0], [-8, 3, 1, -1], [7, 1, -7, 2], [-8, 0, 7, 2]]) * (
        np.abs(W).max(axis=1, keepdims=True) / 8
    )
    assert np.abs(LoadedAs(4)(W) - four).max() < 1e-6
    eight = np.array([[127, -37, 18, 0], [-128, 55, 18, -18], [127, 18, -110, 37], [-128, 0, 127, 26]])
    assert np.abs(LoadedAs(8)(W) - eight * (np.abs(W).max(axis=1, keepdims=True) / 128)).max() < 1e-6


@settings(deadline=None)
@given(
    arrays(
        np.float32,
        (3, 7),
        elements=st.floats(-1, 1, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20),
    )
)
@pytest.mark.parametrize(("bits", "levels"), [(8, 128), (4, 8)])
def test_weight_only_error_bound(bits: int, levels: int, weight: np.ndarray) -> None:
    decoded = LoadedAs(bits)(weight)
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


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_every_scheme_is_found_by_name_and_by_algorithm(name: str) -> None:
    scheme = load_scheme(name)
    assert scheme.name == name
    for layout, form in (("ranks", scheme.ranks), ("unified", scheme.unified)):
        if form is not None:
            found = scheme_of_algo(form.quant_algo, layout=layout, group_size=128)  # type: ignore[arg-type]
            assert found is not None
            assert getattr(found, layout) == form, "what lies alike is read alike"


@pytest.mark.parametrize("mode", SMOOTHQUANT_MODES)
def test_every_mode_of_smoothquant_is_found_by_its_algorithm(mode: str) -> None:
    scheme = load_scheme("int8_smoothquant", SchemeOptions(smoothquant_mode=mode))
    assert scheme.quant_algo == SMOOTHQUANT_MODES[mode]
    found = scheme_of_algo(scheme.quant_algo, layout="ranks", group_size=128)
    assert found is not None
    assert (found.ranks, found.inputs) == (scheme.ranks, scheme.inputs)


def test_algorithms_that_nothing_writes_are_not_found() -> None:
    assert scheme_of_algo("W4A8_QSERVE_PER_GROUP", layout="ranks", group_size=128) is None
