"""The model of target pytorch, with a stand-in for Triton and one for TensorRT-LLM: requests in, typed tensors out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from tests.unit.templates import triton_stub

FAKES = Path(__file__).parents[2] / "fakes"
WAIT_SECONDS = 20
MANY = 100_000
Load = Callable[..., Any]


@pytest.fixture(scope="module")
def modules(shipped: Callable[..., SimpleNamespace]) -> Iterator[SimpleNamespace]:
    """Return the modules of the model; `import tensorrt_llm` finds the stand-in."""
    sys.path.insert(0, str(FAKES))
    yield shipped("tensorrt_llm", "llmapi")
    sys.path.remove(str(FAKES))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def load(modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a function that loads the model; what is loaded is finalized."""
    loaded = []

    def make(*, decoupled: bool = True, config: dict[str, Any] | None = None, triton: Any = None, **parameters: str) -> Any:  # fmt: skip
        own = (
            {"decoupled": decoupled, "max_batch_size": 0, "cancellation_check_period_ms": 5}
            if triton is None
            else triton
        )
        data = {"model": str(tmp_path), "max_batch_size": 4, "triton_config": own, **(config or {})}
        (tmp_path / "model.yaml").write_text(yaml.safe_dump(data))
        monkeypatch.setattr(modules.model, "__file__", str(tmp_path / "model.py"))
        model = modules.model.TritonPythonModel()
        model.initialize(triton_stub.arguments(parameters, decoupled=decoupled))
        loaded.append(model)
        return model

    yield make
    for model in loaded:
        model.finalize()
        assert model._llm.is_shut_down


def ask(model: Any, text: Any = "one two three", *, request_id: str = "", **inputs: Any) -> triton_stub.Sender:
    request = triton_stub.request(
        {"text_input": [text] if isinstance(text, (str, bytes)) else text, **inputs}, request_id
    )
    model.execute([request])
    return request.sender


def wait(sender: triton_stub.Sender) -> triton_stub.Sender:
    deadline = time.monotonic() + WAIT_SECONDS
    while not sender.is_final:
        assert time.monotonic() < deadline, "no final response"
        time.sleep(0.002)
    return sender


def text_of(sender: triton_stub.Sender) -> list[str]:
    return [response.values()["text_output"][0] for response in sender.responses if not response.has_error()]


def error_of(sender: triton_stub.Sender) -> tuple[int, str]:
    [error] = [response.error() for response in sender.responses if response.has_error()]
    assert error is not None
    return error.code(), error.message()


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_arguments_reach_the_llm_without_triton_s_own(load: Load, tmp_path: Path) -> None:
    model = load(config={"kv_cache_config": {"dtype": "fp8"}})
    assert model._llm.arguments == {"model": str(tmp_path), "max_batch_size": 4, "kv_cache_config": {"dtype": "fp8"}}


def test_a_stream_sends_all_text_so_far_and_an_empty_end(load: Load) -> None:
    sender = wait(ask(load(), streaming=[True], sampling_param_max_tokens=[3]))
    assert text_of(sender) == ["one", "one two", "one two three"]


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_whole_answer_is_one_response(load: Load, decoupled: bool) -> None:
    sender = wait(
        ask(load(decoupled=decoupled), sampling_param_max_tokens=[2], sampling_param_exclude_input_from_output=[True])
    )
    assert text_of(sender) == ["one two"]
    assert len(sender.responses) == 1


@pytest.mark.parametrize(
    ("streaming", "exclude", "first"),
    [(False, None, "one two three|one"), (False, True, "one"), (False, False, "one two three|one"), (True, None, "one"), (True, True, "one"), (True, False, "one two three|one")],
)  # fmt: skip
def test_the_prompt_is_in_the_answer_as_asked_and_else_as_in_the_stock_model(
    load: Load, streaming: bool, exclude: bool | None, first: str
) -> None:
    given = {} if exclude is None else {"sampling_param_exclude_input_from_output": [exclude]}
    sender = wait(ask(load(), streaming=[streaming], sampling_param_max_tokens=[1], **given))
    assert text_of(sender) == [first.replace("|", "")]


