"""An engine's parameters by release, where its instances run (field report LM06), and how requests wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo.conftest import cut_engine

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.context import RepoContext
from trtbuild.repo.proto import parse_config
from trtbuild.repo.render import render
from trtbuild.trtllm.backend_parameters import BACKEND_PARAMETERS, find_parameter
from trtbuild.trtllm.versions import find_release

Core = Callable[..., Any]
LINES = ("0.17", "0.18", "0.19", "0.20", "0.21", "1.0", "1.1", "1.2")
#: Written for every engine, whatever the release (Triton specification 1.8), by hand.
ALWAYS = {
    "gpt_model_type", "gpt_model_path", "FORCE_CPU_ONLY_INPUT_TENSORS", "executor_worker_path", "exclude_input_in_output",
    "max_beam_width", "batch_scheduler_policy", "enable_chunked_context", "enable_kv_cache_reuse",
    "kv_cache_free_gpu_mem_fraction", "cancellation_check_period_ms", "stats_check_period_ms",
}  # fmt: skip
#: Keys that must exist from 0.19 on.
SINCE_0_19 = {"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"}


@pytest.fixture
def core(context: Callable[..., RepoContext], engine: Path, tmp_path: Path) -> Core:
    """Return a function that renders for a line of releases and returns the core's configuration."""

    def make(line: str = "1.2", **sections: Any) -> Any:
        content = json.loads((engine / "config.json").read_text()) | {"version": str(find_release(line))}
        (engine / "config.json").write_text(json.dumps(content))
        cut_engine(engine, **sections.get("parallel", {}))
        made = context(target="tensorrt", tensorrt_llm=line, **sections)
        repository = render(made, tmp_path / "out", force=True).path
        return parse_config((repository / "tensorrt_llm" / "config.pbtxt").read_text())

    return make


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


@pytest.mark.parametrize("line", LINES)
def test_a_release_gets_the_parameters_that_it_reads(core: Core, line: str) -> None:
    found = parameters(core(line))
    assert set(found) == ALWAYS | (set() if line in ("0.17", "0.18") else SINCE_0_19)
    for key in found:
        known = find_parameter(key)
        assert known is not None
        assert find_release(line).within(known.span), key


@pytest.mark.parametrize("line", LINES)
def test_every_key_that_a_release_must_find_is_there(core: Core, line: str) -> None:
    needed = {each.name for each in BACKEND_PARAMETERS if each.is_key_required_by(find_release(line))}
    assert needed <= set(parameters(core(line)))


def test_lookahead_is_refused_where_the_backend_does_not_read_its_sizes(core: Core) -> None:
    with pytest.raises(
        UsageError, match=r"speculative\.mode=lookahead: the backend of TensorRT-LLM 0\.18\.2 has no"
    ) as error:
        core("0.18", speculative={"mode": "lookahead"})
    assert error.value.hint == "use 0.19.0 or later, or leave it out"
    assert parameters(core("0.19", speculative={"mode": "lookahead"}))["decoding_mode"] == "lookahead"


@pytest.mark.parametrize("mode", ["medusa", "eagle"])
def test_a_tree_of_choices_is_a_list_of_lists(core: Core, mode: str) -> None:
    found = parameters(core(speculative={"mode": mode, "choices": [[0], [0, 1], [2]]}))
    assert found[f"{mode}_choices"] == "{0},{0,1},{2}"
    assert found["decoding_mode"] == mode


def test_a_release_without_engines_is_refused(context: Callable[..., RepoContext], engine: Path) -> None:
    (engine / "config.json").unlink()
    with pytest.raises(UsageError, match="serves no engines"):
        context(target="tensorrt", tensorrt_llm="1.4.0rc4", engine_later=True)


class TestGuidedDecoding:
    @pytest.fixture
    def info(self, tmp_path: Path) -> Path:
        file = tmp_path / "xgrammar.json"
        file.write_text('{"encoded_vocab": [], "tokenizer_str": "", "stop_token_ids": []}')
        return file

    def test_backend_and_file_reach_the_core(self, core: Core, info: Path) -> None:
        found = parameters(core(serving={"guided_decoding": "xgrammar", "xgrammar_tokenizer_info": str(info)}))
        assert (found["guided_decoding_backend"], found["xgrammar_tokenizer_info_path"]) == ("xgrammar", str(info))

    def test_a_release_before_it_is_refused(self, core: Core, info: Path) -> None:
        with pytest.raises(UsageError, match="serving.guided_decoding, serving.xgrammar_tokenizer_info: the backend"):
            core("0.18", serving={"guided_decoding": "xgrammar", "xgrammar_tokenizer_info": str(info)})

    def test_a_file_that_is_missing_or_lacks_a_key_is_refused(self, core: Core, info: Path) -> None:
        serving = {"guided_decoding": "xgrammar", "xgrammar_tokenizer_info": str(info)}
        info.write_text('{"encoded_vocab": []}')
        with pytest.raises(TrtbuildError, match="has no tokenizer_str, stop_token_ids"):
            core(serving=serving)
        info.unlink()
        with pytest.raises(TrtbuildError, match="does not exist"):
            core(serving=serving)

    def test_one_without_the_other_is_refused(self, core: Core) -> None:
        with pytest.raises(UsageError, match="need each other"):
            core(serving={"guided_decoding": "xgrammar"})


