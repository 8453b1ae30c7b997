"""SmoothQuant for TensorRT-LLM's plugins: every tensor of a small example by hand, in each mode; what folds into norms; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import GOLDENS, read_safetensors, write_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.convert.encoding import fold_norm, rounded_divisor
from trtbuild.convert.execute import execute
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, plan_conversion
from trtbuild.convert.verify import compare_with_source
from trtbuild.errors import TrtbuildError
from trtbuild.names import SMOOTHQUANT_MODES
from trtbuild.quant.codecs.fp8 import scale_of
from trtbuild.quant.recipes import Recipe, Recipes, SearchSettings, write_recipes
from trtbuild.quant.search.group import Linear, ScaleGroup
from trtbuild.quant.search.moments import InputMoments
from trtbuild.quant.search.smooth import search
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
PLUGINS = [mode for mode in SMOOTHQUANT_MODES if mode != "per_channel"]
STATIC = ("per_tensor", "per_channel_per_tensor")
ROWS = ("per_channel_per_token", "per_channel_per_tensor")
#: The smoothed weight of the worked example (checkpoint specification 2.12).
SMOOTHED = np.array(
    [[0.70, -0.20, 0.10, 0.0], [-1.40, 0.60, 0.20, -0.20], [0.35, 0.05, -0.30, 0.10], [-0.07, 0.0, 0.07, 0.014]],
    np.float32,
)
#: What inputs are divided by, and columns of weights multiplied with.
DIVISOR = np.array([2.0, 0.5, 1.0, 4.0], np.float32)
NORM = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
#: Largest smoothed input.
AMAX = 12.7
LINEARS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
CODES_BY_ROW = [[127, -36, 18, 0], [-127, 54, 18, -18], [127, 18, -109, 36], [-127, 0, 127, 25]]
SCALES_BY_ROW = [0.00551181, 0.01102362, 0.00275591, 0.00055118]
#: Quotients by 1.4 / 127 are 63.5 (a tie that float32 decides), -18.1, 9.1, 0 | -127, 54.4, 18.1, -18.1 | 31.8, 4.5, -27.2, 9.1 | -6.4, 0, 6.4, 1.3.
CODES_BY_TENSOR = [[64, -18, 9, 0], [-127, 54, 18, -18], [32, 5, -27, 9], [-6, 0, 6, 1]]
SCALE_BY_TENSOR = 0.01102362


def small_model(make_model: Make, **config: Any) -> Path:
    """Return a model whose linears repeat the worked example, v_proj twice its values; heads of 8 are the smallest there are."""

    def edit(tensors: dict[str, np.ndarray]) -> None:
        for name in tensors:
            if name.endswith(tuple(f"{linear}.weight" for linear in LINEARS)):
                scaled = SMOOTHED / DIVISOR * np.float32(2 if "v_proj" in name else 1)
                tensors[name] = np.tile(scaled, np.array(tensors[name].shape) // 4)
            elif name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
                tensors[name] = NORM

    sizes = {
        "hidden_size": 4,
        "intermediate_size": 4,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    return make_model(edit=edit, **sizes, num_hidden_layers=1, torch_dtype="float32", **config)


def written(model: Path, mode: str, folder: Path) -> dict[str, np.ndarray]:
    """Convert with the example's divisor and range, and return the rank file."""
    options = ConversionOptions("int8_smoothquant", dtype="float32", smoothquant_mode=mode)
    plan = plan_conversion(OpenedSource(SourceCheckpoint.open(model)), options)
    modules = [f"model.layers.0.{linear}" for linear in LINEARS]
    (folder / "recipes").mkdir(parents=True)
    recipes = dict.fromkeys(modules, Recipe(1 / DIVISOR))
    recipes["model.layers.0.self_attn.o_proj"] = Recipe(1 / np.tile(DIVISOR, 2))
    write_recipes(folder / "recipes", 0, recipes.items())
    stats = CalibrationStats(dict.fromkeys(modules, AMAX), (1.0,), (1.0,), 1, 1, "")
    (folder / "out").mkdir()
    execute(plan, folder / "out", stats=stats, recipes=Recipes.open(folder / "recipes"), advance=lambda _: None)
    (folder / "out" / "config.json").write_text(json.dumps(plan.config()))
    return read_safetensors(folder / "out" / "rank0.safetensors")