def test_outputs_have_the_types_that_are_declared_and_come_only_when_asked_for(load: Load) -> None:
    model = load()
    asked = {
        "return_finish_reason": [True], "return_stop_reason": [True], "return_cumulative_logprob": [True],
        "sampling_param_return_perf_metrics": [True], "sampling_param_max_tokens": [2],
    }  # fmt: skip
    [response] = wait(ask(model, **asked)).responses
    found = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    dtypes = {name: values.dtype for name, values in found.items()}
    assert dtypes == {
        "text_output": np.object_, "finish_reason": np.object_, "stop_reason": np.object_, "cumulative_logprob": np.float32,
        "kv_cache_reused_block": np.int32, "kv_cache_hit_rate": np.float32, "kv_cache_alloc_new_blocks": np.int32,
        "kv_cache_alloc_total_blocks": np.int32, "kv_cache_missed_block": np.int32, "arrival_time_ns": np.int64,
        "first_scheduled_time_ns": np.int64, "first_token_time_ns": np.int64, "last_token_time_ns": np.int64,
        "acceptance_rate": np.float32, "total_accepted_draft_tokens": np.int32, "total_draft_tokens": np.int32,
    }  # fmt: skip
    assert all(values.shape == (1,) for values in found.values())
    assert (found["finish_reason"][0], found["stop_reason"][0]) == (b"length", b"")
    assert found["last_token_time_ns"][0] - found["first_token_time_ns"][0] == 2000
    assert found["arrival_time_ns"][0] == 86_400 * 10**9 + 1000
    assert found["cumulative_logprob"][0] == -1.0
    [plain] = wait(ask(model)).responses
    assert plain.values().keys() == {"text_output"}


def test_a_stop_word_ends_the_answer_and_is_named(load: Load) -> None:
    model = load(stop_words=json.dumps(["four"]))
    given = {"streaming": [True], "return_finish_reason": [True], "return_stop_reason": [True]}
    sender = wait(ask(model, "one two three four", sampling_param_stop=["three", "three", ""], **given))
    last = sender.responses[-1].values()
    assert (last["text_output"], last["finish_reason"], last["stop_reason"]) == (["one two "], ["stop"], ["three"])
    assert sender.responses[0].values()["finish_reason"] == [""]
    assert model._llm.submitted[-1][1].stop == ["four", "three"]