class TestPlacement:
    def test_instances_follow_the_groups_of_gpus(self, core: Core) -> None:
        serving = {"mode": "orchestrator", "gpu_device_ids": "0,1;2,3"}
        config = core(serving=serving, parallel={"tp_size": 2}, hardware={"count": 4})
        assert config.instance_group[0].count == 2
        assert parameters(config)["gpu_device_ids"] == "0,1;2,3"

    @pytest.mark.parametrize(
        ("serving", "message"),
        [
            ({"gpu_device_ids": "0,1;1,2", "mode": "orchestrator"}, "names GPU 1 more than once"),
            (
                {"gpu_device_ids": "0,1;2", "mode": "orchestrator"},
                r"gives an instance 1 GPUs \(2\), and tp_size \* pp_size is 2",
            ),
            ({"gpu_device_ids": "0,9"}, "names GPU 9, and hardware.count is 8"),
            ({"gpu_device_ids": "0,1;2,3"}, "is for 2 instances, and serving.mode=leader has one"),
            ({"gpu_device_ids": "0,x"}, "is no list of numbers"),
            ({"gpu_device_ids": ""}, "is no list of numbers"),
            ({"gpu_device_ids": "0,-1"}, "is no list of numbers"),
            ({"participant_ids": "1,2"}, "participant_ids needs serving.mode: orchestrator"),
            ({"participant_ids": "0,1", "mode": "orchestrator"}, "names rank 0, which is the orchestrator"),
            (
                {"participant_ids": "1,2", "gpu_device_ids": "0,1;2,3", "mode": "orchestrator"},
                "is for 1 instances, serving.gpu_device_ids for 2",
            ),
        ],
    )
    def test_lists_that_do_not_fit_are_refused(self, core: Core, serving: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            core(serving=serving, parallel={"tp_size": 2}, hardware={"count": 8})

    @pytest.mark.parametrize(
        ("serving", "environment", "world_size"),
        [
            ({}, {}, 2),
            ({"mode": "orchestrator"}, {"TRTLLM_ORCHESTRATOR": "1"}, 1),
            (
                {"mode": "orchestrator", "participant_ids": "1,2;3,4", "gpu_device_ids": "0,1;2,3"},
                {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"},
                5,
            ),
        ],
    )
    def test_the_mode_decides_environment_and_ranks(
        self, context: Callable[..., RepoContext], engine: Path, serving: dict[str, Any], environment: dict[str, str], world_size: int,
    ) -> None:  # fmt: skip
        cut_engine(engine, tp_size=2)
        made = context(target="tensorrt", serving=serving, parallel={"tp_size": 2})
        assert (made.environment, made.world_size) == (environment, world_size)

    @pytest.mark.parametrize("field", [{"mode": "orchestrator"}, {"gpu_device_ids": "0"}, {"participant_ids": "1"}])
    def test_other_targets_have_none_of_it(self, context: Callable[..., RepoContext], field: dict[str, str]) -> None:
        with pytest.raises(UsageError, match=f"serving.{next(iter(field))}: only engines have that"):
            context(serving=field)


class TestQueue:
    def test_every_field_reaches_it(self, core: Core) -> None:
        config = core(
            serving={
                "max_queue_size": 7, "max_queue_delay_us": 50, "queue_timeout_us": 1000, "queue_timeout_action": "delay",
                "allow_timeout_override": True, "priority_levels": 3, "default_priority_level": 2,
            }
        )  # fmt: skip
        batching = config.dynamic_batching
        policy = batching.default_queue_policy
        assert (batching.priority_levels, batching.default_priority_level, batching.max_queue_delay_microseconds) == (
            3,
            2,
            50,
        )
        assert (policy.max_queue_size, policy.default_timeout_microseconds, policy.allow_timeout_override) == (
            7,
            1000,
            True,
        )
        assert policy.timeout_action == policy.DELAY

    def test_requests_without_a_priority_come_last(self, core: Core) -> None:
        assert core(serving={"priority_levels": 4}).dynamic_batching.default_priority_level == 4

    def test_nothing_is_said_that_was_not_asked_for(self, core: Core) -> None:
        batching = core().dynamic_batching
        assert batching.priority_levels == batching.default_queue_policy.default_timeout_microseconds == 0

    def test_a_default_beyond_the_levels_is_refused(self, core: Core) -> None:
        with pytest.raises(UsageError, match="default_priority_level=3 exceeds priority_levels=2"):
            core(serving={"priority_levels": 2, "default_priority_level": 3})
