"""Field reports about sizes, each with the numbers of its thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import CONFIGS, write_deployment, write_sparse

from trtbuild.arch.registry import lookup
from trtbuild.errors import UsageError
from trtbuild.memory.buffers import all_reduce_bytes, graph_sizes
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.fit import problems, remarks
from trtbuild.memory.kv import Group, RankCache, host_blocks, rank_caches, waste
from trtbuild.memory.pool import longest_sequence, size_pool, smallest_fraction
from trtbuild.parallel import Parallel

GIB = 2**30
Make = Callable[..., Estimate]
Cli = Callable[..., tuple[int, str, str]]


def line(it: Estimate, name: str) -> int:
    return next((each.nbytes for each in it.worst.lines if each.name == name), 0)


def pool_of(cache: RankCache, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "memory_bytes": 80 * GIB, "fixed_bytes": [7 * GIB], "fraction": 0.9, "max_tokens": None, "default_sequences": 1, "full_length": 4096,
        **changes,
    }  # fmt: skip
    return size_pool([cache], **given)


def test_eb01_the_usable_prompt_is_stated_with_and_without_chunking(model: Any, tmp_path: Path, cli: Cli) -> None:
    limits = {"max_seq_len": 32768, "max_num_tokens": 8192, "max_batch_size": 8}
    for chunked, expected in ((False, 8192), (True, 32767)):
        file = write_deployment(
            tmp_path / "t.yaml", model("mistral-7b"), limits=limits, scheduling={"chunked_context": chunked}
        )
        code, out, err = cli("plan", file, "--json")
        assert code == 0, err
        plan = json.loads(out)
        assert plan["limits"]["max_input_len"] == expected
        assert any("chunked_context is off" in note for note in plan["notes"]) == (not chunked)
        code, _, err = cli("plan", file, "--input-len", expected + 1)
        assert code == 2
        assert f"exceeds the {expected} tokens" in err


def test_eb02_prompt_and_answer_share_max_seq_len_and_defaults_name_their_origin(
    model: Any, tmp_path: Path, cli: Cli
) -> None:
    for limits, message in (
        ({"max_input_len": 8192, "max_seq_len": 8192}, "leaves no room for an answer"),
        ({"max_seq_len": 8192}, ""),
    ):
        file = write_deployment(tmp_path / "t.yaml", model("llama3-8b"), limits=limits)
        code, out, err = cli(
            "plan", file, "--json", *(("--input-len", 8000, "--output-len", 191) if not message else ())
        )
        assert (code == 0) == (not message), err
        assert message in err
    origins = {row["name"]: (row["value"], row["origin"]) for row in json.loads(out)["explain"]}
    assert origins["limits.max_seq_len"] == (8192, "user")
    code, out, _ = cli("plan", write_deployment(tmp_path / "t.yaml", model("llama3-8b")), "--json")
    origins = {row["name"]: (row["value"], row["origin"]) for row in json.loads(out)["explain"]}
    assert origins["limits.max_seq_len"] == (8192, "model")
    assert origins["limits.max_num_tokens"] == (8192, "default")


@pytest.mark.parametrize(
    ("prompt", "answer", "fits"), [(254, 2, True), (255, 1, True), (255, 2, False), (256, 1, False)]
)
def test_eb03_the_edge_of_max_seq_len(estimated: Make, prompt: int, answer: int, fits: bool) -> None:
    sections = {"limits": {"max_seq_len": 256, "max_batch_size": 4}}
    if fits:
        assert estimated("llama3-8b", lengths=(prompt, answer), **sections).lengths.total == 256
    else:
        with pytest.raises(UsageError, match="max_seq_len|exceeds the 255"):
            estimated("llama3-8b", lengths=(prompt, answer), **sections)


def test_eb05_a_sequence_longer_than_the_positions_is_refused(model: Any, tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("plan", write_deployment(tmp_path / "t.yaml", model("llama3-8b"), limits={"max_seq_len": 8242}))
    assert code == 2
    assert "exceeds the 8192 positions" in err


def test_eb06_activations_are_a_line_of_their_own_that_grows_with_tokens_not_with_the_batch(
    estimated: Make, model: Any, tmp_path: Path, cli: Cli
) -> None:
    def made(tokens: int, batch: int) -> Estimate:
        return estimated("llama2-7b", limits={"max_num_tokens": tokens, "max_batch_size": batch})

    many, few = made(16384, 256), made(2048, 256)
    assert line(many, "activations") == 8 * line(few, "activations") > 0
    assert line(made(16384, 2048), "activations") == line(many, "activations")
    assert {"weights", "activations", "runtime buffers", "CUDA context"} <= {each.name for each in many.worst.lines}
    file = write_deployment(
        tmp_path / "t.yaml", model("llama2-7b"), limits={"max_num_tokens": 16384, "max_batch_size": 2048},
        hardware={"memory_bytes": 16 * GIB},
    )  # fmt: skip
    code, _, err = cli("plan", file)
    assert code == 3
    assert "does not fit" in err


def test_eb07_the_number_of_requests_that_the_pool_holds_is_stated(estimated: Make) -> None:
    """A pool of 1000 blocks of 64 tokens, 64 requests of 2049 tokens: 33 blocks each, 30 at once."""
    it = estimated(
        "llama2-7b",
        limits={"max_batch_size": 64, "max_seq_len": 2049},
        kv_cache={"max_tokens": 64000, "tokens_per_block": 64},
        hardware={"memory_bytes": 80 * GIB},
    )
    assert it.pool.blocks == {None: 1000}
    assert it.sequences(2049) == 30
    assert problems(it) == []
    assert any("need 2112 blocks, the pool has 1000: at most 30 such requests" in remark for remark in remarks(it))


@pytest.mark.parametrize(("tokens", "blocks", "longest"), [(1664, 13, 1664), (693, 6, 768)])
def test_eb08_a_pool_below_one_sequence_is_refused_with_what_works(tokens: int, blocks: int, longest: int) -> None:
    """tokens_per_block 128, max_seq_len 2560: 20 blocks are needed; a fraction of 0.2 leaves 1664 tokens."""
    cache = RankCache((Group(None, 32, 524_288),), 128)
    free = int(tokens * cache.token_bytes / 0.2)
    pool = pool_of(cache, memory_bytes=free, fixed_bytes=[0], fraction=0.2, full_length=2560)
    assert pool.blocks == {None: blocks}
    assert cache.sequences(pool.blocks, 2560) == 0
    assert longest_sequence([cache], pool, 1, 2560) == longest
    fraction = smallest_fraction([cache], pool, 2560, 1)
    if tokens == 1664:
        assert fraction == 0.31  # 0.3077 of free memory hold 2560 tokens
    bigger = pool_of(cache, memory_bytes=free, fixed_bytes=[0], fraction=fraction, full_length=2560)
    assert cache.sequences(bigger.blocks, 2560) == 1


def test_eb08_plan_ends_with_3_and_both_ways_out(model: Any, tmp_path: Path, cli: Cli) -> None:
    file = write_deployment(
        tmp_path / "t.yaml", model("llama2-7b"), limits={"max_seq_len": 2560, "max_batch_size": 1, "max_num_tokens": 2560},
        kv_cache={"tokens_per_block": 128, "free_gpu_memory_fraction": 0.2}, hardware={"memory_bytes": 18 * GIB},
    )  # fmt: skip
    code, _, err = cli("plan", file)
    assert code == 3
    assert "one sequence of 2560 tokens needs 20" in err
    assert err.count("free_gpu_memory_fraction") == err.count("max_seq_len") == 1, "each way once"
    fraction = err.partition("free_gpu_memory_fraction=")[2].split(";")[0]
    longest = err.partition("max_seq_len=")[2].split(";")[0].strip()
    for limits, cache in (
        ({"max_seq_len": 2560}, {"free_gpu_memory_fraction": float(fraction)}),
        ({"max_seq_len": int(longest)}, {"free_gpu_memory_fraction": 0.2}),
    ):
        again = write_deployment(
            tmp_path / "again.yaml", model("llama2-7b"), limits={**limits, "max_batch_size": 1, "max_num_tokens": limits["max_seq_len"]},
            kv_cache={"tokens_per_block": 128, **cache}, hardware={"memory_bytes": 18 * GIB},
        )  # fmt: skip
        assert cli("plan", again)[0] == 0


def test_eb09_the_fraction_is_of_the_memory_that_is_free_after_loading() -> None:
    cache = RankCache((Group(None, 32, 524_288),), 64)
    assert pool_of(cache).pool_bytes[0] / GIB == pytest.approx(0.9 * 73, abs=0.04)
    assert pool_of(cache, fraction=0.2).pool_bytes[0] / GIB == pytest.approx(14.6, abs=0.04)
    both = pool_of(cache, max_tokens=4096)
    assert both.pool_bytes[0] == 4096 * 524_288
    assert both.limited_by == "kv_cache.max_tokens"
    assert pool_of(cache, max_tokens=10**9).limited_by == "0.9 of free memory after engine load"


def test_eb09_the_words_appear(model: Any, tmp_path: Path, cli: Cli) -> None:
    file = write_deployment(tmp_path / "t.yaml", model("llama3-8b"), hardware={"gpu": "h100"})
    assert "of free memory after engine load" in cli("plan", file)[1]


def test_eb11_copies_multiply_the_engine_and_a_small_reserve_is_warned_about(estimated: Make) -> None:
    """12.3 GiB of engine per GPU of 32 GiB, fraction 0.95: less than 1 GiB stays free."""
    sections: dict[str, Any] = {
        "hardware": {"memory_bytes": 32 * GIB}, "kv_cache": {"free_gpu_memory_fraction": 0.95}, "limits": {"max_batch_size": 8, "max_seq_len": 2048},
    }  # fmt: skip
    one = estimated("llama2-7b", **sections)
    assert {"CUDA context", "Triton CUDA pool"} <= {each.name for each in one.worst.lines}
    assert line(one, "Triton CUDA pool") == 64 * 2**20
    assert any("stay free" in remark for remark in remarks(one))
    two = estimated("llama2-7b", copies=2, **sections)
    assert line(two, "weights") == 2 * line(one, "weights")
    assert line(two, "CUDA context") == line(one, "CUDA context")
    assert sum(two.pool.pool_bytes) * 2 <= 0.96 * two.pool.free_bytes[0]
    roomy = estimated("llama2-7b", **{**sections, "kv_cache": {"free_gpu_memory_fraction": 0.8}})
    assert not any("stay free" in remark for remark in remarks(roomy))


def test_eb13_kv_bytes_come_from_kv_heads(estimated: Make) -> None:
    small, large = estimated("llama3-8b").worst.cache, estimated("llama3-70b").worst.cache
    assert small.token_bytes == 131_072
    assert small.sequence_bytes(8192) == GIB
    assert large.token_bytes == 327_680


@pytest.mark.parametrize(
    ("name", "tp", "expected"),
    [("llama3-8b", 1, 131072), ("llama3-8b", 2, 65536), ("llama3-8b", 16, 16384)],
)
def test_eb15_each_rank_keeps_its_kv_heads(estimated: Make, name: str, tp: int, expected: int) -> None:
    it = estimated(name, parallel={"tp_size": tp})
    assert {rank.own_cache.token_bytes for rank in it.ranks} == {expected}
    if tp == 16:
        assert sum(rank.own_cache.token_bytes for rank in it.ranks) > 131072


def test_eb15_kv_heads_are_replicated_when_there_are_more_ranks() -> None:
    """Qwen2-0.5B's 24 layers of 2 kv heads; its 14 heads do not divide by 4, so the cache is asked for directly."""
    config = CONFIGS["qwen2-0.5b"]
    dims = lookup("Qwen2ForCausalLM", where="here").read_dims(config, "Qwen2ForCausalLM", "here")
    dims = replace(dims, num_attention_heads=16)
    for tp, expected in ((1, 12288), (2, 6144), (4, 6144)):
        caches = rank_caches(dims, Parallel(tp), (None,) * 24, element=2, tokens_per_block=32)
        assert {cache.token_bytes for cache in caches} == {expected}