@pytest.mark.parametrize("mode", PLUGINS)
def test_every_tensor_of_the_worked_example(mode: str, make_model: Make, tmp_path: Path) -> None:
    found = written(small_model(make_model), mode, tmp_path / "work")
    layer = {
        name.removeprefix("transformer.layers.0."): found[name] for name in found if name.startswith("transformer.")
    }
    codes = np.array(CODES_BY_ROW if mode in ROWS else CODES_BY_TENSOR, np.int8)
    assert layer["attention.qkv.weight"].tolist() == np.concatenate([codes] * 6).tolist()
    for linear in ("attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"):
        assert layer[f"{linear}.weight"].tolist() == (np.tile(codes, 2) if "dense" in linear else codes).tolist(), (
            linear
        )
        scale = layer[f"{linear}.per_channel_scale"]
        assert scale.shape == ((1, 4) if mode in ROWS else (1, 1))
        assert scale.ravel() == pytest.approx(SCALES_BY_ROW if mode in ROWS else [SCALE_BY_TENSOR], rel=1e-5)
    # q, k and v always have a scale per row: their own, or that of their matrix; v is twice as large.
    rows = np.array(SCALES_BY_ROW if mode in ROWS else [SCALE_BY_TENSOR] * 4)
    assert layer["attention.qkv.per_channel_scale"].shape == (1, 24)
    assert layer["attention.qkv.per_channel_scale"][0] == pytest.approx(
        np.concatenate([*[rows] * 4, *[2 * rows] * 2]), rel=1e-5
    )
    for norm in ("input_layernorm", "post_layernorm"):
        assert layer[f"{norm}.weight"].tolist() == [0.5, 4.0, 3.0, 1.0]
        assert layer[f"{norm}.scale_to_int"] == pytest.approx([10.0 if mode in STATIC else 1.0])
    for linear in ("attention.dense", "mlp.proj"):
        assert layer[f"{linear}.smoother"].tolist() == [np.tile(DIVISOR, 2 if "dense" in linear else 1).tolist()]
        assert layer[f"{linear}.smoother"].dtype == np.float32
    static = {
        f"{linear}.act_scale" for linear in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    }
    for name in static if mode in STATIC else ():
        assert layer[name].shape == (1, 1)
        assert layer[name][0] == pytest.approx([0.1])
    for block in ("attention", "mlp") if mode in STATIC else ():
        assert layer[f"{block}.quantization_scaling_factor"] == pytest.approx([10.0])
    named = {name for name in layer if name.endswith(("act_scale", "quantization_scaling_factor"))}
    wanted = static | {"attention.quantization_scaling_factor", "mlp.quantization_scaling_factor"}
    assert named == (wanted if mode in STATIC else set())


@pytest.mark.parametrize("mode", PLUGINS)
def test_the_worked_example_is_read_back_as_the_same_model(mode: str, make_model: Make, tmp_path: Path) -> None:
    model = small_model(make_model)
    written(model, mode, tmp_path / "work")
    checkpoint = Checkpoint.open(tmp_path / "work" / "out")
    found = dict(checkpoint.hf_tensors())
    given = read_safetensors(model / "model.safetensors")
    for name, exact in given.items():
        values = found[name].astype(np.float32)
        if "layernorm" in name:
            assert values.tolist() == (NORM / DIVISOR).tolist()
            continue
        is_folded = name.endswith(tuple(f"{each}_proj.weight" for each in ("q", "k", "v", "gate", "up")))
        assert np.abs((values / DIVISOR if is_folded else values) - exact).max() <= 0.0056 * 2 / DIVISOR.min()
    roundings = checkpoint.input_roundings()
    assert roundings["model.layers.0.mlp.up_proj"].scale == pytest.approx(0.1 if mode in STATIC else 0.0)
    assert roundings["model.layers.0.self_attn.q_proj"].multiplier is None
    assert roundings["model.layers.0.mlp.down_proj"].multiplier == pytest.approx(1 / DIVISOR)


