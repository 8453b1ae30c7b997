"""Rendering: what is written, what is refused, and that nothing half-done is left."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild import manifest
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.repo.context import RepoContext
from trtbuild.repo.lint import lint
from trtbuild.repo.locate import templates_dir
from trtbuild.repo.proto import parse_config
from trtbuild.repo.render import pbstr, render
from trtbuild.spec import replaced

Context = Callable[..., RepoContext]


def config(repository: Path, model: str) -> Any:
    return parse_config((repository / model / "config.pbtxt").read_text(encoding="utf-8"))


def parameters(repository: Path, model: str) -> dict[str, str]:
    return {key: value.string_value for key, value in config(repository, model).parameters.items()}


class TestContent:
    def test_every_model_has_its_configuration_code_and_version(self, repository: Path) -> None:
        assert sorted(path.relative_to(repository).as_posix() for path in repository.glob("*/1/model.py")) == [
            "postprocessing/1/model.py",
            "preprocessing/1/model.py",
            "tensorrt_llm/1/model.py",
            "tensorrt_llm_bls/1/model.py",
        ]
        assert (repository / "ensemble" / "1").is_dir()
        assert lint(repository) == []

    def test_python_is_copied_byte_for_byte_and_shared_modules_go_to_each_model(self, repository: Path) -> None:
        source = templates_dir()
        for copied, original in (
            ("preprocessing/1/words.py", "common/preprocessing/1/words.py"),
            ("preprocessing/1/serving.py", "_shared/serving.py"),
            ("postprocessing/1/tokenizer.py", "_shared/tokenizer.py"),
            ("tensorrt_llm_bls/1/serving.py", "_shared/serving.py"),
        ):
            assert (repository / copied).read_bytes() == (source / original).read_bytes()
        assert not list(repository.rglob("_*"))
        assert not list(repository.rglob("*.j2"))

    def test_no_model_enables_code_of_the_model_s_author(self, repository: Path) -> None:
        code = "".join(path.read_text(encoding="utf-8") for path in repository.rglob("*.py"))
        assert "trust_remote_code=False" in code
        assert "trust_remote_code=True" not in code

    def test_values_of_trtbuild_yaml_arrive(self, context: Context, templates: Path, tmp_path: Path) -> None:
        made = context(
            limits={"max_batch_size": 5, "max_seq_len": 96},
            serving={"bls_instances": 7, "preprocessing_instances": 3, "max_queue_size": 9, "max_queue_delay_us": 11},
        )
        repository = render(made, tmp_path / "out", templates=templates).path
        assert {config(repository, name).max_batch_size for name in PATHS} == {5}
        assert config(repository, "tensorrt_llm_bls").instance_group[0].count == 7
        assert config(repository, "preprocessing").instance_group[0].count == 3
        assert config(repository, "postprocessing").instance_group[0].count == 1
        for name in ("preprocessing", "tensorrt_llm"):
            queue = config(repository, name).dynamic_batching
            assert (queue.default_queue_policy.max_queue_size, queue.max_queue_delay_microseconds) == (9, 11)
        assert parameters(repository, "preprocessing")["max_seq_len"] == "96"
        assert parameters(repository, "tensorrt_llm")["max_tokens_in_paged_kv_cache"] == str(5 * 96)

    @pytest.mark.parametrize("streaming", [True, False])
    def test_one_value_decides_whether_every_model_is_decoupled(
        self, context: Context, templates: Path, tmp_path: Path, streaming: bool
    ) -> None:
        repository = render(context(serving={"streaming": streaming}), tmp_path / "out", templates=templates).path
        for name in ("tensorrt_llm", "tensorrt_llm_bls"):
            assert config(repository, name).model_transaction_policy.decoupled is streaming
        assert not config(repository, "ensemble").HasField("model_transaction_policy")

    def test_a_parameter_that_is_not_set_is_left_out(self, repository: Path) -> None:
        assert "system_prompt" not in parameters(repository, "preprocessing")
        assert "stop_words" not in parameters(repository, "tensorrt_llm_bls")

    @pytest.mark.parametrize("text", ['a"b', "x\\y", "é", "👩‍👩‍👧", "a\nb\r\t", '"} } evil: "'])
    def test_a_text_comes_back_as_it_was_and_adds_no_field(
        self, context: Context, templates: Path, tmp_path: Path, text: str
    ) -> None:
        serving = {"chat_template": True, "system_prompt": text, "stop_words": [text, text, ""]}
        checkpoint = Path(context().checkpoint_dir)
        (checkpoint / "tokenizer" / "chat_template.jinja").write_text("x")
        repository = render(context(serving=serving), tmp_path / "out", templates=templates).path
        written = parameters(repository, "preprocessing")
        assert written["system_prompt"] == text
        assert json.loads(written["stop_words"]) == [text]

    @pytest.mark.parametrize(("value", "written"), [(True, "true"), (False, "false"), ("messages", "messages")])
    def test_every_kind_of_chat_template_can_be_rendered(
        self, context: Context, tmp_path: Path, value: Any, written: str
    ) -> None:
        (Path(context().checkpoint_dir) / "tokenizer" / "chat_template.jinja").write_text("x")
        repository = render(context(serving={"chat_template": value}), tmp_path / "out").path
        assert parameters(repository, "preprocessing")["chat_template"] == written

    def test_the_same_values_give_the_same_files(self, context: Context, templates: Path, tmp_path: Path) -> None:
        first = render(context(), tmp_path / "one", templates=templates)
        second = render(context(), tmp_path / "two", templates=templates)
        assert first.files == second.files

    def test_the_manifest_lists_every_file_with_its_digest(self, repository: Path) -> None:
        manifest = json.loads((repository / "manifest.json").read_text())
        assert manifest["kind"] == "repository"
        assert manifest["context"]["variant"] == "reference"
        assert manifest["files"] == {
            path.relative_to(repository).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in repository.rglob("*")
            if path.is_file() and path.name != "manifest.json"
        }


PATHS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans())
def test_any_value_survives_protobuf_text(value: Any) -> None:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    parsed = parse_config(f'parameters {{ key: "k" value {{ string_value: {pbstr(value)} }} }} name: "after"')
    assert parsed.parameters["k"].string_value == text
    assert parsed.name == "after"


class TestEngine:
    def test_what_the_backend_must_find_is_there(
        self, context: Context, templates: Path, tmp_path: Path, engine: Path
    ) -> None:
        repository = render(context(target="tensorrt"), tmp_path / "out", templates=templates).path
        assert config(repository, "tensorrt_llm").backend == "tensorrtllm"
        written = parameters(repository, "tensorrt_llm")
        assert written["gpt_model_path"] == str(engine)
        assert written["gpt_model_type"] == "inflight_fused_batching"
        assert written["exclude_input_in_output"] == "true"
        assert 0 < float(written["kv_cache_free_gpu_mem_fraction"]) < 1
        for key in ("guided_decoding_backend", "xgrammar_tokenizer_info_path"):
            assert written[key] == ""
        assert "max_tokens_in_paged_kv_cache" not in written
        assert (repository / "tensorrt_llm" / "1").is_dir()

    def test_a_size_of_the_pool_is_passed_on(self, context: Context, templates: Path, tmp_path: Path) -> None:
        made = context(target="tensorrt", kv_cache={"max_tokens": 4096})
        repository = render(made, tmp_path / "out", templates=templates).path
        assert parameters(repository, "tensorrt_llm")["max_tokens_in_paged_kv_cache"] == "4096"

    def test_a_larger_batch_than_the_engine_takes_is_refused(self, context: Context) -> None:
        assert context(target="tensorrt", limits={"max_batch_size": 16}).max_batch_size == 16
        with pytest.raises(
            TrtbuildError, match=r"max_batch_size=17 in trtbuild.yaml exceeds max_batch_size=16 in .*engine/config"
        ):
            context(target="tensorrt", limits={"max_batch_size": 17})

    @pytest.mark.parametrize(("dtype", "expected"), [("float16", "TYPE_FP16"), ("float32", "TYPE_FP32")])
    def test_logits_have_the_engine_s_type(self, context: Context, engine: Path, dtype: str, expected: str) -> None:
        content = json.loads((engine / "config.json").read_text())
        content["pretrained_config"]["logits_dtype"] = dtype
        (engine / "config.json").write_text(json.dumps(content))
        assert context(target="tensorrt").logits_datatype == expected

    def test_logits_the_backend_does_not_know_are_refused(self, context: Context, engine: Path) -> None:
        content = json.loads((engine / "config.json").read_text())
        content["pretrained_config"]["logits_dtype"] = "bfloat16"
        (engine / "config.json").write_text(json.dumps(content))
        with pytest.raises(TrtbuildError, match="logits of dtype bfloat16 cannot be served"):
            context(target="tensorrt")

    def test_a_model_folder_is_no_engine(self, context: Context, engine: Path) -> None:
        (engine / "config.json").write_text('{"hidden_size": 64}')
        with pytest.raises(TrtbuildError, match="is not an engine folder"):
            context(target="tensorrt")

    def test_an_engine_of_another_release_than_the_deployment_states_is_refused(self, context: Context) -> None:
        with pytest.raises(TrtbuildError) as error:
            context(target="tensorrt", tensorrt_llm="1.2.1")
        assert "was built by TensorRT-LLM 1.2.0, TensorRT-LLM 1.2.1 (26.07) has 1.2.1" in error.value.message
        assert "26.03-trtllm-python-py3" in error.value.hint

    def test_an_engine_of_the_release_that_the_deployment_states_is_taken_without_a_warning(
        self, context: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        context(target="tensorrt", tensorrt_llm="1.2.0")
        assert "was built by" not in caplog.text
        assert "does not state" not in caplog.text

    def test_a_deployment_that_states_no_release_is_told_which_one_must_serve(
        self, context: Context, caplog: pytest.LogCaptureFixture
    ) -> None:
        context(target="tensorrt")
        assert "does not state tensorrt_llm" in caplog.text
        assert "was built by 1.2.0" in caplog.text
        assert "26.03-trtllm-python-py3" in caplog.text

    @pytest.mark.parametrize(("gpu", "refused"), [("h100", True), ("l4", False)])
    def test_an_engine_of_another_kind_of_gpu_or_tensorrt_is_refused(
        self, context: Context, engine: Path, gpu: str, refused: bool
    ) -> None:
        built = {"kind": "engine", "sm": 89, "tensorrt": "10.14.1.48"}
        (engine / "manifest.json").write_text(json.dumps(built))
        sections = {"target": "tensorrt", "tensorrt_llm": "1.2.0", "hardware": {"gpu": gpu}}
        if not refused:
            context(**sections)
            (engine / "manifest.json").write_text(json.dumps({**built, "tensorrt": "10.14.1.47"}))
        with pytest.raises(TrtbuildError, match="SM89.*SM90" if refused else r"10\.14\.1\.47.*10\.14\.1\.48"):
            context(**sections)

    def test_an_engine_of_another_generation_is_refused_with_its_version(self, context: Context, engine: Path) -> None:
        (engine / "config.json").write_text('{"version": "0.7.1", "builder_config": {"name": "llama"}}')
        with pytest.raises(TrtbuildError, match=r"written by TensorRT-LLM 0\.7\.1, has builder_config"):
            context(target="tensorrt", tensorrt_llm="1.2.0")


class TestPaths:
    def test_they_are_absolute(self, context: Context, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(checkpoint)
        assert context().checkpoint_dir == str(checkpoint)

    def test_a_server_in_a_container_sees_its_own(self, context: Context, tmp_path: Path) -> None:
        made = context(path_map=(str(tmp_path), "/models"))
        assert (made.checkpoint_dir, made.tokenizer_dir) == ("/models/checkpoint", "/models/checkpoint/tokenizer")

    def test_a_folder_the_server_cannot_see_is_refused(self, context: Context, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="the server cannot see it"):
            context(path_map=(str(tmp_path / "other"), "/models"))

    def test_a_relative_one_cannot_get_into_a_context(self, context: Context) -> None:
        with pytest.raises(ValueError, match="must be an absolute path"):
            replaced(context(), tokenizer_dir="tok")


class TestMissingValues:
    def test_all_of_them_are_named_with_their_places_before_anything_is_written(
        self, context: Context, templates: Path, tmp_path: Path
    ) -> None:
        file = templates / "common" / "postprocessing" / "config.pbtxt.j2"
        lines = file.read_text().count("\n")
        file.write_text(file.read_text() + "{{ renamed.field }}\n{% if other %}x{% endif %}\n")
        with pytest.raises(TrtbuildError, match="names that have no value") as caught:
            render(context(), tmp_path / "out", templates=templates)
        assert f"renamed (common/postprocessing/config.pbtxt.j2:{lines + 1})" in str(caught.value)
        assert f"other (common/postprocessing/config.pbtxt.j2:{lines + 2})" in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_a_result_that_would_not_load_is_not_kept(self, context: Context, templates: Path, tmp_path: Path) -> None:
        file = templates / "common" / "ensemble" / "config.pbtxt.j2"
        file.write_text(file.read_text().replace('model_name: "postprocessing"', 'model_name: "postprocess"'))
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(TrtbuildError, match="'postprocess', which does not exist"):
            render(context(), tmp_path / "out", templates=templates)
        assert sorted(path.name for path in tmp_path.iterdir()) == before


class TestOutput:
    def test_an_existing_repository_is_replaced_only_by_force(
        self, context: Context, templates: Path, repository: Path
    ) -> None:
        with pytest.raises(TrtbuildError, match="exists"):
            render(context(), repository, templates=templates)
        render(context(limits={"max_batch_size": 3}), repository, templates=templates, force=True)
        assert config(repository, "ensemble").max_batch_size == 3

    def test_a_failed_second_run_leaves_the_first_as_it_was(
        self, context: Context, templates: Path, repository: Path, tmp_path: Path
    ) -> None:
        before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
        (templates / "common" / "ensemble" / "config.pbtxt.j2").write_text("name: ${broken}")
        with pytest.raises(TrtbuildError):
            render(context(), repository, templates=templates, force=True)
        assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
        assert not list(tmp_path.glob(".repository*"))

    def test_a_folder_of_someone_else_is_not_replaced_even_by_force(
        self, context: Context, templates: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("x")
        with pytest.raises(TrtbuildError, match="was not made by trtbuild"):
            render(context(), tmp_path / "mine", templates=templates, force=True)
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"

    def test_files_that_were_added_are_not_deleted(self, context: Context, templates: Path, repository: Path) -> None:
        (repository / "own_model").mkdir()
        (repository / "own_model" / "config.pbtxt").write_text("x")
        with pytest.raises(TrtbuildError, match="files that were not rendered: own_model/config.pbtxt"):
            render(context(), repository, templates=templates, force=True)

    @pytest.mark.parametrize("content", ["{", '{"kind": "repository", "schema_version": 1}', "[]", "\0"])
    def test_a_repository_with_a_damaged_manifest_is_replaced_by_force(
        self, context: Context, templates: Path, repository: Path, caplog: pytest.LogCaptureFixture, content: str
    ) -> None:
        whole = manifest.read(repository, kind="repository")
        (repository / "manifest.json").write_text(content)
        with pytest.raises(TrtbuildError, match="manifest.json") as error:
            render(context(), repository, templates=templates)
        assert error.value.hint == "`trtbuild render` with --force renders it again"
        with caplog.at_level(logging.WARNING, logger="trtbuild"):
            render(context(), repository, templates=templates, force=True)
        assert "whether files were edited by hand is not known" in caplog.text
        assert manifest.read(repository, kind="repository")["files"].keys() == whole["files"].keys()

    def test_beside_a_damaged_manifest_nothing_of_another_name_is_deleted(
        self, context: Context, templates: Path, repository: Path
    ) -> None:
        (repository / "manifest.json").write_text("{")
        (repository / "preprocessing" / "1" / "own.py").write_text("x")
        with pytest.raises(TrtbuildError, match="files that were not rendered: preprocessing/1/own.py"):
            render(context(), repository, templates=templates, force=True)
        assert (repository / "manifest.json").read_text() == "{"

    def test_a_file_that_was_edited_is_replaced_and_named(
        self, context: Context, templates: Path, repository: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (repository / "ensemble" / "config.pbtxt").write_text("edited")
        with caplog.at_level(logging.WARNING, logger="trtbuild"):
            render(context(), repository, templates=templates, force=True)
        assert "ensemble/config.pbtxt was edited by hand" in caplog.text

    def test_compiled_python_of_a_server_is_no_obstacle(
        self, context: Context, templates: Path, repository: Path
    ) -> None:
        cache = repository / "preprocessing" / "1" / "__pycache__"
        cache.mkdir()
        (cache / "model.cpython-311.pyc").write_bytes(b"x")
        render(context(), repository, templates=templates, force=True)
        assert not cache.exists()