def test_eb16_the_longest_sequence_knows_the_dtype_of_the_cache(estimated: Make) -> None:
    for kv_cache, per_token, tokens in (("auto", 131072, 81920), ("fp8", 65536, 163840)):
        it = estimated("llama3-8b", quantization={"kv_cache": kv_cache})
        cache = it.worst.cache
        pool = pool_of(cache, memory_bytes=10 * GIB, fixed_bytes=[0], fraction=1.0, full_length=8192)
        assert cache.token_bytes == per_token
        assert pool.tokens(cache.tokens_per_block) == tokens
        assert longest_sequence([cache], pool, 1, 10**6) == tokens


def test_lm06_more_ranks_than_gpus_are_refused(model: Any, tmp_path: Path, cli: Cli) -> None:
    file = write_deployment(
        tmp_path / "t.yaml",
        model("llama3-8b"),
        parallel={"tp_size": 4, "pp_size": 2},
        hardware={"gpu": "h100", "count": 4},
    )
    code, _, err = cli("plan", file)
    assert code == 3
    assert "8 ranks, one GPU each, and hardware.count is 4" in err


def test_only_the_window_of_a_layer_is_kept(estimated: Make) -> None:
    """Gemma 3: five layers of 512 tokens, then one of all; 1 - 512 / 4096 of a windowed layer's cache is saved."""
    it = estimated("gemma3-1b", limits={"max_seq_len": 4096}, hardware={"gpu": "l4"})
    windowed = next(group for group in it.worst.cache.groups if group.window == 512)
    assert (windowed.layers, it.worst.cache.groups[0].layers) == (22, 4)
    assert windowed.kept(4096) == 512
    per_layer = 2 * 256 * 2
    assert it.worst.cache.sequence_bytes(4096) == per_layer * (4 * 4096 + 22 * 512)
    own = estimated("gemma3-1b", limits={"max_seq_len": 4096}, kv_cache={"max_attention_window": [1024, 4096]})
    assert own.worst.cache.sequence_bytes(4096) == per_layer * (13 * 4096 + 13 * 1024)