def test_scales_that_are_split_otherwise_are_refused_instead_of_misread(make_model: Make, tmp_path: Path) -> None:
    tensors = dict(written(small_model(make_model), "per_channel_per_tensor", tmp_path / "work"))
    name = "transformer.layers.0.mlp.proj"
    for part, factor in (("act_scale", 3.0), ("per_channel_scale", 1 / 3)):
        tensors[f"{name}.{part}"] = tensors[f"{name}.{part}"] * np.float32(factor)
    write_safetensors(tmp_path / "work" / "out" / "rank0.safetensors", tensors)
    with pytest.raises(TrtbuildError, match="split in a way that this version does not read"):
        Checkpoint.open(tmp_path / "work" / "out").input_roundings()


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_damaged_norm_is_found_by_what_it_feeds(part: str, tmp_path: Path) -> None:
    options = ConversionOptions("int8_smoothquant", dtype="float16", smoothquant_mode="per_tensor_per_token")
    plan = plan_conversion(OpenedSource(SourceCheckpoint.open(GOLDENS / "gpt2" / "source")), options)
    divisors: dict[int, dict[str, Recipe]] = {}
    for slot in plan.layout.slots:
        if slot.rule.quantizable:
            columns = slot.parts[0].shape[1]
            recipe = Recipe(np.linspace(0.3, 3, columns, dtype=np.float32))
            divisors.setdefault(slot.layer, {})[slot.parts[0].module] = recipe
    (tmp_path / "recipes").mkdir()
    for layer, recipes in divisors.items():
        write_recipes(tmp_path / "recipes", layer, recipes.items())
    out = tmp_path / "out"
    out.mkdir()
    execute(plan, out, stats=None, recipes=Recipes.open(tmp_path / "recipes"), advance=lambda _: None)
    (out / "config.json").write_text(json.dumps(plan.config()))
    assert compare_with_source(Checkpoint.open(out), plan, advance=lambda _: None)[0] == []
    tensors = dict(read_safetensors(out / "rank0.safetensors"))
    name = f"transformer.layers.1.post_layernorm.{part}"
    tensors[name] = (tensors[name] * np.float32(1.25)).astype(np.float16)
    write_safetensors(out / "rank0.safetensors", tensors)
    findings, _ = compare_with_source(Checkpoint.open(out), plan, advance=lambda _: None)
    found_at = {
        "weight": {"transformer.layers.1.mlp.fc.weight", "transformer.layers.1.post_layernorm.bias"},
        "bias": {name},
    }
    assert {finding.tensor for finding in findings} == found_at[part]


def group_of(weight: list[list[float]], inputs: list[list[float]], *, dtype: str) -> ScaleGroup:
    moments = InputMoments(len(inputs[0]), block=0, device="cpu")
    moments.add(torch.tensor(inputs))
    moments.finish()
    settings = SearchSettings("smooth", alpha=0.5, is_divisor=True)
    return ScaleGroup([Linear("linear", torch.tensor(weight), moments)], dtype, settings)


def test_the_divisor_of_a_channel_is_that_of_its_ranges_in_bfloat16() -> None:
    """By hand: inputs up to 16 and weights up to 4 give 16^0.5 / 4^0.5 = 2; a channel that is silent is left alone."""
    ((_, recipe),) = search(
        group_of([[4.0, 1.0, 3.0], [-1.0, 1.0, 3.0]], [[-16.0, 0.0, 2.0], [1.0, 0.0, 1.0]], dtype="BF16")
    )
    assert recipe.pre_quant_scale is not None
    assert recipe.pre_quant_scale[:2].tolist() == [0.5, 1.0]
    divisor = 1 / recipe.pre_quant_scale[2]
    assert divisor == pytest.approx(np.sqrt(2 / 3), rel=2**-8)
    assert float(np.float32(divisor).astype(ml_dtypes.bfloat16)) == pytest.approx(divisor, rel=1e-7), "a bfloat16"