def test_what_is_not_asked_for_is_not_passed_on(load: Load) -> None:
    model = load()
    wait(ask(model))
    assert model._llm.submitted[-1][1] == sys.modules["tensorrt_llm"].SamplingParams()
    wait(
        ask(
            model,
            sampling_param_top_k=[5],
            sampling_param_temperature=[0.5],
            sampling_param_seed=np.array([2**63], np.uint64),
        )
    )
    params = model._llm.submitted[-1][1]
    assert (params.top_k, params.temperature, params.seed) == (5, 0.5, 2**63)
    assert isinstance(params.seed, int) and isinstance(params.temperature, float)


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        (["a", "b"], {}, "text_input has 2 elements, need 1"),
        ([b"\xff"], {}, "text_input is not valid UTF-8"),
        ("", {}, "the prompt is empty"),
        ("a prompt that is too long", {}, "exceeds max_seq_len"),
        ("x", {"sampling_param_max_tokens": [0]}, "sampling_param_max_tokens is 0, need 1 or more"),
        ("x", {"sampling_param_top_k": [-1]}, "sampling_param_top_k is -1"),
        ("x", {"sampling_param_top_p": [2.0]}, "sampling_param_top_p is 2.0, need more than 0, at most 1"),
        ("x", {"sampling_param_top_p": [0.0]}, "sampling_param_top_p is 0.0"),
        ("x", {"sampling_param_temperature": [-0.5]}, "sampling_param_temperature is -0.5"),
        ("x", {"sampling_param_temperature": [float("nan")]}, "sampling_param_temperature is nan"),
        ("x", {"sampling_param_frequency_penalty": [float("inf")]}, "need a finite number"),
        ("x", {"sampling_param_best_of": [0]}, "sampling_param_best_of is 0"),
        ("x", {"sampling_param_best_of": [9]}, "beyond max_beam_width"),
        ("x", {"sampling_param_max_tokens": [1, 2]}, "sampling_param_max_tokens has 2 elements"),
        ("x", {"lora_id": [1]}, "lora_id without the others"),
        ("x", {"lora_id": [1], "lora_name": ["a"], "lora_path": ["/a"], "lora_ckpt_source": ["x"]}, "need one of hf, nemo"),
        ("x", {"stop": [True]}, "stop needs the id"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_its_reason_and_harms_no_other(load: Load, text: Any, inputs: dict[str, Any], message: str) -> None:  # fmt: skip
    model = load()
    good = triton_stub.request({"text_input": ["one"], "sampling_param_max_tokens": [1], "streaming": [True]})
    values = {"text_input": [text] if isinstance(text, str) else text, **inputs}
    bad = triton_stub.request(values)
    model.execute([bad, good])
    code, found = error_of(wait(bad.sender))
    assert message in found
    assert code == triton_stub.TritonError.INVALID_ARG
    assert text_of(wait(good.sender)) == ["one"]


def test_a_failure_in_the_engine_is_the_error_of_its_request_and_goes_to_the_log(load: Load) -> None:
    sender = wait(ask(load(), "this breaks", streaming=[True]))
    code, message = error_of(sender)
    assert (code, message) == (
        triton_stub.TritonError.INTERNAL,
        "internal error in tensorrt_llm: RuntimeError: CUDA error: an illegal memory access was encountered",
    )
    assert text_of(sender) == ["this"]
    assert "Traceback" in triton_stub.Logger.lines[-1]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_stops_the_engine(load: Load, tmp_path: Path, streaming: bool) -> None:
    sender = ask(load(), "leaving", streaming=[streaming], sampling_param_max_tokens=[MANY])
    sender.cancel()
    assert error_of(wait(sender)) == (triton_stub.TritonError.CANCELLED, "the request was cancelled")
    [line] = (tmp_path / "llm.log").read_text().splitlines()
    assert json.loads(line)["ended"] == "aborted"


@pytest.mark.parametrize("decoupled", [True, False])
def test_stop_ends_the_request_of_that_id_and_only_that(load: Load, decoupled: bool) -> None:
    model = load(decoupled=decoupled)
    kept = ask(model, "kept", request_id="kept", sampling_param_max_tokens=[MANY])
    ended = ask(model, "ended", request_id="ended", sampling_param_max_tokens=[MANY])
    wait_for(lambda: len(model._llm.submitted) == 2)
    stopping = wait(ask(model, "", request_id="ended", stop=[True]))
    assert not any(response.has_error() for response in stopping.responses)
    assert error_of(wait(ended))[0] == triton_stub.TritonError.CANCELLED
    assert not kept.is_final
    unknown = wait(ask(model, "", request_id="nobody", stop=[True]))
    assert not any(response.has_error() for response in unknown.responses)


@pytest.mark.parametrize("streaming", [True, False])
def test_an_answer_that_the_engine_cancels_still_gets_its_end(load: Load, streaming: bool) -> None:
    sender = wait(ask(load(), "it quits", streaming=[streaming], sampling_param_max_tokens=[9]))
    assert error_of(sender)[0] == triton_stub.TritonError.CANCELLED


def test_requests_that_run_when_the_server_goes_get_their_end(load: Load) -> None:
    model = load()
    senders = [ask(model, "running", streaming=[True], sampling_param_max_tokens=[MANY]) for _ in range(3)]
    wait_for(lambda: len(model._llm.submitted) == 3)
    model.finalize()
    assert all(error_of(wait(sender))[0] == triton_stub.TritonError.CANCELLED for sender in senders)
    model.initialize(triton_stub.arguments({}))


def test_a_stream_from_a_model_that_is_not_decoupled_is_refused_at_once(load: Load) -> None:
    code, message = error_of(wait(ask(load(decoupled=False), streaming=[True])))
    assert (code, "decoupled" in message) == (triton_stub.TritonError.INVALID_ARG, True)


def test_an_adapter_goes_with_its_request(load: Load) -> None:
    model = load()
    wait(ask(model, lora_id=np.array([7], np.uint64), lora_name=["mine"], lora_path=["/adapter"]))
    assert vars(model._llm.lora_request) == {
        "lora_name": "mine", "lora_int_id": 7, "lora_path": "/adapter", "lora_ckpt_source": "hf",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("triton", "message"),
    [
        ({"decoupled": False, "max_batch_size": 0}, "triton_config.decoupled is False in"),
        ({"decoupled": True, "max_batch_size": 4}, "triton_config.max_batch_size is 4 in"),
        ({}, "has no triton_config with the key 'decoupled'"),
    ],
)
def test_a_configuration_that_disagrees_with_triton_s_does_not_load(load: Load, triton: dict[str, Any], message: str) -> None:  # fmt: skip
    with pytest.raises(ValueError, match=message):
        load(triton=triton)


def test_an_unknown_argument_stops_the_load_with_the_llm_s_words(load: Load) -> None:
    with pytest.raises(ValueError, match="unknown arguments: use_cuda_graph"):
        load(config={"use_cuda_graph": True})


def test_copies_that_mpirun_started_do_not_each_load_the_model(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="started this server 2 times"):
        load()
    monkeypatch.setenv("TLLM_SPAWN_PROXY_PROCESS", "1")
    load()


def test_special_tokens_are_as_in_trtbuild_yaml(load: Load) -> None:
    model = load(add_special_tokens="false", skip_special_tokens="false")
    wait(ask(model))
    params = model._llm.submitted[-1][1]
    assert (params.add_special_tokens, params.skip_special_tokens) == (False, False)