def test_a_window_as_long_as_the_longest_sequence_is_none(estimated: Make) -> None:
    assert estimated("mistral-7b", limits={"max_seq_len": 4096}).worst.cache.has_windows is False
    assert estimated("mistral-7b", limits={"max_seq_len": 8192}).worst.cache.has_windows is True


def test_the_device_pool_is_rounded_up_and_the_host_pool_down() -> None:
    cache = RankCache((Group(None, 1, 1000),), 10)
    assert cache.blocks(100_001, 10) == {None: 11}
    assert cache.blocks(100_000, 10) == {None: 10}
    assert host_blocks(cache, 109_999) == 10


def test_all_ranks_take_the_smallest_number_of_blocks(estimated: Make) -> None:
    it = estimated("llama3-70b", parallel={"pp_size": 3}, hardware={"gpu": "h100"}, limits={"max_seq_len": 2048})
    alone = [rank.cache.blocks(0.9 * free, 2048)[None] for rank, free in zip(it.ranks, it.pool.free_bytes, strict=True)]
    assert len(set(alone)) > 1
    assert it.pool.blocks == {None: min(alone)}


def test_half_a_block_is_wasted_on_average() -> None:
    found = waste(2049, 64)
    assert found["tokens_at_length"] == 63
    assert found["average_tokens"] == 31.5


