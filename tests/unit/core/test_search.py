"""Searches: never worse than plain rounding, exact about what they return, safe with inputs that never come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.quant.recipes import Recipe, SearchSettings
from trtbuild.quant.search import SEARCHES
from trtbuild.quant.search.apply import quantized_weight
from trtbuild.quant.search.factored import DAMPING, Factored, permute
from trtbuild.quant.search.gptq import compensations, round_in_order
from trtbuild.quant.search.group import Linear, ScaleGroup
from trtbuild.quant.search.int4 import clipped_scales, decode, encode, group_scales
from trtbuild.quant.search.moments import InputMoments
from trtbuild.quant.search.rows import FloatRows, StoredRows

GROUP = 8


def moments_of(inputs: torch.Tensor, block: int | None = None) -> InputMoments:
    moments = InputMoments(inputs.shape[1], block=inputs.shape[1] if block is None else block)
    for part in inputs.split(5):
        moments.add(part[None])
    moments.finish()
    return moments


def make(
    seed: int, *, rows: tuple[int, ...] = (12, 6), columns: int = 32, tokens: int = 40, block: int | None = None
) -> tuple[list[torch.Tensor], torch.Tensor, list[Linear]]:
    """Return weights, inputs with a few large and correlated channels, and the linears of both."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(columns, generator=generator).exp()
    mixing = torch.eye(columns) + 0.3 * torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(tokens, columns, generator=generator) * spread @ mixing
    weights = [torch.randn(count, columns, generator=generator) * 0.1 for count in rows]
    moments = moments_of(inputs, block)
    return weights, inputs, [Linear(f"linear{number}", weight, moments) for number, weight in enumerate(weights)]


def run(kind: str, linears: list[Linear], dtype: str = "F16", **options: Any) -> dict[str, Recipe]:
    size = 0 if kind == "smooth" else GROUP
    return dict(SEARCHES[kind].run(ScaleGroup(linears, dtype, SearchSettings(kind, size, **options))))


def output_error(inputs: torch.Tensor, weights: list[torch.Tensor], rounded: list[torch.Tensor]) -> float:
    pairs = zip(weights, rounded, strict=True)
    return sum(float(((new - old).double() @ inputs.double().T).square().sum()) for old, new in pairs)


