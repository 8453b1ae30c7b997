"""Cutting over ranks, against vectors worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conftest import T0

from trtbuild.arch.registry import resolve
from trtbuild.dims import ModelDims
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.parallel import Parallel
from trtbuild.shard import Split, SplitQKV, SplitVocab


def dims(**changes: int) -> ModelDims:
    architecture, arch = resolve(T0, where="x")
    return replace(arch.read_dims(T0, architecture, "x"), **changes)


def test_ranks_count_tensor_parallel_first() -> None:
    assert [(r.index, r.tp_rank, r.pp_rank) for r in Parallel(2, 2).ranks()] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [(32, 2, [(0, 16), (16, 32)]), (30, 4, [(0, 8), (8, 16), (16, 23), (23, 30)]), (3, 2, [(0, 2), (2, 3)])],
)
def test_layers_are_spread_without_losing_any(layers: int, pp: int, expected: list[tuple[int, int]]) -> None:
    parallel = Parallel(1, pp)
    ranges = [parallel.layers(layers, stage) for stage in range(pp)]
    assert [(r.start, r.stop) for r in ranges] == expected
    assert [layer for r in ranges for layer in r] == list(range(layers))
    assert all(layer in ranges[parallel.stage_of(layers, layer)] for layer in range(layers))


#: nh 4, nkv 2, head_dim 2: (tp, rank) -> global rows of q, k and v.
GQA = {
    (1, 0): ((0, 8), (0, 4)),
    (2, 0): ((0, 4), (0, 2)),
    (2, 1): ((4, 8), (2, 4)),
    (4, 0): ((0, 2), (0, 2)),
    (4, 1): ((2, 4), (0, 2)),
    (4, 2): ((4, 6), (2, 4)),
    (4, 3): ((6, 8), (2, 4)),
}


@pytest.mark.parametrize(("tp", "rank"), GQA)
def test_kv_heads_are_replicated_when_tp_exceeds_them(tp: int, rank: int) -> None:
    q, kv = GQA[tp, rank]
    model = dims(num_attention_heads=4, num_kv_heads=2, head_dim=2)
    shapes = ((8, 5), (4, 5), (4, 5))
    cuts = [SplitQKV().cut(part, shapes[part], model, Parallel(tp), rank) for part in range(3)]
    assert [(cut.start, cut.stop) for cut in cuts] == [q, kv, kv]
    assert {cut.rows(shape) for cut, shape in zip(cuts, shapes, strict=True)} == {q[1] - q[0], kv[1] - kv[0]}


def test_one_kv_head_is_held_by_every_rank() -> None:
    model = dims(num_attention_heads=4, num_kv_heads=1, head_dim=2)
    assert [SplitQKV().cut(1, (2, 5), model, Parallel(2), rank).start for rank in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("vocab", "tp", "rows", "padding"),
    [(50257, 2, 25129, 1), (32000, 4, 8000, 0), (151936, 8, 18992, 0), (32003, 4, 8001, 1), (5, 4, 2, 1)],
)
def test_vocabulary_is_padded_to_equal_pieces(vocab: int, tp: int, rows: int, padding: int) -> None:
    cuts = [SplitVocab().cut(0, (vocab, 3), dims(), Parallel(tp), rank) for rank in range(tp)]
    assert {cut.size for cut in cuts} == {rows}
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(vocab))
    assert next(cut.pad for cut in reversed(cuts) if cut.start < cut.stop) == padding


def test_an_axis_that_does_not_divide_is_refused() -> None:
    with pytest.raises(TrtbuildError, match="cannot be split over tp=2"):
        Split(1).cut(0, (4, 5), dims(), Parallel(2), 0)


def test_heads_and_widths_that_do_not_divide_name_the_valid_sizes() -> None:
    wide = dims(num_attention_heads=28, num_kv_heads=4, head_dim=128, intermediate_size=18944)
    with pytest.raises(TrtbuildError, match="num_attention_heads=28 cannot be split over tp=8") as caught:
        Parallel(8, 1).check(wide)
    assert caught.value.hint.endswith(": 1, 2, 4")
    with pytest.raises(TrtbuildError, match="num_kv_heads=4 cannot be split over tp=7"):
        Parallel(7, 1).check(wide)
    with pytest.raises(TrtbuildError, match="intermediate_size=190 cannot be split over tp=4"):
        Parallel(4, 1).check(dims(intermediate_size=190))
    Parallel(4, 1).check(wide)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(TrtbuildError, match="num_layers=3 cannot fill pp=4"):
        Parallel(1, 4).check(dims())
    with pytest.raises(UsageError, match="tp_size=0"):
        Parallel(0, 1)


def test_expert_groups_must_divide_the_tensor_parallel_ranks() -> None:
    with pytest.raises(UsageError, match="moe_ep_size=2 does not divide tp_size=3"):
        Parallel(3, moe_ep_size=2).check(dims(num_experts=4, moe_intermediate_size=32))
