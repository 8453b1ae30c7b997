"""What conversion writes, compared with slices of the source taken by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conftest import read_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.convert import budget
from trtbuild.convert import execute as module
from trtbuild.convert.execute import execute
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, plan_conversion
from trtbuild.errors import TrtbuildError
from trtbuild.parallel import Parallel
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
Tensors = dict[str, np.ndarray]


def convert(
    folder: Path, out: Path, tp: int = 1, pp: int = 1, *, vocab_embedding: bool = False, **options: Any
) -> list[Tensors]:
    parallel = Parallel(tp, pp, vocab_embedding=vocab_embedding)
    plan = plan_conversion(OpenedSource(SourceCheckpoint.open(folder)), ConversionOptions(parallel=parallel, **options))
    out.mkdir()
    done: list[int] = []
    result = execute(plan, out, stats=None, advance=done.append)
    assert sum(done) == plan.rows_bytes
    ranks = [read_safetensors(out / f"rank{rank}.safetensors") for rank in range(parallel.world_size)]
    for index, tensors in enumerate(ranks):
        digests = result.digests[f"rank{index}.safetensors"]
        assert digests == {
            name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in sorted(tensors.items())
        }
    return ranks


def source_of(folder: Path) -> Tensors:
    return read_safetensors(folder / "model.safetensors")


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and left.tobytes() == np.ascontiguousarray(right).tobytes()
    )


def test_bytes_are_kept_and_mlp_names_are_crossed(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    (rank,), source = convert(folder, tmp_path / "out"), source_of(folder)
    hf = "model.layers.2"
    qkv = np.concatenate([source[f"{hf}.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert same(rank["transformer.layers.2.attention.qkv.weight"], qkv)
    assert same(rank["transformer.layers.2.mlp.fc.weight"], source[f"{hf}.mlp.gate_proj.weight"])
    assert same(rank["transformer.layers.2.mlp.gate.weight"], source[f"{hf}.mlp.up_proj.weight"])
    assert same(rank["transformer.layers.2.mlp.proj.weight"], source[f"{hf}.mlp.down_proj.weight"])
    assert same(rank["transformer.layers.2.attention.dense.weight"], source[f"{hf}.self_attn.o_proj.weight"])
    assert same(rank["transformer.layers.2.post_layernorm.weight"], source[f"{hf}.post_attention_layernorm.weight"])
    assert same(rank["transformer.ln_f.weight"], source["model.norm.weight"])
    assert rank["lm_head.weight"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("block_bytes", [1, 300, 2**24])
def test_row_and_column_slices_are_right_whatever_the_block_size(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(budget, "LARGEST_BLOCK_BYTES", block_bytes)
    folder = make_model(vocab_size=129)
    ranks, source = convert(folder, tmp_path / "out", 2, vocab_embedding=True), source_of(folder)
    down, up = source["model.layers.0.mlp.down_proj.weight"], source["model.layers.0.mlp.up_proj.weight"]
    q, k, v = (source[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv")
    for r, rank in enumerate(ranks):
        layer = "transformer.layers.0"
        assert same(rank[f"{layer}.mlp.proj.weight"], down[:, 96 * r : 96 * (r + 1)])
        assert same(rank[f"{layer}.mlp.gate.weight"], up[96 * r : 96 * (r + 1)])
        expected = np.concatenate([q[32 * r : 32 * (r + 1)], k[16 * r : 16 * (r + 1)], v[16 * r : 16 * (r + 1)]])
        assert same(rank[f"{layer}.attention.qkv.weight"], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_codes_looked_up_are_those_computed(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder = make_model(torch_dtype=dtype)
    plan = plan_conversion(OpenedSource(SourceCheckpoint.open(folder)), ConversionOptions(quantization="fp8"))
    modules = [part.module for slot in plan.layout.slots if slot.rule.quantizable for part in slot.parts]
    stats = CalibrationStats(dict.fromkeys(modules, 2.0), (), (), 1, 1, "")
    files = []
    for name, least in (("looked up", 0), ("computed", 2**60)):
        monkeypatch.setattr("trtbuild.convert.cast.LEAST_TABLED", least)
        (tmp_path / name).mkdir()
        module.execute(plan, tmp_path / name, stats=stats, advance=lambda _: None)
        files.append((tmp_path / name / "rank0.safetensors").read_bytes())
    assert files[0] == files[1]
    source, rank = source_of(folder), read_safetensors(tmp_path / "computed" / "rank0.safetensors")
    weight = source["model.layers.0.self_attn.o_proj.weight"].astype(np.float64)
    scale = float(np.float32(np.abs(weight).max()) / np.float32(448))
    decoded = rank["transformer.layers.0.attention.dense.weight"].astype(np.float64) * scale
    assert (np.abs(decoded - weight) <= np.maximum(np.abs(weight) / 16, scale / 1024) * 1.00001).all()


@pytest.mark.parametrize(("tp", "rows"), [(2, 65), (4, 33)])
def test_padding_rows_of_the_vocabulary_are_zero(make_model: Make, tmp_path: Path, tp: int, rows: int) -> None:
    folder = make_model(vocab_size=129)
    ranks, source = convert(folder, tmp_path / "out", tp, vocab_embedding=True), source_of(folder)
    for name, original in (
        ("lm_head.weight", "lm_head.weight"),
        ("transformer.vocab_embedding.weight", "model.embed_tokens.weight"),
    ):
        assert all(rank[name].shape == (rows, 64) for rank in ranks)
        whole = np.concatenate([rank[name] for rank in ranks])
        assert same(whole[:129], source[original])
        assert not whole[129:].astype(np.float32).any()


def test_few_kv_heads_are_replicated_in_weights_and_biases(make_model: Make, tmp_path: Path) -> None:
    biases = ("q_proj", "k_proj", "v_proj")
    shape = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 8}
    folder = make_model(architectures=["Qwen2ForCausalLM"], model_type="qwen2", biases=biases, **shape)
    ranks, source = convert(folder, tmp_path / "out", 4), source_of(folder)
    for kind in ("weight", "bias"):
        q, k, v = (source[f"model.layers.1.self_attn.{part}_proj.{kind}"] for part in "qkv")
        for r, rank in enumerate(ranks):
            kv = slice(8 * (r // 2), 8 * (r // 2) + 8)
            assert same(
                rank[f"transformer.layers.1.attention.qkv.{kind}"],
                np.concatenate([q[24 * r : 24 * r + 24], k[kv], v[kv]]),
            )


def test_row_parallel_biases_are_whole_on_every_rank(make_model: Make, tmp_path: Path) -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    folder = make_model(biases=names, attention_bias=True, mlp_bias=True)
    ranks, source = convert(folder, tmp_path / "out", 2), source_of(folder)
    for rank in ranks:
        assert same(rank["transformer.layers.0.mlp.proj.bias"], source["model.layers.0.mlp.down_proj.bias"])
        assert same(rank["transformer.layers.0.attention.dense.bias"], source["model.layers.0.self_attn.o_proj.bias"])


def test_stages_number_their_layers_from_zero_and_hold_the_ends_once(make_model: Make, tmp_path: Path) -> None:
    folder = make_model(num_hidden_layers=4)
    ranks, source = convert(folder, tmp_path / "out", 2, 2), source_of(folder)
    for index, rank in enumerate(ranks):
        assert {name.split(".")[2] for name in rank if ".layers." in name} == {"0", "1"}
        assert ("transformer.vocab_embedding.weight" in rank) == (index < 2)
        assert ("lm_head.weight" in rank) == ("transformer.ln_f.weight" in rank) == (index >= 2)
    o_proj = source["model.layers.3.self_attn.o_proj.weight"]
    assert same(ranks[3]["transformer.layers.1.attention.dense.weight"], o_proj[:, 32:])


def test_uneven_stages_lose_no_layer(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    first, second = convert(folder, tmp_path / "out", 1, 2)
    source = source_of(folder)
    assert same(first["transformer.layers.1.input_layernorm.weight"], source["model.layers.1.input_layernorm.weight"])
    assert same(second["transformer.layers.0.input_layernorm.weight"], source["model.layers.2.input_layernorm.weight"])
    assert "transformer.layers.1.input_layernorm.weight" not in second


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_a_tied_head_is_written_as_rows_of_the_embedding(make_model: Make, tmp_path: Path, tp: int, pp: int) -> None:
    folder = make_model(tie_word_embeddings=True)
    ranks, source = convert(folder, tmp_path / "out", tp, pp), source_of(folder)
    embedding = source["model.embed_tokens.weight"]
    assert "lm_head.weight" not in source
    for r, rank in enumerate(ranks[-tp:]):
        assert same(rank["lm_head.weight"], embedding[128 // tp * r : 128 // tp * (r + 1)])
    assert same(ranks[0]["transformer.vocab_embedding.weight"], embedding), "whole unless it is cut on request"


@pytest.mark.parametrize("scheme", ["int8_weight_only", "int4_weight_only"])
def test_weight_only_files_hold_plain_weights(make_model: Make, tmp_path: Path, scheme: str) -> None:
    folder = make_model()
    plain, quantized = convert(folder, tmp_path / "a", 2), convert(folder, tmp_path / "b", 2, quantization=scheme)
    assert [{name: t.tobytes() for name, t in rank.items()} for rank in plain] == [
        {name: t.tobytes() for name, t in rank.items()} for rank in quantized
    ]


def test_values_too_large_for_float16_are_reported_with_tensor_and_count(make_model: Make, tmp_path: Path) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors["model.norm.weight"][3:5] = 70000.0

    with pytest.raises(TrtbuildError, match=r"model\.norm\.weight: 2 values are too large for float16"):
        convert(make_model(edit=enlarge), tmp_path / "out", dtype="float16")


def test_the_largest_float16_value_is_kept(make_model: Make, tmp_path: Path) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors["model.norm.weight"] = np.full(64, 65504.0, np.float32)

    (rank,) = convert(make_model(torch_dtype="float32", edit=enlarge), tmp_path / "out", dtype="float16")
    assert (rank["transformer.ln_f.weight"] == np.float16(65504)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(make_model: Make, tmp_path: Path, dtype: str, value: float) -> None:
    def damage(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][7, 3] = value

    with pytest.raises(TrtbuildError, match=r"up_proj\.weight holds 1 values that are NaN or infinite"):
        convert(make_model(torch_dtype=dtype, edit=damage), tmp_path / "out")


def test_casts_go_through_float32_and_round_to_nearest(make_model: Make, tmp_path: Path) -> None:
    folder = make_model(torch_dtype="float32")
    (rank,) = convert(folder, tmp_path / "out", dtype="bfloat16")
    assert same(rank["lm_head.weight"], source_of(folder)["lm_head.weight"].astype(ml_dtypes.bfloat16))


def test_files_are_identical_between_runs_and_readable_by_the_library(make_model: Make, tmp_path: Path) -> None:
    from safetensors import safe_open

    folder = make_model()
    convert(folder, tmp_path / "a", 2)
    convert(folder, tmp_path / "b", 2)
    for name in ("rank0.safetensors", "rank1.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    raw = (tmp_path / "a" / "rank0.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    with safe_open(tmp_path / "a" / "rank0.safetensors", "np") as file:
        assert sorted(file.keys()) == sorted(set(header) - {"__metadata__"})


def test_an_embedding_is_cut_over_rows_or_columns(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    """A vocabulary of 129 over two ranks: rows get a row of padding, columns none; the head is cut over rows either way."""
    folder = make_model(vocab_size=129)
    source = read_safetensors(folder / "model.safetensors")["model.embed_tokens.weight"]
    hidden = source.shape[1]
    for how, shape, axis in (("vocab", (65, hidden), 0), ("hidden", (129, hidden // 2), 1)):
        out = tmp_path / how
        code, _, err = cli("convert", folder, "-o", out, "--tp", 2, "--embedding", how, "--target", "tensorrt")
        assert code == 0, err
        ranks = [read_safetensors(out / f"rank{rank}.safetensors") for rank in range(2)]
        pieces = [rank["transformer.vocab_embedding.weight"] for rank in ranks]
        assert [piece.shape for piece in pieces] == [shape] * 2
        assert np.array_equal(np.concatenate(pieces, axis=axis)[:129], source)
        assert [rank["lm_head.weight"].shape for rank in ranks] == [(65, hidden)] * 2
        config = json.loads((out / "config.json").read_text())
        assert (config["use_parallel_embedding"], config["embedding_sharding_dim"]) == (True, axis)
        assert np.array_equal(dict(Checkpoint.open(out).hf_tensors())["model.embed_tokens.weight"], source)
        assert cli("verify", out)[0] == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--quantization", "int4_rtn"), "padded to a multiple of 64"),
        (("--quantization", "none", "--tp", "1"), ""),
    ],
)
def test_columns_of_an_embedding_have_no_padding(
    options: tuple[str, ...], problem: str, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
    folder = make_model(vocab_size=129, num_key_value_heads=4, **sizes)
    code, _, err = cli("plan", folder, "--embedding", "hidden", "--target", "tensorrt", *options)
    assert (code, problem in err) == (2 if problem else 0, True), err
