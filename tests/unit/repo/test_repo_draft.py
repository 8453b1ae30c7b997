"""A draft model beside the core: the sixth model of a repository, what is refused, and how both are started."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.repo.conftest import cut_engine, make_checkpoint

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.context import RepoContext
from trtbuild.repo.deployment import context_of
from trtbuild.repo.proto import parse_config
from trtbuild.repo.render import render
from trtbuild.spec import parse

Make = Callable[..., RepoContext]
BUILD: dict[str, Any] = {
    "max_batch_size": 16, "max_seq_len": 260, "max_draft_len": 4, "speculative_decoding_mode": 2,
    "plugin_config": {"use_paged_context_fmha": True, "tokens_per_block": 32},
}  # fmt: skip
ENGINES: dict[str, dict[str, Any]] = {
    "target": {
        "version": "1.2.0",
        "pretrained_config": {"logits_dtype": "float16", "vocab_size": 128},
        "build_config": BUILD,
    },
    "draft": {
        "version": "1.2.0",
        "pretrained_config": {"logits_dtype": "float16", "vocab_size": 128},
        "build_config": {
            **BUILD, "max_seq_len": 256, "max_draft_len": 0, "speculative_decoding_mode": 1, "gather_generation_logits": True,
        },
    },
}  # fmt: skip
TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "</s>"}]}


def write(folder: Path, **sections: Any) -> None:
    """Write a build folder: trtbuild.yaml, a checkpoint and an engine's config.json."""
    make_checkpoint(folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "trtbuild.yaml").write_text(json.dumps({"model": {"path": str(folder / "checkpoint")}, **sections}))
    (folder / "engine").mkdir()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes the context of a target and its draft model, each with sections and changes of its engine."""

    def make(
        *,
        target: dict[str, Any] | None = None,
        draft: dict[str, Any] | None = None,
        edit: Callable[[dict[str, dict[str, Any]]], Any] = lambda engines: None,
        named: str | None = "draft",
        kind: str = "tensorrt",
    ) -> RepoContext:
        engines = json.loads(json.dumps(ENGINES))
        edit(engines)
        mine = {"target": kind, "speculative": {"mode": "draft_target", "max_draft_len": 4}}
        mine |= {"serving": {"mode": "orchestrator"}} if kind == "tensorrt" else {}
        sections = {"target": {**mine, **(target or {})}, "draft": {"target": kind, **(draft or {})}}
        for name, content in engines.items():
            if not (tmp_path / name).exists():
                write(tmp_path / name, **sections[name])
            (tmp_path / name / "engine" / "config.json").write_text(json.dumps(content))
            cut_engine(tmp_path / name / "engine", **sections[name].get("parallel", {}))
        folder = tmp_path / "target"
        deployment = parse({"model": {"path": str(folder / "checkpoint")}, **sections["target"]}, origin="test")
        return context_of(
            deployment,
            checkpoint_dir=folder / "checkpoint",
            engine_dir=folder / "engine" if kind == "tensorrt" else None,
            draft_dir=None if named is None else tmp_path / named,
        )

    return make


def configs(context: RepoContext, folder: Path) -> dict[str, Any]:
    """Return the configurations of the rendered models by name."""
    repository = render(context, folder).path
    return {file.parent.name: parse_config(file.read_text()) for file in repository.glob("*/config.pbtxt")}


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


class TestTheSixthModel:
    def test_it_is_the_core_with_another_name_and_engine(self, make: Make, tmp_path: Path) -> None:
        models = configs(make(draft={"kv_cache": {"free_gpu_memory_fraction": 0.2}}), tmp_path / "out")
        assert len(models) == 6
        core, draft = models["tensorrt_llm"], models["tensorrt_llm_draft"]
        assert draft.name == "tensorrt_llm_draft"
        assert (list(draft.input), list(draft.output)) == (list(core.input), list(core.output))
        assert draft.model_transaction_policy == core.model_transaction_policy
        assert draft.max_batch_size == core.max_batch_size == 16
        mine, its = parameters(core), parameters(draft)
        assert {key for key in mine if mine[key] != its.get(key)} == {
            "gpt_model_path",
            "kv_cache_free_gpu_mem_fraction",
        }
        assert its["gpt_model_path"] == str(tmp_path / "draft" / "engine")
        assert its["kv_cache_free_gpu_mem_fraction"] == "0.2"
        assert (tmp_path / "out" / "tensorrt_llm_draft" / "1" / ".keep").is_file()

    def test_bls_knows_it(self, make: Make, tmp_path: Path) -> None:
        found = parameters(configs(make(), tmp_path / "out")["tensorrt_llm_bls"])
        assert found["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"
        assert (found["max_draft_len"], found["draft_logits"]) == ("4", "true")

    def test_without_one_nothing_speaks_of_it(self, make: Make, tmp_path: Path) -> None:
        context = make(
            target={"speculative": {}}, named=None, edit=lambda e: e["target"]["build_config"].update(max_draft_len=0)
        )
        models = configs(context, tmp_path / "out")
        assert "tensorrt_llm_draft" not in models
        assert (
            not {"tensorrt_llm_draft_model_name", "max_draft_len", "draft_logits"}
            & parameters(models["tensorrt_llm_bls"]).keys()
        )

    def test_an_engine_that_gives_no_logits_is_noted_and_bls_told(
        self, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        context = make(edit=lambda e: e["draft"]["build_config"].pop("gather_generation_logits"))
        assert "without gather_generation_logits, so use_draft_logits is refused" in caplog.text
        assert parameters(configs(context, tmp_path / "out")["tensorrt_llm_bls"])["draft_logits"] == "false"

    def test_the_engine_says_how_many_draft_tokens_where_the_deployment_does_not(self, make: Make) -> None:
        context = make(
            target={"speculative": {"mode": "draft_target"}},
            edit=lambda e: e["target"]["build_config"].update(max_draft_len=7),
        )
        assert context.draft is not None
        assert context.draft.max_draft_len == 7

    def test_the_reference_target_drafts_with_a_checkpoint(self, make: Make, tmp_path: Path) -> None:
        models = configs(make(kind="reference"), tmp_path / "out")
        assert parameters(models["tensorrt_llm_draft"])["gpt_model_path"] == str(tmp_path / "draft" / "checkpoint")
        assert parameters(models["tensorrt_llm"])["gpt_model_path"] == str(tmp_path / "target" / "checkpoint")
        python = {file.name for file in (tmp_path / "out" / "tensorrt_llm" / "1").iterdir()}
        assert python == {file.name for file in (tmp_path / "out" / "tensorrt_llm_draft" / "1").iterdir()}


#: What is wrong with the engines -> what the error says.
WRONG: dict[str, tuple[Callable[[dict[str, dict[str, Any]]], Any], str]] = {
    "another vocabulary": (lambda e: e["draft"]["pretrained_config"].update(vocab_size=120), "vocab_size is 120 in .*draft.* and 128"),
    "another release": (lambda e: e["draft"].update(version="1.1.0"), "built by TensorRT-LLM 1.1.0, .* by 1.2.0"),
    "other blocks": (
        lambda e: e["draft"]["build_config"]["plugin_config"].update(tokens_per_block=64),
        "tokens_per_block is 64 in .*draft.* and 32",
    ),
    "other logits": (lambda e: e["draft"]["pretrained_config"].update(logits_dtype="float32"), "logits_dtype is float32 in .* and float16"),
    "shorter texts": (lambda e: e["draft"]["build_config"].update(max_seq_len=255), "max_seq_len is 255 in .* may have 256 tokens"),
    "smaller batches": (lambda e: e["draft"]["build_config"].update(max_batch_size=8), "max_batch_size is 8 in .*draft.* and 16"),
    "a draft model that speculates": (
        lambda e: e["draft"]["build_config"].update(speculative_decoding_mode=8, max_draft_len=3),
        r"speculates itself \(speculative_decoding_mode lookahead_decoding, max_draft_len 3\)",
    ),
    "a target for lookahead": (
        lambda e: e["target"]["build_config"].update(speculative_decoding_mode="SpeculativeDecodingMode.LOOKAHEAD_DECODING"),
        "takes no draft tokens .speculative_decoding_mode lookahead_decoding",
    ),
}  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize("wrong", WRONG)
    def test_engines_that_do_not_go_together(self, make: Make, wrong: str) -> None:
        edit, message = WRONG[wrong]
        with pytest.raises(TrtbuildError, match=message) as error:
            make(edit=edit)
        assert error.value.hint

    def test_everything_wrong_is_said_at_once(self, make: Make) -> None:
        def edit(engines: dict[str, dict[str, Any]]) -> None:
            engines["draft"]["pretrained_config"]["vocab_size"] = 7
            engines["draft"]["build_config"]["max_batch_size"] = 1

        with pytest.raises(TrtbuildError, match="vocab_size is 7.*max_batch_size is 1"):
            make(edit=edit)

    @pytest.mark.parametrize("mode", [2, "2", "DRAFT_TOKENS_EXTERNAL", "SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"])
    def test_a_mode_may_be_written_as_a_number_or_a_name(self, make: Make, mode: Any) -> None:
        assert make(edit=lambda e: e["target"]["build_config"].update(speculative_decoding_mode=mode)).draft is not None

    @pytest.mark.parametrize("who", ["target", "draft"])
    def test_models_that_do_not_keep_their_blocks(self, make: Make, who: str) -> None:
        off: dict[str, Any] = {who: {"kv_cache": {"enable_block_reuse": False}}}
        with pytest.raises(TrtbuildError, match="kv_cache.enable_block_reuse is false for the") as error:
            make(**off)
        assert "set it to true in both" in error.value.hint

    def test_more_draft_tokens_than_the_target_was_built_for(self, make: Make) -> None:
        with pytest.raises(UsageError, match=r"speculative.max_draft_len=9 exceeds max_draft_len=4 in"):
            make(target={"speculative": {"mode": "draft_target", "max_draft_len": 9}})

    def test_no_draft_model_names_the_way_out(self, make: Make) -> None:
        with pytest.raises(UsageError, match="speculative.mode=draft_target, and no draft model is named") as error:
            make(named=None)
        assert "--draft" in error.value.hint and "speculative.mode: none" in error.value.hint

    def test_the_reference_target_goes_without_and_says_so(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        assert make(kind="reference", named=None).draft is None
        assert "requests that ask for draft tokens are refused" in caplog.text

    def test_a_folder_that_is_no_build(self, make: Make, tmp_path: Path) -> None:
        with pytest.raises(
            TrtbuildError, match=f"no build of a draft model .*there is no {tmp_path}/nothing/trtbuild.yaml"
        ):
            make(named="nothing")

    def test_a_draft_model_that_nobody_asked_for(self, make: Make) -> None:
        with pytest.raises(UsageError, match="speculative.mode is none and the target tensorrt"):
            make(target={"speculative": {}})

    def test_tokenizers_that_number_tokens_differently(self, make: Make, tmp_path: Path) -> None:
        make()
        other = {**TOKENIZER, "model": {"vocab": [["a", 0.0], ["c", -1.0]]}}
        (tmp_path / "draft" / "checkpoint" / "tokenizer" / "tokenizer.json").write_text(json.dumps(other))
        with pytest.raises(TrtbuildError, match="number 2 tokens differently, e.g. 'b' is None and 1"):
            make()

    def test_a_draft_model_with_too_few_positions(self, make: Make, tmp_path: Path) -> None:
        make(kind="reference")
        file = tmp_path / "draft" / "checkpoint" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": 100}))
        with pytest.raises(TrtbuildError, match="the draft model has 100 positions, and max_seq_len is 256"):
            make(kind="reference")

    def test_what_is_known_is_checked_before_the_target_is_built(self, make: Make, tmp_path: Path) -> None:
        make()
        shutil.rmtree(tmp_path / "target" / "engine")

        def later(*, vocab_size: int = 128, **engine: Any) -> RepoContext:
            config = json.loads(json.dumps(ENGINES["draft"]))
            config["build_config"] |= engine
            config["pretrained_config"]["vocab_size"] = vocab_size
            (tmp_path / "draft" / "engine" / "config.json").write_text(json.dumps(config))
            folder = tmp_path / "target"
            deployment = parse(json.loads((folder / "trtbuild.yaml").read_text()), origin="test")
            return context_of(
                deployment,
                checkpoint_dir=folder / "checkpoint",
                engine_dir=folder / "engine",
                engine_later=True,
                draft_dir=tmp_path / "draft",
            )

        assert later().draft is not None
        with pytest.raises(TrtbuildError, match="speculates itself"):
            later(max_draft_len=2)
        with pytest.raises(TrtbuildError, match="vocab_size is 96 in .* and 128 in the target's checkpoint"):
            later(vocab_size=96)


class TestPlacement:
    def test_an_orchestrator_starts_both(self, make: Make) -> None:
        context = make(
            target={"serving": {"mode": "orchestrator", "gpu_device_ids": "1"}}, draft={"serving": {"gpu_device_ids": "0", "mode": "orchestrator"}}
        )  # fmt: skip
        assert context.draft is not None
        assert (context.environment, context.world_size) == ({"TRTLLM_ORCHESTRATOR": "1"}, 1)
        ids = [each["gpu_device_ids"] for each in (context.engine_parameters, context.draft.engine_parameters)]
        assert ids == ["1", "0"]

    def test_workers_of_both_are_started_beforehand(self, make: Make) -> None:
        context = make(
            target={"serving": {"mode": "orchestrator", "gpu_device_ids": "1", "participant_ids": "2"}},
            draft={"serving": {"mode": "orchestrator", "gpu_device_ids": "0", "participant_ids": "1"}},
        )
        assert context.world_size == 3
        assert context.environment["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"

    def test_a_leader_has_one_engine(self, make: Make) -> None:
        with pytest.raises(UsageError, match="serving.mode=leader has one engine per server") as error:
            make(target={"serving": {}})
        assert error.value.hint == "set serving.mode: orchestrator"

    def test_the_mode_is_the_targets(self, make: Make) -> None:
        assert make(draft={"serving": {"mode": "leader"}}).environment == {"TRTLLM_ORCHESTRATOR": "1"}

    @pytest.mark.parametrize(
        ("mine", "its", "message"),
        [
            ({"gpu_device_ids": "0"}, {}, "serving.gpu_device_ids is set for the target and not for the draft model"),
            ({}, {"gpu_device_ids": "0"}, "serving.gpu_device_ids is set for the draft model and not for the target"),
            (
                {"participant_ids": "1"},
                {"participant_ids": "1"},
                "participant_ids of target and draft model names rank 1",
            ),
        ],
    )
    def test_lists_that_do_not_go_together(
        self, make: Make, mine: dict[str, Any], its: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            make(
                target={"serving": {"mode": "orchestrator", **mine}}, draft={"serving": {"mode": "orchestrator", **its}}
            )

    def test_a_draft_model_may_lie_on_gpus_of_its_target(self, make: Make) -> None:
        context = make(
            target={"parallel": {"tp_size": 2}, "serving": {"mode": "orchestrator", "gpu_device_ids": "0,1"}},
            draft={"serving": {"mode": "orchestrator", "gpu_device_ids": "1"}},
        )
        assert context.draft is not None
        assert (context.draft.engine_parameters["gpu_device_ids"], context.world_size) == ("1", 1)

    def test_a_draft_model_on_some_of_its_targets_gpus_and_on_others_is_refused(self, make: Make) -> None:
        with pytest.raises(UsageError, match="gpu_device_ids of target and draft model names GPU 1 more than once"):
            make(
                target={"parallel": {"tp_size": 2}, "serving": {"mode": "orchestrator", "gpu_device_ids": "0,1"}},
                draft={"parallel": {"tp_size": 2}, "serving": {"mode": "orchestrator", "gpu_device_ids": "1,2"}},
            )

    @pytest.mark.parametrize("ids", [{}, {"gpu_device_ids": "0"}])
    @pytest.mark.parametrize(("share", "is_noted"), [(0.9, True), (0.5, False)])
    def test_two_models_that_may_take_all_memory_of_a_gpu_are_noted(
        self, make: Make, caplog: pytest.LogCaptureFixture, share: float, is_noted: bool, ids: dict[str, str]
    ) -> None:
        serving = {"mode": "orchestrator", **ids}
        with caplog.at_level(logging.WARNING):
            make(
                target={"kv_cache": {"free_gpu_memory_fraction": share}, "serving": serving},
                draft={"kv_cache": {"free_gpu_memory_fraction": 0.5}, "serving": serving},
            )
        assert (f"free_gpu_memory_fraction: {share:g}, 0.5" in caplog.text) == is_noted


def test_the_manifest_keeps_what_was_printed(make: Make, tmp_path: Path) -> None:
    context = make()
    render(context, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert stored["context"]["draft"] == msgspec.to_builtins(context.draft)
    assert "tensorrt_llm_draft/config.pbtxt" in stored["files"]
