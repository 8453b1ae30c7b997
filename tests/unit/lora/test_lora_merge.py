"""Merging: against float64 in plain numpy, for any block of rows, any dtype, both layouts; and every misfit by name."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import read_safetensors, write_safetensors
from tests.unit.lora.adapters import BF16, Q, pair, write_adapter

from trtbuild.errors import TrtbuildError
from trtbuild.lora import Adapter, merged
from trtbuild.lora.merge import TILE_ROWS
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint

Make = Callable[..., Path]
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": BF16}
#: Half a unit in the last place, relative: what one rounding may cost.
ROUNDING = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}


def write_model(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    """Write a model folder with nothing but some tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def merge(model: Path, adapter: Path) -> SourceCheckpoint:
    """Return the model with the adapter merged in."""
    return merged(SourceCheckpoint.open(model), Adapter.open(adapter))


def whole(source: SourceCheckpoint, name: str) -> np.ndarray:
    """Return all rows of a tensor."""
    tensor = source.tensors[name]
    with TensorReader() as reader:
        return tensor.read_rows(reader, 0, tensor.shape[0])


@settings(max_examples=60)
@given(
    rank=st.sampled_from([1, 2, 3, 7]),
    inputs=st.sampled_from([1, 2, 5, 31]),
    outputs=st.sampled_from([1, 3, 6, 29]),
    weight=st.sampled_from(sorted(DTYPES)),
    adapter=st.sampled_from(sorted(DTYPES)),
    transposed=st.booleans(),
    alpha=st.sampled_from([1, 16, 0.5, -2.0]),
    use_rslora=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_merged_weight_is_w_plus_scaled_b_a_rounded_once(
    rank: int,
    inputs: int,
    outputs: int,
    weight: str,
    adapter: str,
    transposed: bool,
    alpha: float,
    use_rslora: bool,
    seed: int,
) -> None:
    a, b = pair(rank, inputs, outputs, seed=seed, dtype=DTYPES[adapter])
    w = np.random.default_rng(seed + 1).normal(0, 1, (outputs, inputs))
    w = (w.T if transposed else w).astype(DTYPES[weight])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = write_model(folder / "model", {f"{Q}.weight": w})
        extra = {"r": rank, "lora_alpha": alpha, "use_rslora": use_rslora, "fan_in_fan_out": transposed}
        got = whole(merge(model, write_adapter(folder / "adapter", {Q: (a, b)}, **extra)), f"{Q}.weight")
    delta = alpha / (rank**0.5 if use_rslora else rank) * (b.astype(np.float64) @ a.astype(np.float64))
    exact = w.astype(np.float64) + (delta.T if transposed else delta)
    size = (
        np.abs(w.astype(np.float64))
        + np.abs(alpha) * (np.abs(b).astype(np.float64) @ np.abs(a).astype(np.float64)).max()
    )
    assert got.dtype == DTYPES[weight]
    # One rounding to the dtype (2**-25 where float16 is subnormal), plus what rank + 3 float32 operations may lose.
    bound = (
        ROUNDING[weight] * np.abs(exact) * 1.01 + (rank + 3) * 2.0**-24 * size + (2.0**-25 if weight == "F16" else 0)
    )
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def test_a_tiny_merge_is_exact_to_the_bit(tmp_path: Path) -> None:
    a = np.array([[1, 2, 3]], dtype=np.float32)
    b = np.array([[1], [0.5]], dtype=np.float32)
    # 256 + 1 and 258 + 1 lie halfway between bfloat16 numbers (steps of 2): half to even gives 256 and 260.
    w = np.array([[256, 10, 256], [258, 0, 1]]).astype(ml_dtypes.bfloat16)
    model = write_model(tmp_path / "model", {f"{Q}.weight": w})
    adapter = write_adapter(tmp_path / "adapter", {Q: (a, b)}, r=1, lora_alpha=1)
    got = whole(merge(model, adapter), f"{Q}.weight").astype(np.float64)
    # Exact sums: [257, 12, 259], [258.5, 1, 2.5].
    assert got.tolist() == [[256, 12, 260], [258, 1, 2.5]]


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_do_not_depend_on_the_block_they_are_read_in(tmp_path: Path, transposed: bool) -> None:
    rows, columns = 2 * TILE_ROWS + 13, 37
    a, b = pair(8, *((rows, columns) if transposed else (columns, rows)), seed=3)
    w = np.random.default_rng(4).normal(0, 1, (rows, columns)).astype(np.float32)
    model = write_model(tmp_path / "model", {f"{Q}.weight": w})
    adapter = write_adapter(tmp_path / "adapter", {Q: (a, b)}, r=8, fan_in_fan_out=transposed)
    tensor = merge(model, adapter).tensors[f"{Q}.weight"]
    with TensorReader() as reader:
        all_rows = tensor.read_rows(reader, 0, rows)
        cuts = [0, 1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 100, 2 * TILE_ROWS, 2 * TILE_ROWS + 1, 140, rows]
        pieces = [tensor.read_rows(reader, low, high) for low, high in itertools.pairwise(cuts)]
        nothing = tensor.read_rows(reader, 5, 5)
    assert nothing.shape == (0, columns)
    assert np.array_equal(np.concatenate(pieces), all_rows)


def test_a_whole_llama_is_merged_and_the_rest_stays(make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (64, 32), "mlp.down_proj": (192, 64)}
    modules = {
        f"model.layers.{layer}.{name}": pair(4, inputs, outputs, seed=layer)
        for layer in (0, 2)
        for name, (inputs, outputs) in shapes.items()
    }
    before = SourceCheckpoint.open(model)
    after = merge(model, write_adapter(tmp_path / "adapter", modules))
    assert list(after.tensors) == list(before.tensors)
    assert (after.path, after.config, after.files, after.nbytes) == (
        before.path,
        before.config,
        before.files,
        before.nbytes,
    )
    plain = read_safetensors(model / "model.safetensors")
    for name, w in plain.items():
        if name.removesuffix(".weight") in modules:
            a, b = modules[name.removesuffix(".weight")]
            exact = w.astype(np.float64) + 2.0 * (b.astype(np.float64) @ a.astype(np.float64))
            tensor = after.tensors[name]
            assert (tensor.name, tensor.shape, tensor.dtype) == (name, w.shape, "BF16")
            assert np.allclose(whole(after, name).astype(np.float64), exact, rtol=2.0**-7, atol=1e-5)
        else:
            assert after.tensors[name] is not None
            assert after.tensors[name] == before.tensors[name]


@pytest.mark.parametrize(
    ("first", "second"), [("model.", ""), ("", "model."), ("transformer.", ""), ("", "transformer.")]
)
def test_the_name_of_the_bare_model_may_differ(tmp_path: Path, first: str, second: str) -> None:
    module, weight = f"{first}layers.0.mlp.up_proj", f"{second}layers.0.mlp.up_proj.weight"
    model = write_model(tmp_path / "model", {weight: np.zeros((5, 6), np.float32)})
    a, b = pair(4, 6, 5, seed=1)
    after = merge(model, write_adapter(tmp_path / "adapter", {module: (a, b)}))
    assert np.allclose(whole(after, weight), 2 * b @ a, atol=1e-6)


def test_gpt2_is_merged_through_its_names_and_its_layout(tmp_path: Path) -> None:
    w = np.random.default_rng(0).normal(0, 1, (6, 18)).astype(np.float16)
    model = write_model(tmp_path / "model", {"h.0.attn.c_attn.weight": w}, model_type="gpt2")
    a, b = pair(4, 6, 18, seed=1)
    after = merge(model, write_adapter(tmp_path / "a", {"transformer.h.0.attn.c_attn": (a, b)}, fan_in_fan_out=True))
    assert np.allclose(
        whole(after, "h.0.attn.c_attn.weight"), w.astype(np.float64) + 2 * (b @ a).T, rtol=1e-3, atol=1e-3
    )


def test_adapters_can_be_merged_one_after_the_other(tmp_path: Path) -> None:
    w = np.random.default_rng(0).normal(0, 1, (5, 6)).astype(np.float32)
    model = write_model(tmp_path / "model", {f"{Q}.weight": w})
    pairs = [pair(4, 6, 5, seed=seed) for seed in (1, 2)]
    source = SourceCheckpoint.open(model)
    for index, each in enumerate(pairs):
        source = merged(source, Adapter.open(write_adapter(tmp_path / str(index), {Q: each})))
    exact = w + sum(2 * b @ a for a, b in pairs)
    assert np.allclose(whole(source, f"{Q}.weight"), exact, atol=1e-5)


Change = Callable[[dict[str, np.ndarray]], object]
MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no such layer": ({}, {"module": "model.layers.9.self_attn.q_proj"}, "changes 1 weights that .* does not have: model.layers.9.self_attn.q_proj.weight"),
    "another shape": ({}, {"inputs": 65}, r"q_proj.weight is \[64, 64\], the adapter needs \[64, 65\]: .*lora_A.weight is \[4, 65\]"),
    "fan_in_fan_out on a Llama": ({}, {"fan_in_fan_out": True}, "fan_in_fan_out=True, but model_type='llama'"),
    "no fan_in_fan_out on a GPT-2": ({"model_type": "gpt2"}, {}, "fan_in_fan_out=False, but model_type='gpt2'"),
    "the other way round": (
        {},
        {"module": "model.layers.0.mlp.down_proj", "inputs": 64, "outputs": 192},
        r"fan_in_fan_out=False, but model.layers.0.mlp.down_proj.weight \[64, 192\] in .* lies the other way round",
    ),
    "a vector": ({}, {"module": "model.norm", "inputs": 64, "outputs": 64}, r"model.norm.weight is \[64\], the adapter needs"),
    "a tied head": (
        {"tie_word_embeddings": True, "edit": lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]})},
        {"module": "lm_head", "outputs": 128},
        "changes lm_head, which .* ties to its embedding",
    ),
    "a quantized base": (
        {"edit": lambda t: t.update({f"{Q}.weight": np.zeros((64, 64), np.int8)})},
        {},
        "q_proj.weight is I8; an adapter can only be added to F16, BF16, F32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_from_headers(make_model: Make, tmp_path: Path, case: str) -> None:
    changes, misfit, message = MISFITS[case]
    given = {"module": Q, "inputs": 64, "outputs": 64, **misfit}
    module = given.pop("module")
    each = pair(4, given.pop("inputs"), given.pop("outputs"), seed=1)
    model, adapter = make_model(**changes), write_adapter(tmp_path / "adapter", {module: each}, **given)
    with pytest.raises(TrtbuildError, match=message) as error:
        merge(model, adapter)
    assert error.value.hint


def test_two_modules_of_one_weight_are_refused(make_model: Make, tmp_path: Path) -> None:
    each = pair(4, 64, 64, seed=1)
    adapter = write_adapter(tmp_path / "adapter", {Q: each, Q.removeprefix("model."): each})
    with pytest.raises(TrtbuildError, match="changes .*q_proj.weight twice, as layers.0.*and as model.layers.0"):
        merge(make_model(), adapter)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_an_adapter_are_named(make_model: Make, tmp_path: Path, side: int, value: float) -> None:
    each = pair(4, 64, 64, seed=1)
    each[side][2, 3] = value
    source = merge(make_model(), write_adapter(tmp_path / "adapter", {Q: each}))
    message = rf"adapter_model.safetensors: base_model.model.{Q}.lora_{'AB'[side]}.weight holds NaN .* first in row 2"
    with pytest.raises(TrtbuildError, match=message):
        whole(source, f"{Q}.weight")


def test_nan_in_the_base_and_overflow_are_told_apart(tmp_path: Path) -> None:
    a, b = np.full((1, 2), 300, np.float32), np.full((2, 1), 300, np.float32)
    adapter = write_adapter(tmp_path / "adapter", {Q: (a, b)}, r=1, lora_alpha=1)
    model = write_model(tmp_path / "model", {f"{Q}.weight": np.ones((2, 2), np.float16)})
    with pytest.raises(
        TrtbuildError, match="q_proj.weight exceeds the range of F16 when .*adapter_model.safetensors is merged"
    ):
        whole(merge(model, adapter), f"{Q}.weight")
    write_model(tmp_path / "model", {f"{Q}.weight": np.full((2, 2), np.nan, np.float16)})
    with pytest.raises(TrtbuildError, match="model.safetensors: .*q_proj.weight holds NaN"):
        whole(merge(model, adapter), f"{Q}.weight")


def test_a_scaling_beyond_float32_is_an_overflow(make_model: Make, tmp_path: Path) -> None:
    source = merge(make_model(), write_adapter(tmp_path / "adapter", {Q: pair(4, 64, 64, seed=1)}, lora_alpha=1e300))
    with pytest.raises(TrtbuildError, match="exceeds the range of BF16"):
        whole(source, f"{Q}.weight")


def test_merging_reads_no_weight(make_model: Make, tmp_path: Path) -> None:
    each = pair(4, 64, 64, seed=1)
    each[0][:] = np.nan
    source = merge(make_model(), write_adapter(tmp_path / "adapter", {Q: each}))
    assert source.tensors[f"{Q}.weight"].shape == (64, 64)
