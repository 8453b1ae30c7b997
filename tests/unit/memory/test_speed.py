"""The roofline estimate against published and computed figures, and the boundary to measured kernels."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import write_deployment

from trtbuild.errors import TrtbuildError
from trtbuild.memory.estimate import Estimate
from trtbuild.memory.roofline import BAND, active_parameters, compute_unit, speed, streaming_s
from trtbuild.memory.silicon import PACKAGE, measured_speed

Make = Callable[..., Estimate]


def test_the_operations_of_a_token_are_two_per_weight(estimated: Make) -> None:
    it = estimated("llama3-8b")
    assert active_parameters(it) == 8_030_261_248 - 128256 * 4096 - 65 * 4096


def test_throughput_is_near_what_trtllm_bench_printed(estimated: Make) -> None:
    """trtllm-bench's page of 0.12: Llama-2-7B FP8 on one H100, 128 tokens in and out: 23,406 tokens/s."""
    it = estimated(
        "llama2-7b", lengths=(128, 128), quantization={"scheme": "fp8", "kv_cache": "fp8"}, hardware={"gpu": "h100"},
        limits={"max_batch_size": 4096, "max_seq_len": 4096, "max_num_tokens": 8192},
        kv_cache={"free_gpu_memory_fraction": 0.99, "tokens_per_block": 64},
    )  # fmt: skip
    found = speed(it)
    assert found is not None
    assert 23_406 / BAND < found.tokens_per_s < 23_406 * BAND
    assert found.compute == "fp8"


def test_latencies_are_near_those_of_measured_kernels(estimated: Make) -> None:
    """aiconfigurator-core 0.12.0: Llama-3-70B bfloat16 on 4 H100, 1024 in, 128 out: 72.05 ms, 15.81 ms alone, 20.82 ms in a batch of 64."""
    it = estimated(
        "llama3-70b",
        lengths=(1024, 128),
        parallel={"tp_size": 4},
        hardware={"gpu": "h100"},
        limits={"max_batch_size": 64},
    )
    found = speed(it)
    assert found is not None
    assert found.requests == 64
    assert found.ttft_s * 1e3 == pytest.approx(72.05, rel=0.2)
    assert found.itl_s * 1e3 == pytest.approx(15.81, rel=0.2)
    assert found.itl_full_s * 1e3 == pytest.approx(20.82, rel=0.2)


def test_fewer_bits_and_more_gpus_are_faster(estimated: Make) -> None:
    def itl(scheme: str, tp: int) -> float:
        found = speed(
            estimated("llama3-8b", quantization={"scheme": scheme}, parallel={"tp_size": tp}, hardware={"gpu": "h100"})
        )
        assert found is not None
        return found.itl_s

    assert itl("int4_awq", 1) < itl("fp8", 1) < itl("none", 1)
    assert itl("none", 4) < itl("none", 2) < itl("none", 1)


def test_a_gpu_without_fp8_units_multiplies_in_16_bits(estimated: Make) -> None:
    it = estimated("llama3-8b", quantization={"scheme": "int4_awq"}, hardware={"gpu": "a100"})
    assert compute_unit(it) == "fp16"


def test_the_cost_is_gpu_hours_over_tokens(estimated: Make) -> None:
    it = estimated("llama3-8b", parallel={"tp_size": 2}, hardware={"gpu": "h100", "price_per_gpu_hour": 3.0})
    found = speed(it)
    assert found is not None
    assert found.cost_per_million == pytest.approx(2 * 3.0 / 3600 / found.tokens_per_s * 1e6)


def test_without_data_of_the_gpu_there_is_no_speed(estimated: Make) -> None:
    assert speed(estimated("llama3-8b", hardware={"gpu": "sm90"})) is None
    assert speed(estimated("llama3-8b")) is None


def test_streamed_weights_are_bound_by_pcie(estimated: Make) -> None:
    it = estimated("mistral-7b", hardware={"gpu": "h100"})
    assert streaming_s(it) == pytest.approx(14_483_464_192 / 64e9)


def test_only_the_visited_experts_are_read_and_multiplied(estimated: Make) -> None:
    it = estimated("mixtral-8x7b", parallel={"tp_size": 2}, hardware={"gpu": "h100"}, limits={"max_batch_size": 64})
    per_layer = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 4096 + 2 * 3 * 4096 * 14336
    assert active_parameters(it) == 32 * per_layer + 32000 * 4096
    found = speed(it)
    assert found is not None
    dense = it.worst.weights.nbytes / (3350e9 * 0.7)
    assert found.itl_s < 0.5 * dense < found.itl_full_s * 0.6


class FakeHandle:
    """Answers like EngineHandle: milliseconds that grow with the batch."""

    def run_static(self, *, batch_size: int, isl: int, osl: int) -> tuple[float, float, float]:
        return 10.0 * batch_size, 5.0 * (osl - 1), 10.0 * batch_size + 5.0 * (osl - 1)


def test_measured_times_come_from_the_package(estimated: Make, model: Callable[[str], Path]) -> None:
    asked: dict[str, Any] = {}

    def compiler(path: str, system: str, backend: str, **settings: Any) -> FakeHandle:
        asked.update(path=path, system=system, backend=backend, **settings)
        return FakeHandle()

    it = estimated(
        "llama3-8b", lengths=(1000, 101), quantization={"scheme": "fp8", "kv_cache": "fp8"}, parallel={"tp_size": 2},
        hardware={"gpu": "h100"},
    )  # fmt: skip
    found = measured_speed(it, str(model("llama3-8b")), 8, compiler)
    assert asked == {
        "path": str(model("llama3-8b")), "system": "h100_sxm", "backend": "trtllm", "tp_size": 2, "pp_size": 1,
        "gemm_quant_mode": "fp8_static", "kvcache_quant_mode": "fp8",
    }  # fmt: skip
    assert found.ttft_s == pytest.approx(0.010)
    assert found.itl_s == pytest.approx(0.005)
    assert found.tokens_per_s == pytest.approx(8 * 101 / 0.580)


def test_what_the_package_does_not_know_is_an_error_that_says_so(estimated: Make) -> None:
    it = estimated("llama3-8b", hardware={"gpu": "rtx4090"})
    with pytest.raises(TrtbuildError, match="no measurements for GPU RTX 4090"):
        measured_speed(it, "somewhere", 1, lambda *_args, **_settings: FakeHandle())

    def refuses(*_arguments: Any, **_settings: Any) -> FakeHandle:
        raise ValueError("no such table")

    with pytest.raises(TrtbuildError, match="cannot estimate somewhere on h100_sxm: no such table"):
        measured_speed(estimated("llama3-8b", hardware={"gpu": "h100"}), "somewhere", 1, refuses)


@pytest.mark.skipif(find_spec(PACKAGE) is not None, reason=f"{PACKAGE} is installed")
def test_a_missing_package_names_the_extra(model: Callable[[str], Path], tmp_path: Path, cli: Any) -> None:
    file = write_deployment(tmp_path / "t.yaml", model("llama3-8b"), hardware={"gpu": "h100"})
    code, _, err = cli("plan", file, "--measured")
    assert code == 1
    assert "pip install 'trtbuild[plan]'" in err