@pytest.mark.parametrize("mode", STATIC)
def test_layers_that_are_silent_get_finite_scales(mode: str, make_model: Make, cli: Cli, tmp_path: Path) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        for name in tensors:
            tensors[name] *= "layers" not in name

    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [1, 2, 3, 4]}\n')
    options = ("--quantization", "int8_smoothquant", "--smoothquant-mode", mode, "--calibration", ids)
    code, _, err = cli("convert", make_model(edit=edit), "-o", tmp_path / "out", *options)
    assert (code, "RuntimeWarning" in err) == (0, False), err
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    assert "transformer.layers.0.input_layernorm.scale_to_int" in tensors
    for name, tensor in tensors.items():
        assert np.isfinite(tensor.astype(np.float32)).all(), name


@given(st.floats(0, 2.0**127, width=32), st.sampled_from([127.0, 448.0, 2688.0]))
def test_a_static_scale_has_a_finite_reciprocal(amax: float, limit: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        scale = scale_of(amax, limit)
        assert np.isfinite(np.float32(1) / scale)
    assert float(scale) == pytest.approx(np.float32(amax) / np.float32(limit), rel=1e-6) or amax < limit * 2**-125


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_divisor_comes_back_from_the_multiplier_that_it_makes(dtype: str) -> None:
    kind = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}[dtype]
    divisor = np.random.default_rng(0).uniform(1e-4, 1e4, 4096).astype(kind).astype(np.float32)
    assert (rounded_divisor(1 / divisor, dtype) == divisor).all()


def test_a_folded_norm_stays_in_the_range_of_its_dtype_and_weights_follow_it() -> None:
    norm, multiplier = np.array([60000.0, 0.0, 1e-7, 2.0], np.float16), np.array([1e4, 8.0, 1e-4, 0.3], np.float32)
    stored, effective = fold_norm(norm, multiplier, offset=0.0, kept=0.0, dtype="F16")
    assert stored.tolist()[:3] == [65504.0, 0.0, 0.0]
    assert effective[0] == pytest.approx(65504 / norm[0].astype(np.float32))
    assert effective[1:3].tolist() == [1.0, 1.0], "what carries nothing is left alone"
    assert effective[3] == stored[3].astype(np.float32) / 2


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"input_ids": list(range(first, first + 20))}) + "\n" for first in range(8)))
    return file


