"""Memory figures that others published, against the planner. The source of each is in its test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trtbuild.memory.buffers import activation_bytes_per_token
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.kv import RankCache, latent_cache
from trtbuild.memory.lines import total

GIB, MIB = 2**30, 2**20
Make = Callable[..., Estimate]


def blocks(cache: RankCache, free_gib: float, fraction: float = 0.9) -> int:
    """Return the blocks of a pool that is a share of published free memory."""
    (count,) = cache.blocks(free_gib * GIB * fraction, 2048).values()
    return count


def line(it: Estimate, name: str) -> int:
    return next(each.nbytes for each in it.worst.lines if each.name == name)


def test_llama2_7b_fp8_on_an_h100_as_in_the_memory_documentation(estimated: Make) -> None:
    """docs/source/reference/memory.md: engine 6695 MiB, 70.48 GiB free, 4060 blocks of 64, 63.44 GiB for 259,840 tokens."""
    it = estimated(
        "llama2-7b",
        quantization={"scheme": "fp8", "kv_cache": "fp8"},
        kv_cache={"tokens_per_block": 64},
        limits={"max_seq_len": 2048},
    )
    cache = it.worst.cache
    assert it.worst.weights.nbytes / MIB == pytest.approx(6695, rel=0.01)
    assert abs(blocks(cache, 70.48) - 4060) <= 1
    assert 4060 * cache.block_bytes / GIB == pytest.approx(63.44, abs=0.01)


def test_an_8b_model_in_fp8_on_an_rtx_5090(estimated: Make) -> None:
    """NVIDIA/TensorRT-LLM#4275: 17.83 GiB free, 16.05 GiB, 8219 blocks of 32."""
    it = estimated("llama3-8b", quantization={"scheme": "fp8", "kv_cache": "fp8"}, hardware={"gpu": "rtx5090"})
    cache = it.worst.cache
    assert cache.token_bytes == 65_536
    assert 8219 * cache.block_bytes / GIB == pytest.approx(16.05, abs=0.01)
    assert blocks(cache, 17.83) * cache.block_bytes / GIB == pytest.approx(16.05, abs=0.01)


def test_qwen15_7b_on_an_a100_of_40_gb(estimated: Make) -> None:
    """NVIDIA/TensorRT-LLM#2268: 21.89 GiB free, 631 blocks of 64."""
    it = estimated("qwen1.5-7b", kv_cache={"tokens_per_block": 64})
    assert abs(blocks(it.worst.cache, 21.89) - 631) <= 1


def test_the_latent_cache_of_deepseek_r1() -> None:
    """NVIDIA/TensorRT-LLM#8286: 2.15 GiB for 65,792 tokens with an FP8 KV cache."""
    cache = latent_cache(61 * (512 + 64), element=1, tokens_per_block=32)
    assert cache.token_bytes == 35_136
    assert 65_792 * cache.token_bytes / GIB == pytest.approx(2.15, abs=0.01)


def test_tinyllama_in_the_triton_tutorials(estimated: Make) -> None:
    """triton-inference-server/tutorials#150: 78.30 GiB for 3,731,744 tokens in 116,617 blocks of 32."""
    cache = estimated("tinyllama").worst.cache
    assert cache.token_bytes == 22_528
    assert 116_617 * cache.tokens_per_block == 3_731_744
    assert 3_731_744 * cache.token_bytes / GIB == pytest.approx(78.30, abs=0.01)


def test_llama31_405b_fp8_over_eight_gpus(estimated: Make) -> None:
    """vllm-project/vllm#6746: 57.752 GiB per GPU. In that checkpoint attention and the first and last layer stay in 16 bits."""
    it = estimated(
        "llama3-405b",
        quantization={"scheme": "fp8", "exclude": ["*.self_attn.*", "model.layers.0.*", "model.layers.125.*"]},
        parallel={"tp_size": 8, "embedding": "vocab"},
    )
    assert it.worst.weights.nbytes / GIB == pytest.approx(57.752, rel=0.02)


def test_a_7b_model_in_16_bits_is_exact(estimated: Make) -> None:
    """NVIDIA/TensorRT-LLM#1397: weights of 14,483,464,192 bytes, which are Mistral-7B-v0.1's 7,241,732,096 parameters."""
    it = estimated("mistral-7b")
    by_hand = 2 * 32000 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336 + 2 * 4096) + 4096
    assert by_hand == 7_241_732_096
    assert it.worst.weights.nbytes == it.worst.weights.file_bytes == 2 * by_hand == 14_483_464_192


@pytest.mark.parametrize(
    ("scheme", "tp", "expected"),
    [
        ("none", 1, 131.42), ("none", 2, 65.71), ("none", 4, 32.85), ("none", 8, 16.43), ("fp8", 1, 67.67), ("fp8", 2, 33.83),
        ("fp8", 4, 16.92), ("fp8", 8, 8.46), ("int4_awq", 1, 36.8), ("int4_awq", 2, 18.4), ("int4_awq", 4, 9.2), ("int4_awq", 8, 4.6),
    ],
)  # fmt: skip
def test_llama3_70b_per_gpu_with_the_embedding_cut(estimated: Make, scheme: str, tp: int, expected: float) -> None:
    """Computed from the public config: peers' reference values for 70.554 B parameters."""
    it = estimated(
        "llama3-70b",
        quantization={"scheme": scheme},
        parallel={"tp_size": tp, "embedding": "vocab" if tp > 1 else "replicated"},
    )
    assert it.worst.weights.nbytes / GIB == pytest.approx(expected, abs=0.02)
    assert it.worst.cache.token_bytes == 327_680 // tp