def plain(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight rounded to the nearest code, written anew and slowly."""
    out = weight.clone()
    for row in range(len(weight)):
        for start in range(0, weight.shape[1], GROUP):
            part = weight[row, start : start + GROUP].numpy()
            scale = np.float32(np.abs(part).max() / np.float32(7)) or np.float32(1)
            out[row, start : start + GROUP] = torch.from_numpy(np.clip(np.rint(part / scale), -8, 7) * scale)
    return out


@given(seed=st.integers(0, 10**6), columns=st.sampled_from([8, 24, 32]), tokens=st.integers(1, 60))
@settings(max_examples=15)
@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_a_search_is_not_worse_than_plain_rounding(kind: str, seed: int, columns: int, tokens: int) -> None:
    weights, inputs, linears = make(seed, columns=columns, tokens=tokens)
    recipes = run(kind, linears)
    rounded = [quantized_weight(linear.weight, recipes[linear.module]) for linear in linears]
    limit = output_error(inputs, weights, [plain(weight) for weight in weights])
    assert output_error(inputs, weights, rounded) <= limit * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("kind", ["awq", "gptq", "smooth"])
def test_recipes_have_the_agreed_form(kind: str, dtype: str) -> None:
    _, _, linears = make(3)
    recipes = run(kind, linears, dtype)
    torch_dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    for linear in linears:
        recipe = recipes[linear.module]
        if recipe.pre_quant_scale is not None:
            factor = torch.from_numpy(recipe.pre_quant_scale)
            assert torch.equal(factor.to(torch_dtype).float(), factor)
            assert np.array_equal(factor, recipes["linear0"].pre_quant_scale)
        assert recipe.weight_scale is not None
        assert recipe.weight_scale.dtype == np.float32
        assert recipe.weight_scale.shape == (len(linear.weight), *(() if kind == "smooth" else (4,)))
        assert recipe.weight_scale.min() > 0
    codes = recipes["linear0"].codes
    assert (codes is None) == (kind != "gptq")
    if codes is not None:
        assert (codes.dtype, codes.shape, codes.min() >= -8, codes.max() <= 7) == (np.int8, (12, 32), True, True)


@pytest.mark.parametrize("kind", ["awq", "gptq", "smooth"])
def test_channels_that_never_fire_and_weights_of_zero_do_no_harm(kind: str) -> None:
    weights, inputs, _ = make(4)
    inputs[:, 3] = 0
    inputs[:, 8:16] = 0
    weights[0][:, 16:24] = 0
    weights[1][2] = 0
    weights[1][4] = 0.5
    for block in (32, 8):
        linears = [Linear(str(number), weight, moments_of(inputs, block)) for number, weight in enumerate(weights)]
        recipes = run(kind, linears)
        for linear in linears:
            rounded = quantized_weight(linear.weight, recipes[linear.module])
            assert bool(torch.isfinite(rounded).all())
            assert not rounded[linear.weight == 0].any()
    silent = [Linear("x", weights[0], moments_of(torch.zeros(3, 32)))]
    assert bool(torch.isfinite(quantized_weight(weights[0], run(kind, silent)["x"])).all())


def test_experts_with_inputs_of_their_own_share_a_factor() -> None:
    weights, inputs, _ = make(5, rows=(8, 8, 8))
    own = [inputs, inputs.flip(1), inputs * 2]
    linears = [Linear(str(number), weights[number], moments_of(own[number], GROUP)) for number in range(3)]
    recipes = run("awq", linears)
    assert (
        len({recipe.pre_quant_scale.tobytes() for recipe in recipes.values() if recipe.pre_quant_scale is not None})
        == 1
    )
    for linear, seen in zip(linears, own, strict=True):
        rounded = quantized_weight(linear.weight, recipes[linear.module])
        assert (
            output_error(seen, [linear.weight], [rounded])
            < output_error(seen, [linear.weight], [plain(linear.weight)]) * 2
        )


def test_smoothing_follows_the_formula() -> None:
    weights, inputs, linears = make(6)
    amax, largest = inputs.abs().amax(0), torch.cat(weights).abs().amax(0)
    for alpha in (0.0, 0.5, 1.0):
        factor = run("smooth", linears, "F32", alpha=alpha)["linear0"].pre_quant_scale
        torch.testing.assert_close(torch.from_numpy(factor), largest ** (1 - alpha) / amax**alpha)


@given(seed=st.integers(0, 10**6), block=st.sampled_from([8, 16, 32]), tokens=st.integers(1, 700))
@settings(max_examples=15)
def test_moments_are_those_of_all_tokens(seed: int, block: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(tokens, 32, generator=generator)
    moments = moments_of(inputs, block)
    whole = inputs.T @ inputs
    for number, found in enumerate(moments.second):
        part = slice(number * block, (number + 1) * block)
        torch.testing.assert_close(found, whole[part, part], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(moments.mean, inputs.abs().mean(0), rtol=1e-4, atol=1e-5)
    assert torch.equal(moments.amax, inputs.abs().amax(0))
    assert torch.equal(moments.diagonal(8)[-1], moments.second[-1][-8:, -8:])
    difference = torch.randn(5, 32, generator=generator)
    if block == 32:
        assert moments.error(difference) == pytest.approx(float((difference @ inputs.T).square().sum()), rel=1e-3)


@pytest.mark.parametrize(("dtype", "digits"), [("F16", 11), ("BF16", 8), ("F32", 21)])
def test_smoothed_scales_are_of_ranges_in_the_models_dtype(dtype: str, digits: int) -> None:
    weights, inputs, linears = make(8)
    weights[1][2] = 0
    for alpha in (0.5, 1.0):
        recipes = run("smooth", linears, dtype, alpha=alpha)
        amax, largest = inputs.abs().amax(0).double(), torch.cat(weights).abs().amax(0).double()
        exact = largest ** (1 - alpha) / amax**alpha
        for linear, weight in zip(linears, weights, strict=True):
            recipe = recipes[linear.module]
            scale, seen = torch.from_numpy(recipe.weight_scale), torch.from_numpy(recipe.input_amax)
            ranges = (weight / exact).abs().amax(1)
            torch.testing.assert_close(scale.double() * 127, ranges.where(ranges > 0, 127.0), rtol=2.0**-digits, atol=0)
            torch.testing.assert_close(seen.double(), (amax * exact).amax()[None], rtol=2.0 ** (1 - digits), atol=0)
            rounded, factor = quantized_weight(weight, recipe), torch.from_numpy(recipe.pre_quant_scale)
            limit = scale[:, None] * factor / 2
            assert bool(((rounded - weight).abs() <= limit * (1 + 1e-4)).all())


def test_clipping_takes_the_best_of_its_ratios() -> None:
    weights, inputs, _ = make(7)
    second = moments_of(inputs, GROUP).second
    scales, errors = clipped_scales(weights[0], second, GROUP)
    whole = group_scales(weights[0], GROUP)
    for ratio in (1.0, 0.8, 0.5):
        wrong = decode(encode(weights[0], whole * ratio), whole * ratio) - weights[0]
        alone = torch.stack(
            [(wrong[:, g * 8 : g * 8 + 8] @ second[g] * wrong[:, g * 8 : g * 8 + 8]).sum(1) for g in range(4)], 1
        )
        assert bool((errors <= alone * (1 + 1e-4)).all())
    assert bool((scales <= whole).all())


def test_rounding_in_order_without_correlation_is_plain_rounding() -> None:
    weights, _, _ = make(8)
    scales = group_scales(weights[0], GROUP)
    for by_size in (False, True):
        blocks = compensations(torch.diag(torch.rand(32) + 0.5)[None], torch.ones(32), by_size=by_size)
        found = round_in_order(weights[0], blocks, scales)
        assert torch.equal(found.codes, encode(weights[0], scales))
        assert found.error == found.nearest_error > 0


def test_the_order_of_columns_is_undone() -> None:
    for by_size in (False, True):
        weights, inputs, linears = make(9)
        recipe = run("gptq", linears, act_order=by_size)["linear0"]
        rounded = quantized_weight(weights[0], recipe)
        assert output_error(inputs, weights[:1], [rounded]) < 0.8 * output_error(
            inputs, weights[:1], [plain(weights[0])]
        )


def the_papers_codes(weight: torch.Tensor, second: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """GPTQ as the paper has it, one column after another, with the Cholesky factor of the inverse, in float64."""
    second = second.double().clone()
    second.diagonal().add_(0.01 * second.diagonal().mean())
    factor = torch.linalg.cholesky(torch.linalg.inv(second), upper=True)
    left, codes = weight.double().clone(), torch.empty_like(weight)
    steps = scales.double().repeat_interleave(weight.shape[1] // scales.shape[1], dim=1)
    for column in range(weight.shape[1]):
        codes[:, column] = (left[:, column] / steps[:, column]).round().clamp(-8, 7).float()
        error = (left[:, column] - codes[:, column] * steps[:, column]) / factor[column, column]
        left[:, column:] -= error[:, None] * factor[column, column:]
    return codes


@pytest.mark.parametrize("columns", [32, 128, 320])
def test_codes_are_the_papers(columns: int) -> None:
    weights, inputs, _ = make(11, columns=columns, tokens=4 * columns)
    second, scales = moments_of(inputs).second, group_scales(weights[0], GROUP)
    expected = the_papers_codes(weights[0], second[0], scales)
    found = round_in_order(weights[0], compensations(second.clone(), torch.ones(columns), by_size=False), scales)
    assert (
        found.codes == expected
    ).float().mean() > 0.99  # float32 rounds a few the other way, and those that follow make up for it
    rounded = decode(found.codes, scales)
    assert found.error == pytest.approx(output_error(inputs, weights[:1], [rounded]), rel=1e-3)
    assert found.nearest_error == pytest.approx(output_error(inputs, weights[:1], [plain(weights[0])]), rel=1e-3)
    assert found.error < 0.8 * found.nearest_error


@given(seed=st.integers(0, 10**6), size=st.integers(1, 300), rank=st.integers(1, 400))
@settings(max_examples=10)
def test_a_matrix_and_its_factor_lie_in_one(seed: int, size: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rank, size, generator=generator)
    matrix = inputs.T @ inputs
    kept = matrix.clone()
    factored = Factored(matrix)
    factor = torch.zeros(size, size, dtype=torch.float64)
    for number, (start, stop) in enumerate(factored.spans):
        factor[:start, start:stop] = factored.above(number)
        factor[start:stop, start:stop] = factored.on_diagonal(number)
    assert torch.equal(factor, factor.triu())
    damped = kept.double() + DAMPING * kept.diagonal().mean() * torch.eye(size)
    torch.testing.assert_close(factor @ factor.T, damped, rtol=1e-4, atol=1e-4 * float(kept.diagonal().max()))
    differences = torch.randn(size, 7, generator=generator)
    expected = float((inputs.double() @ differences.double()).square().sum())
    assert factored.error(differences) == pytest.approx(expected, rel=1e-3)


def test_a_matrix_that_cannot_be_factored_passes_nothing_on(caplog: pytest.LogCaptureFixture) -> None:
    weights, _, _ = make(12)
    matrix = torch.ones(32, 32)
    matrix[0, 1] = matrix[1, 0] = 1e20
    scales = group_scales(weights[0], GROUP)
    found = round_in_order(weights[0], compensations(matrix[None], torch.ones(32), by_size=False), scales)
    assert torch.equal(found.codes, encode(weights[0], scales))
    assert "second moments of 32 channels are no positive matrix" in caplog.text


def test_an_order_is_a_permutation_of_rows_and_columns() -> None:
    matrix, order = torch.randn(300, 300), torch.randperm(300)
    expected = matrix[order][:, order]
    permute(matrix, order)
    assert torch.equal(matrix, expected)


@given(tokens=st.lists(st.integers(1, 300), min_size=1, max_size=9), block=st.sampled_from([8, 32]))
@settings(max_examples=10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_from_a_file_are_the_same_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, tokens: list[int], block: int
) -> None:
    file = tmp_path_factory.mktemp("moments") / "inputs.bin"
    one, two = InputMoments(32, block=block), InputMoments(32, block=block, file=file)
    for count in tokens:
        inputs = torch.randn(1, count, 32).to(dtype)
        one.add(inputs)
        two.add(inputs)
    one.finish()
    two.finish()
    assert file.stat().st_size == sum(tokens) * 32 * dtype.itemsize
    assert two.second.numel() == 0
    two.recall()
    assert not file.exists()
    for name in ("amax", "abs_sum", "second", "tokens"):
        assert torch.equal(torch.as_tensor(getattr(one, name)), torch.as_tensor(getattr(two, name)))


def test_rows_of_a_file_are_those_that_were_put_there(tmp_path: Path) -> None:
    matrix = torch.randn(11, 5).to(torch.float16)
    rows = StoredRows(tmp_path / "rows.bin", 5)
    rows.append(matrix[:4])
    rows.append(matrix[4:])
    assert (rows.shape, len(rows)) == ((11, 5), 11)
    for part in (slice(0, 11), slice(3, 4), slice(0, 99), slice(0, 11, 3), slice(2, 9, 4)):
        assert torch.equal(rows[part], matrix[part].float())
        assert torch.equal(FloatRows(matrix)[part], matrix[part].float())
    rows.remove()
    assert not (tmp_path / "rows.bin").exists()
