"""The Triton model `tensorrt_llm` of the reference target, with a stand-in for Triton and a real engine."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.unit.reference import fake_pb_utils
from tests.unit.reference.conftest import TIMEOUT_S
from tests.unit.reference.fake_pb_utils import MetricFamily, Request
from tests.unit.reference.test_reference_tensors import tensors
from tests.unit.reference.tiny_models import FakeCheckpoint, greedy, tiny_model
from transformers import PreTrainedModel

from trtbuild.errors import TrtbuildError
from trtbuild.reference.metrics import FAMILIES, LENGTH_FAMILIES

TEMPLATES = Path(__file__).parents[3] / "model_repo_templates"
MODULES = ("model", "pending", "periodic", "reporting", "serving", "file_names")
PARAMETERS = {
    "gpt_model_type": "inflight_fused_batching",
    "gpt_model_path": "/checkpoint",
    "tokens_per_block": 8,
    "max_tokens_in_paged_kv_cache": 1024,
    "max_num_tokens": 48,
    "max_seq_len": 256,
    "exclude_input_in_output": "true",
    "cancellation_check_period_ms": 5,
    "stats_check_period_ms": 5,
}


def arguments(*, is_decoupled: bool = True, **changes: Any) -> dict[str, str]:
    config = {
        "name": "tensorrt_llm",
        "max_batch_size": 8,
        "model_transaction_policy": {"decoupled": is_decoupled},
        "parameters": fake_pb_utils.parameters({**PARAMETERS, **changes}),
    }
    return {"model_config": json.dumps(config), "model_name": "tensorrt_llm", "model_version": "1"}


@pytest.fixture(scope="module")
def core() -> Iterator[ModuleType]:
    """The module model.py, freshly imported as the server does: its folder first, shared modules beside it."""
    folder = TEMPLATES / "reference" / "tensorrt_llm" / "1"
    assert (folder / "_shared").read_text().split() == ["serving.py", "file_names.py"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", fake_pb_utils)
        for name in MODULES:
            patch.setitem(sys.modules, name, ModuleType(name))  # whatever is imported here goes away afterwards
            del sys.modules[name]
        patch.syspath_prepend(str(TEMPLATES / "_shared"))
        patch.syspath_prepend(str(folder))
        module = importlib.import_module("model")
        patch.setattr(module, "open_checkpoint", lambda path: FakeCheckpoint(tiny_model("llama")))
        patch.setattr(module.torch, "set_num_threads", lambda count: None)
        patch.setattr(module.gc, "freeze", lambda: None)
        yield module


def started(core: ModuleType, **changes: Any) -> Any:
    MetricFamily.registered.clear()
    model = core.TritonPythonModel()
    model.initialize(arguments(**changes))
    return model


@pytest.fixture(scope="module")
def model(core: ModuleType) -> Iterator[Any]:
    running = started(core)
    yield running
    running.finalize()


def wait(request: Request) -> list[Any]:
    assert request.sender.closed.wait(TIMEOUT_S), "no final response"
    return request.sender.responses


def answer(request: Request) -> list[int]:
    responses = wait(request)
    assert all(response.error() is None for response in responses), [str(response.error()) for response in responses]
    return [token for response in responses for token in response.outputs["output_ids"][0, 0].tolist()]


def error(request: Request) -> Any:
    (response,) = wait(request)
    assert response.outputs == {}
    return response.error()


def gauge(family: str, value: str) -> float | None:
    return next(metric.current for metric in MetricFamily.registered[family].metrics if value in metric.labels.values())


def test_the_template_sets_the_parameters_that_are_read() -> None:
    template = (TEMPLATES / "reference" / "tensorrt_llm" / "config.pbtxt.j2").read_text()
    assert set(re.findall(r'parameter\("(\w+)"', template)) == {*PARAMETERS, "enable_kv_cache_reuse"}
    source = (TEMPLATES / "reference" / "tensorrt_llm" / "1" / "model.py").read_text()
    read = set(re.findall(r'parameters\.(?:number|flag|text|required_text)\(\s*"(\w+)"', source))
    assert read == {*PARAMETERS, "enable_kv_cache_reuse"}


def test_a_stream_gets_a_response_per_token_and_an_empty_final_one(model: Any, llama: PreTrainedModel) -> None:
    request = Request(tensors(streaming=np.array([True])), "id-1")
    assert model.execute([request]) is None
    assert answer(request) == greedy(llama, [5, 6, 7], 9)
    assert [response.outputs["sequence_length"].tolist() for response in request.sender.responses] == [[[1]]] * 9


def test_an_answer_that_is_not_streamed_is_one_response(model: Any, llama: PreTrainedModel) -> None:
    request = Request(tensors())
    model.execute([request])
    assert answer(request) == greedy(llama, [5, 6, 7], 9) and len(request.sender.responses) == 1


def test_a_model_that_is_not_decoupled_answers_with_its_only_response(core: ModuleType, llama: PreTrainedModel) -> None:
    model = started(core, is_decoupled=False)
    request, bad = (
        Request(tensors(), is_decoupled=False),
        Request(tensors(beam_width=np.array([2])), is_decoupled=False),
    )
    stream = Request(tensors(streaming=np.array([True])), is_decoupled=False)
    stop = Request(tensors(stop=np.array([True])), "unknown", is_decoupled=False)
    model.execute([request, bad, stream, stop])
    assert answer(request) == greedy(llama, [5, 6, 7], 9)
    assert "beam_width = 2" in str(error(bad)) and "decoupled mode" in str(error(stream))
    assert [response.error() for response in wait(stop)] == [None]
    model.finalize()


def test_requests_of_one_execution_fail_one_by_one(model: Any, llama: PreTrainedModel) -> None:
    good = Request(tensors())
    bad = [
        Request(tensors(runtime_top_k=np.array([-1], np.int32))),
        Request(tensors(request_output_len=np.array([0], np.int32))),
        Request(tensors(request_output_len=np.array([254], np.int32))),
        Request(tensors(lora_task_id=np.array([3], np.uint64))),
        Request({"input_ids": np.array([[1]], np.int32)}),
    ]
    model.execute([*bad, good])
    texts = [str(error(request)) for request in bad]
    assert [text.split(" ")[0] for text in texts] == [
        "top_k",
        "request_output_len",
        "prompt",
        "lora_task_id",
        "input_lengths",
    ]
    assert {error(request).code for request in bad} == {"invalid"}
    assert answer(good) == greedy(llama, [5, 6, 7], 9)


def test_rows_of_a_batch_answer_with_their_index_and_end_together(model: Any, llama: PreTrainedModel) -> None:
    request = Request(
        tensors(
            input_ids=np.array([[5, 6, 7], [8, 0, 0]], np.int32),
            input_lengths=np.array([3, 1], np.int32),
            request_output_len=np.array([9, 2], np.int32),
        )
    )
    model.execute([request])
    rows = {
        int(response.outputs["batch_index"][0, 0]): response.outputs["output_ids"].tolist()
        for response in wait(request)
    }
    assert rows == {0: [[greedy(llama, [5, 6, 7], 9)]], 1: [[greedy(llama, [8], 2)]]}


def test_a_batch_with_one_bad_row_is_refused_as_a_whole(model: Any) -> None:
    request = Request(
        tensors(
            input_ids=np.array([[5, 6, 7], [8, 0, 0]], np.int32),
            input_lengths=np.array([3, 1], np.int32),
            request_output_len=np.array([9, 2], np.int32),
            runtime_top_p=np.array([0.5, 2.0], np.float32),
        )
    )
    model.execute([request])
    assert "top_p = 2.0" in str(error(request))


def test_the_stop_tensor_ends_the_request_of_that_id_with_what_it_has(model: Any) -> None:
    running = Request(tensors(request_output_len=np.array([250], np.int32)), "mine")
    other = Request(tensors(request_output_len=np.array([200], np.int32)), "other")
    stop = Request(tensors(stop=np.array([True])), "mine")
    model.execute([running, other, stop])
    assert wait(stop) == [] and len(answer(running)) < 250
    assert len(answer(other)) == 200


def test_stopping_nothing_is_fine_and_stopping_without_an_id_is_not(model: Any) -> None:
    unknown, nameless = Request(tensors(stop=np.array([True])), "unknown"), Request(tensors(stop=np.array([True])))
    model.execute([unknown, nameless])
    assert wait(unknown) == []
    assert "request ID is not provided" in str(error(nameless))


def test_a_client_that_leaves_frees_its_place(model: Any) -> None:
    request = Request(tensors(request_output_len=np.array([250], np.int32)), "leaving")
    request.sender.has_left = True
    model.execute([request])
    assert wait(request)[-1].error().code == "cancelled"
    assert sum(response.outputs["output_ids"].size for response in request.sender.responses if response.outputs) < 250
    assert model._engine.stats().active == 0


def test_a_defect_is_reported_to_the_client_as_an_internal_error(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model._engine, "check", lambda *_, **__: 1 / 0)
    request = Request(tensors())
    model.execute([request])
    assert error(request).code == "internal" and "ZeroDivisionError" in str(error(request))
    assert "Traceback" in fake_pb_utils.Logger.messages[-1]


@pytest.mark.parametrize("family", ["gpt_neox", "falcon_7b", "gemma2"])
def test_other_kinds_of_models_answer_through_the_same_tensors(
    core: ModuleType, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "open_checkpoint", lambda path: FakeCheckpoint(tiny_model(family)))
    model = started(core)
    leaving = Request(tensors(request_output_len=np.array([250], np.int32)), "leaving")
    leaving.sender.has_left = True
    whole, stream = Request(tensors()), Request(tensors(streaming=np.array([True])))
    bad = Request(tensors(runtime_top_p=np.array([2.0], np.float32)))
    model.execute([leaving, whole, bad, stream])
    expected = greedy(tiny_model(family), [5, 6, 7], 9)
    assert answer(whole) == answer(stream) == expected and len(stream.sender.responses) == 9
    assert "top_p = 2.0" in str(error(bad)) and wait(leaving)[-1].error().code == "cancelled"
    stats = model._engine.stats()
    assert (stats.active, stats.kv_blocks_used) == (0, 0)
    model.finalize()


def test_metric_families_have_upstreams_names_labels_and_current_values(core: ModuleType) -> None:
    model = started(core)
    request = Request(tensors(), "counted")
    model.execute([request])
    wait(request)
    model.finalize()
    model._reporting.update(model._engine.stats())
    assert set(MetricFamily.registered) == {family.name for family in FAMILIES} | {
        name for name, _, _ in LENGTH_FAMILIES
    }
    for family in FAMILIES:
        metrics = MetricFamily.registered[family.name].metrics
        assert [metric.labels[family.label] for metric in metrics] == list(family.readings)
        assert all((metric.labels["model"], metric.labels["version"]) == ("tensorrt_llm", "1") for metric in metrics)
        assert all(metric.current is not None for metric in metrics), "a value of zero is shown too"
    assert gauge("nv_trt_llm_kv_cache_block_metrics", "max") == 128
    assert gauge("nv_trt_llm_kv_cache_block_metrics", "tokens_per") == 8
    assert gauge("nv_trt_llm_request_metrics", "max") == 8
    assert gauge("nv_trt_llm_request_metrics", "active") == gauge("nv_trt_llm_request_metrics", "waiting") == 0
    lengths = [MetricFamily.registered[name].metrics[0].observed for name, _, _ in LENGTH_FAMILIES]
    assert lengths == [[3], [9]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gpt_model_type": "V1"}, "gpt_model_type is 'V1'"),
        ({"gpt_model_path": ""}, "gpt_model_path.*missing or empty"),
        ({"tokens_per_block": "many"}, "tokens_per_block.*'many'"),
        ({"max_seq_len": 5000}, "max_seq_len = 5000 needs 625"),
    ],
)
def test_a_wrong_parameter_stops_the_load_and_is_named(core: ModuleType, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, TrtbuildError), match=problem):
        core.TritonPythonModel().initialize(arguments(**changes))