@pytest.mark.parametrize(("tp", "expected"), [(1, 0), (2, 160), (4, 160), (8, 320)])
def test_the_all_reduce_workspace_is_that_of_the_library(tp: int, expected: int) -> None:
    assert all_reduce_bytes(tp) == expected * 2**20


def test_captured_batch_sizes_are_those_of_the_library() -> None:
    padded = graph_sizes(128, padding=True)
    assert padded == [1, 2, 4, *range(8, 129, 8)]
    assert graph_sizes(300, padding=True) == [*padded, 256, 300]
    assert graph_sizes(100, padding=False) == [*range(1, 33), 64, 100]
    assert graph_sizes(2, padding=True) == [1, 2]


def test_adapters_get_a_share_of_what_the_pool_leaves(estimated: Make) -> None:
    it = estimated(
        "llama3-8b", hardware={"gpu": "h100"}, lora={"adapters": ["somewhere"], "device_cache_fraction": 0.1}
    )
    left = it.pool.free_bytes[0] - it.pool.pool_bytes[0]
    assert it.adapter_bytes(0) == int(0.1 * left) > 0
    assert estimated("llama3-8b", hardware={"gpu": "h100"}).adapter_bytes(0) == 0


def test_a_draft_model_takes_weights_and_cache(estimated: Make, model: Any) -> None:
    sections: dict[str, Any] = {
        "hardware": {"gpu": "h100"},
        "limits": {"max_seq_len": 4096},
        "parallel": {"tp_size": 2},
    }
    plain = estimated("llama3-70b", **sections)
    speculative = {"mode": "draft_target", "draft_model": str(model("llama3-1b")), "max_draft_len": 4}
    it = estimated("llama3-70b", **sections, speculative=speculative)
    layer = (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 2048 * 8192) // 2 + 2 * 2048
    by_hand = 128256 * 2048 + 128256 * 2048 // 2 + 16 * layer + 2048
    assert line(it, "draft model") == 2 * by_hand
    assert it.worst.cache.token_bytes - it.worst.own_cache.token_bytes == 2 * 16 * 4 * 64 * 2
    assert it.pool.blocks[None] < plain.pool.blocks[None]