def test_the_fullest_of_three_uneven_stages_has_23_47_gib(estimated: Make) -> None:
    """80 layers over 3 stages with tp 2 and the embedding cut; an even third would be 22.56 GiB at most (aiconfigurator's figure)."""
    it = estimated("llama3-70b", parallel={"tp_size": 2, "pp_size": 3, "embedding": "vocab"})
    found = [rank.weights.nbytes / GIB for rank in it.ranks if rank.rank.tp_rank == 0]
    layer = (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672) // 2 + 2 * 8192
    edge = 128256 * 8192 // 2
    assert [rank.weights.nbytes for rank in it.ranks][::2] == [
        2 * (27 * layer + edge),
        2 * 27 * layer,
        2 * (26 * layer + edge + 8192),
    ]
    assert max(found) == found[0]
    assert [rank.layers for rank in it.ranks][::2] == [(0, 26), (27, 53), (54, 79)]


#: What a log called execution context memory, MiB: model, settings, and how far the estimate may be off.
ACTIVATIONS: list[tuple[str, dict[str, Any], float, float, float]] = [
    ("llama2-7b", {"quantization": {"scheme": "fp8"}, "limits": {"max_batch_size": 168}}, 1134.01, 0.98, 1.02),
    ("llama2-7b", {"quantization": {"scheme": "fp8"}, "limits": {"max_batch_size": 256}}, 1112.00, 0.99, 1.02),
    ("llama2-7b", {"quantization": {"scheme": "fp8"}, "limits": {"max_batch_size": 4096}}, 928.77, 1.0, 1.5),
    ("qwen2-1.5b", {"quantization": {"scheme": "int4_weight_only"}, "limits": {"max_batch_size": 2048}}, 921.51, 0.99, 1.01),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sections", "published", "least", "most"), ACTIVATIONS)
def test_activations_and_logits_are_near_what_logs_say(
    estimated: Make, name: str, sections: dict[str, Any], published: float, least: float, most: float
) -> None:
    """The memory documentation; a benchmark of 0.11; trtllm-bench's page of 0.12; a benchmark of 0.17. 8192 tokens, the default of all."""
    limits = {**sections["limits"], "max_num_tokens": 8192, "max_seq_len": 2048}
    it = estimated(name, **{**sections, "limits": limits})
    assert least <= (line(it, "activations") + line(it, "logits")) / MIB / published <= most


def test_runtime_and_decoder_buffers_are_near_what_trtllm_bench_printed(estimated: Make) -> None:
    """trtllm-bench's page of 0.12: Llama-2-7B, batch 4096, 4098 tokens: 1.14 GB and 4.35 GB."""
    it = estimated("llama2-7b", limits={"max_batch_size": 4096, "max_seq_len": 4096})
    assert line(it, "runtime buffers") / GIB == pytest.approx(1.14, rel=0.05)
    assert line(it, "decoder buffers") / GIB == pytest.approx(4.35, rel=0.05)


def test_the_whole_of_the_memory_documentations_log(estimated: Make) -> None:
    """79.10 GiB in all and 70.48 GiB free: 8.62 GiB before the pool; its batch is not named, 168 suits its buffers."""
    it = estimated(
        "llama2-7b",
        quantization={"scheme": "fp8", "kv_cache": "fp8"},
        limits={"max_batch_size": 168, "max_seq_len": 2048, "max_num_tokens": 8192},
        hardware={"gpu": "h100"},
    )
    lines = [each for each in it.worst.lines if each.name != "Triton CUDA pool"]
    assert total(lines) / GIB == pytest.approx(8.62, rel=0.02)


def test_activations_grow_with_tokens_and_shrink_with_tp(estimated: Make) -> None:
    dims = estimated("llama2-7b").dims
    whole, half = (activation_bytes_per_token(dims, tp, quantizes_inputs=False) for tp in (1, 2))
    assert whole == 2 * (2 * 11008 + 2 * 4096)
    assert half == 2 * (11008 + 2 * 4096)


@pytest.mark.parametrize(
    ("name", "per_token"), [("llama3-8b", 131_072), ("llama3-70b", 327_680), ("qwen2.5-7b", 57_344), ("mixtral-8x7b", 131_072), ("llama2-7b", 524_288)]
)  # fmt: skip
def test_kv_bytes_per_token_in_16_bits_and_in_8(estimated: Make, name: str, per_token: int) -> None:
    """The table of checkpoint specification 7.2."""
    assert estimated(name).worst.cache.token_bytes == per_token
    assert estimated(name, quantization={"kv_cache": "int8"}).worst.cache.token_bytes * 2 == per_token


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_experts_are_shared_out(estimated: Make, tp: int, ep: int) -> None:
    """Mixtral-8x7B has 46,702,792,704 parameters; the router is whole on every rank and in float32."""
    it = estimated(
        "mixtral-8x7b", parallel={"tp_size": tp, "ep_size": ep, "embedding": "vocab" if tp > 1 else "replicated"}
    )
    whole = 46_702_792_704 - 32 * 8 * 4096
    norms = 65 * 4096
    assert it.worst.weights.nbytes == 2 * ((whole - norms) // tp + norms) + 4 * 32 * 8 * 4096


def test_a_token_is_there_once_for_each_expert_it_visits(estimated: Make) -> None:
    dims = estimated("mixtral-8x7b").dims
    expected = 2 * (2 * 4096 + 2 * (2 * 14336 + 2 * 4096))
    assert activation_bytes_per_token(dims, 1, quantizes_inputs=False) == expected