@pytest.mark.parametrize("torch_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", PLUGINS)
def test_cut_over_ranks_it_is_what_one_rank_holds(
    mode: str, torch_dtype: str, cli: Cli, make_model: Make, tmp_path: Path, ids: Path
) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.input_layernorm.weight"][3] = 0  # a closed channel

    model = make_model(torch_dtype=torch_dtype, edit=edit)
    options = (
        "--target",
        "tensorrt",
        "--quantization",
        "int8_smoothquant",
        "--smoothquant-mode",
        mode,
        "--calibration",
        ids,
    )
    for folder, cuts in (("one", ()), ("two", ("--tp", "2"))):
        code, _, err = cli("convert", model, "-o", tmp_path / folder, *options, *cuts)
        assert code == 0, err
        assert cli("verify", tmp_path / folder)[0] == 0
        assert ("lost whole models" in err) == (mode not in ROWS)
    one = read_safetensors(tmp_path / "one" / "rank0.safetensors")
    pair = [read_safetensors(tmp_path / "two" / f"rank{rank}.safetensors") for rank in (0, 1)]
    # Axis along which the ranks' tensors make the whole, None for what both hold; q, k and v are put together by the reader.
    axes = {
        **{f"mlp.{name}.weight": 0 for name in ("fc", "gate")},
        **{f"{name}.weight": 1 for name in ("attention.dense", "mlp.proj")},
        **{f"{name}.smoother": 1 for name in ("attention.dense", "mlp.proj")},
        **{f"mlp.{name}.per_channel_scale": 1 if mode in ROWS else None for name in ("fc", "gate")},
        **{f"{name}.per_channel_scale": None for name in ("attention.dense", "mlp.proj")},
        **{
            f"{name}.{part}": None
            for name in ("input_layernorm", "post_layernorm")
            for part in ("weight", "scale_to_int")
        },
    }
    for name, axis in axes.items():
        for layer in range(3):
            tensor = f"transformer.layers.{layer}.{name}"
            pieces = [rank[tensor] for rank in pair]
            if axis is None:
                assert all((piece == one[tensor]).all() for piece in pieces), tensor
            else:
                assert (np.concatenate(pieces, axis) == one[tensor]).all(), tensor
    found = dict(Checkpoint.open(tmp_path / "two").hf_tensors())
    for name, values in Checkpoint.open(tmp_path / "one").hf_tensors():
        assert np.array_equal(values, found[name]), name


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel_per_token"])
def test_interrupted_and_repeated_conversions_write_the_same_bytes(
    mode: str, cli: Cli, make_model: Make, tmp_path: Path, ids: Path
) -> None:
    options = (
        "--target",
        "tensorrt",
        "--quantization",
        "int8_smoothquant",
        "--smoothquant-mode",
        mode,
        "--calibration",
        ids,
    )
    model = make_model()
    for folder in ("a", "b"):
        assert cli("convert", model, "-o", tmp_path / folder, *options)[0] == 0
    assert (tmp_path / "a" / "rank0.safetensors").read_bytes() == (tmp_path / "b" / "rank0.safetensors").read_bytes()
    config = json.loads((tmp_path / "a" / "config.json").read_text())["quantization"]
    assert config == {"quant_algo": SMOOTHQUANT_MODES[mode], "smoothquant_val": 0.5, "kv_cache_quant_algo": None}


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "another scheme": (
        {},
        ("--quantization", "fp8"),
        "--smoothquant-mode applies to int8_smoothquant, not to 'fp8'",
        "leave out",
    ),
    "a unified folder": (
        {},
        ("--quantization", "int8_smoothquant", "--target", "pytorch"),
        "has no form that TensorRT-LLM's PyTorch backend loads",
        "'int8_smoothquant' itself works with --target tensorrt",
    ),
    "an exclusion": (
        {},
        ("--quantization", "int8_smoothquant", "--exclude", "*.down_proj"),
        "the first is model.layers.0.mlp.down_proj (none)",
        "use --smoothquant-mode per_channel",
    ),
    "a mixture": (
        {},
        ("--quantization", "fp8", "--override", "*.mlp.*=int8_smoothquant"),
        "model.layers.0.self_attn.q_proj (fp8)",
        "leave out --exclude and --override",
    ),
    "norms of queries": (
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "qk_norm": True, "head_dim": 16},
        ("--quantization", "int8_smoothquant"),
        "TensorRT-LLM's SmoothQuant layers do not fit Qwen3ForCausalLM",
        "--smoothquant-mode per_channel works",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_plugins_do_not_take_is_refused_in_the_plan(case: str, cli: Cli, make_model: Make) -> None:
    config, options, problem, hint = REFUSED[case]
    target = () if "--target" in options else ("--target", "tensorrt")
    code, _, err = cli("plan", make_model(**config), *target, *options, "--smoothquant-mode", "per_channel_per_token")
    told = " ".join(err.split())
    assert code in (1, 2)
    assert problem in told
    assert hint in told


def test_experts_are_refused_with_a_scheme_that_works(cli: Cli) -> None:
    model = GOLDENS / "mixtral" / "source"
    options = ("--quantization", "int8_smoothquant", "--smoothquant-mode", "per_tensor", "--target", "tensorrt")
    code, _, err = cli("plan", model, *options)
    assert code == 2
    assert "--quantization fp8 works" in " ".join(err.split())