def test_a_draft_model_that_cannot_be_cut_like_the_target_is_named(estimated: Make, model: Any) -> None:
    """Qwen2-0.5B has 14 heads, which four ranks cannot share."""
    speculative = {"mode": "draft_target", "draft_model": str(model("qwen2-0.5b")), "max_draft_len": 4}
    with pytest.raises(UsageError, match="draft_model .*qwen2-0.5b: num_attention_heads=14 cannot be split over tp=4"):
        estimated("llama3-8b", parallel={"tp_size": 4}, speculative=speculative)


def test_heads_are_whole_on_every_rank_with_the_cache_of_their_layers(estimated: Make, tmp_path: Path) -> None:
    heads = tmp_path / "eagle"
    heads.mkdir()
    config = {"num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    (heads / "config.json").write_text(json.dumps(config))
    write_sparse(heads / "model.safetensors", [("fc.weight", [4096, 12288])], "BF16")
    speculative = {"mode": "eagle3", "draft_model": str(heads), "max_draft_len": 4}
    it = estimated("llama3-8b", target="pytorch", parallel={"tp_size": 2}, speculative=speculative)
    assert line(it, "draft heads") == 2 * 4096 * 12288
    assert it.worst.cache.token_bytes - it.worst.own_cache.token_bytes == 2 * 4 * 128 * 2
    (heads / "config.json").write_text("{}")
    it = estimated("llama3-8b", target="pytorch", speculative=speculative)
    assert it.worst.cache.token_bytes == it.worst.own_cache.token_bytes
    assert any("names no attention" in remark for remark in remarks(it))


def test_logits_grow_with_draft_tokens_and_prompts_have_a_line_of_their_own(estimated: Make) -> None:
    limits = {"max_batch_size": 8, "max_num_tokens": 4096}
    plain = estimated("llama3-8b", limits=limits)
    drafted = estimated("llama3-8b", limits=limits, speculative={"mode": "ngram", "max_draft_len": 4})
    assert line(drafted, "logits") == 5 * line(plain, "logits") == 5 * 8 * 128256 * 2
    gathered = estimated("llama3-8b", limits=limits, engine={"gather_context_logits": True, "logits_dtype": "float16"})
    assert line(gathered, "prompt logits") == 4096 * 128256 * 2
    assert line(plain, "prompt logits") == 0


def test_attention_without_fused_kernels_takes_scores(estimated: Make) -> None:
    limits = {"max_batch_size": 8, "max_num_tokens": 4096, "max_seq_len": 4096}
    it = estimated("llama3-8b", limits=limits, engine={"context_fmha": False}, scheduling={"chunked_context": False})
    assert line(it, "attention scores") == 2 * 32 * 4096 * 4095


def test_attention_data_parallelism_is_said_to_be_planned_otherwise(estimated: Make) -> None:
    it = estimated("llama3-8b", target="pytorch", llm_api={"attention_dp": True}, parallel={"tp_size": 2})
    assert any("attention_dp" in remark for remark in remarks(it))
