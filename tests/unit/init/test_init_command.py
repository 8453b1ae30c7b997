"""`trtbuild init` on folders: what it writes, and everything it refuses before writing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.hub.fake_hub import tiny_model

from trtbuild import spec
from trtbuild.cli.edge import run
from trtbuild.cli.init import init
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.initialize import initialize, nested, setting


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A one-layer Llama in ./llama; the test runs beside it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "llama"
    folder.mkdir()
    for name, data in tiny_model().items():
        (folder / name).write_bytes(data)
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(init, list(arguments), catch_exceptions=False)


def start(model: str | Path, output: Path = Path("trtbuild.yaml"), **options: Any) -> None:
    defaults: dict[str, Any] = {
        "settings": {}, "fetch": False, "models_dir": Path("models"), "force": False, "quiet": True,
    }  # fmt: skip
    initialize(str(model), output, **{**defaults, **options})


def test_the_written_file_loads_as_what_was_asked_for(model: Path) -> None:
    result = invoke(
        "llama", "--quantization", "fp8", "--tp", "2", "--kv-cache", "fp8", "--set", "serving.stop_words=[a, b]"
    )
    assert result.exit_code == 0
    expected = spec.parse(
        {
            "model": {"path": str(model)},
            "quantization": {"scheme": "fp8", "kv_cache": "fp8"},
            "parallel": {"tp_size": 2},
            "serving": {"stop_words": ["a", "b"]},
        },
        origin="test",
    )
    assert spec.load(Path("trtbuild.yaml")) == expected
    assert "LlamaForCausalLM, 1 layers" in result.stdout
    assert "trtbuild plan trtbuild.yaml" in result.stdout


def test_json_holds_the_deployment_and_the_facts_of_the_model(model: Path) -> None:
    result = json.loads(invoke("llama", "--json", "-o", "d.yaml").stdout)
    assert result["architecture"] == "LlamaForCausalLM"
    assert result["num_layers"] == 1
    assert result["weight_bytes"] == 32 * 16 * 2
    assert result["path"] == "d.yaml"
    assert result["revision"] is None
    assert spec.parse(result["deployment"], origin="json").model.path == "llama"


def test_a_relative_model_stays_relative_to_the_file_wherever_that_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    start("llama", Path("deployments/a.yaml"))
    assert "path: ../llama\n" in Path("deployments/a.yaml").read_text()
    assert Path(spec.load(Path("deployments/a.yaml")).model.path).resolve() == model


def test_an_absolute_model_stays_absolute(model: Path) -> None:
    start(model)
    assert f"path: {model}\n" in Path("trtbuild.yaml").read_text()


def test_a_relative_path_holds_when_the_file_lies_behind_a_link(model: Path, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    start("llama", Path("link/a.yaml"))
    assert Path(spec.load(Path("link/a.yaml")).model.path).resolve() == model


def test_an_existing_file_is_kept_unless_forced(model: Path) -> None:
    Path("trtbuild.yaml").write_text("mine")
    with pytest.raises(TrtbuildError, match=r"trtbuild\.yaml exists") as caught:
        start("llama")
    assert "--force" in caught.value.hint
    assert Path("trtbuild.yaml").read_text() == "mine"
    start("llama", force=True)
    assert spec.load(Path("trtbuild.yaml")).model.path == str(model)


def test_an_output_that_cannot_be_written_is_refused_before_anything_else(model: Path) -> None:
    with pytest.raises(TrtbuildError, match="is a folder"):
        start("missing-model", Path("llama"))
    with pytest.raises(TrtbuildError, match="does not exist"):
        start("missing-model", Path("nowhere/trtbuild.yaml"))


def _replace(folder: Path, name: str, data: bytes | None) -> None:
    (folder / name).unlink()
    if data is not None:
        (folder / name).write_bytes(data)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b'{"hidden_size": 64,}', "line 1 column"),
        ("config.json", tiny_model()["config.json"].replace(b'"hidden_size": 16', b'"hidden_size": "16"'), "hidden_size = '16'"),
        ("config.json", b'{"architectures": ["LlamaForCausalLN"]}', "LlamaForCausalLN"),
        ("config.json", LFS, "Git LFS pointer"),
        ("model.safetensors", LFS, "4976698672 bytes"),
        ("model.safetensors", b"\0" * 4, "model.safetensors"),
        ("model.safetensors", None, r"no \*\.safetensors"),
        ("tokenizer.json", LFS, "Git LFS pointer"),
    ],
)  # fmt: skip
def test_a_broken_folder_is_refused_and_nothing_is_written(
    model: Path, name: str, data: bytes | None, said: str
) -> None:
    _replace(model, name, data)
    with pytest.raises(TrtbuildError, match=said):
        start("llama")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["llama"]


def test_a_folder_one_level_too_high_is_refused_with_the_right_one(model: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"has no config\.json") as caught:
        start(".")
    assert "llama" in caught.value.hint


def test_pickles_are_refused_and_never_opened(model: Path) -> None:
    marker = model / "opened"
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(f"cbuiltins\nopen\n(V{marker}\nVw\ntR.".encode())
    with pytest.raises(TrtbuildError, match="pickled weights only"):
        start("llama")
    assert not marker.exists()


def test_a_tp_size_that_does_not_fit_is_refused_with_those_that_do(model: Path) -> None:
    with pytest.raises(TrtbuildError, match="num_attention_heads=2 cannot be split over tp=3") as caught:
        start("llama", settings={"parallel.tp_size": 3})
    assert "1, 2" in caught.value.hint
    assert not Path("trtbuild.yaml").exists()


def test_unknown_settings_and_schemes_are_usage_errors(model: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'limits'"):
        start("llama", settings={"limit.max_batch_size": 3})
    with pytest.raises(UsageError, match="unknown scheme 'nvfp5', did you mean 'nvfp4'"):
        start("llama", settings={"quantization.scheme": "nvfp5"})


def test_a_hub_name_without_download_says_how_to_fetch_it(model: Path) -> None:
    with pytest.raises(TrtbuildError, match="nothing is fetched unless asked") as caught:
        start("owner/name")
    assert "trtbuild init owner/name --download" in caught.value.hint


def test_download_of_something_that_is_a_folder_or_no_hub_name_is_a_usage_error(model: Path) -> None:
    (model / "sub").mkdir()
    with pytest.raises(UsageError, match="is a folder here"):
        start("llama/sub", fetch=True)
    with pytest.raises(UsageError, match="is not the name of a hub model"):
        start("./llama", fetch=True)


def test_settings_are_checked_before_a_download(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr("trtbuild.initialize.download", refuse)
    with pytest.raises(UsageError, match="unknown key"):
        start("owner/name", fetch=True, settings={"nonsense": 1})


def test_remote_code_is_remarked_on_and_never_run(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoConfig": "evil.Config"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text(f"open({str(model / 'ran')!r}, 'w')")
    with caplog.at_level(logging.WARNING):
        start("llama")
    assert "never runs code" in caplog.text
    assert not (model / "ran").exists()


def test_a_model_newer_than_transformers_is_remarked_on_with_both_versions(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.initialize.version", lambda _: "5.24.0")
    config = json.loads((model / "config.json").read_text())
    for wanted, remarked in (("99.0", True), ("5.24.1", False), ("4.57.6", False), ("5.30.0.dev0", True)):
        (model / "config.json").write_text(json.dumps(config | {"transformers_version": wanted}))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            start("llama", force=True)
        assert (wanted in caplog.text and "5.24.0" in caplog.text) is remarked


def test_a_folder_without_a_tokenizer_is_remarked_on(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    (model / "tokenizer.json").unlink()
    with caplog.at_level(logging.WARNING):
        start("llama")
    assert "no tokenizer" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("limits.max_batch_size=8", ("limits.max_batch_size", 8)),
        ("serving.stop_words=[a, b]", ("serving.stop_words", ["a", "b"])),
        ("serving.system_prompt=a=b", ("serving.system_prompt", "a=b")),
        ("limits.max_seq_len=", ("limits.max_seq_len", None)),
    ],
)
def test_a_setting_is_a_key_and_a_yaml_value(text: str, expected: tuple[str, Any]) -> None:
    assert setting(text) == expected


@pytest.mark.parametrize("text", ["limits.max_batch_size", "=3", "a=[1"])
def test_a_setting_of_another_form_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        setting(text)


def test_dotted_keys_become_sections() -> None:
    assert nested({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    for clash in ({"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}):
        with pytest.raises(UsageError):
            nested(clash)


def test_the_command_line_reports_errors_with_the_agreed_exit_codes(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "nowhere"]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err
    assert run(["init", "llama", "--set", "nonsense"]) == 2
    assert run(["init", "llama", "--quantization", "fp9"]) == 2
    assert not Path("trtbuild.yaml").exists()


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [("model.dtype=float32", "dtype", "float32"), ("model.revision=abc", "revision", "abc"), ("model.path=llama", "revision", None)],
)  # fmt: skip
def test_keys_of_the_model_are_set_like_any_other(model: Path, assignment: str, key: str, value: str | None) -> None:
    assert run(["init", "llama", "--set", assignment]) == 0
    written = spec.load(Path("trtbuild.yaml"))
    assert (written.model.path, getattr(written.model, key)) == (str(model), value)


@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        (["--tp", "3", "--set", "parallel.tp_size=1"], "--tp 3", "--set parallel.tp_size=1"),
        (["--target", "tensorrt", "--set", "target=pytorch"], "--target tensorrt", "--set target=pytorch"),
        (["--kv-cache", "fp8", "--set", "quantization.kv_cache=auto"], "--kv-cache fp8", "--set quantization.kv_cache=auto"),
        (["--set", "parallel.tp_size=1", "--set", "parallel.tp_size=2"], "--set parallel.tp_size=1", "--set parallel.tp_size=2"),
        (["--set", "model.path=other"], "MODEL llama", "--set model.path=other"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_with_both(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], first: str, second: str
) -> None:
    assert run(["init", "llama", *arguments]) == 2
    assert f"{first} and {second} disagree" in capsys.readouterr().err
    assert not Path("trtbuild.yaml").exists()


def test_the_same_value_may_be_typed_twice(model: Path) -> None:
    assert run(["init", "llama", "--tp", "2", "--set", "parallel.tp_size=2", "--set", "parallel.tp_size=2"]) == 0
    assert spec.load(Path("trtbuild.yaml")).parallel.tp_size == 2


def test_a_revision_beside_a_download_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "owner/name", "--download", "--set", "model.revision=abc"]) == 2
    assert "owner/name@abc" in capsys.readouterr().err


def test_the_model_is_a_section(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "llama", "--set", "model=other"]) == 2
    assert "'model' is a section" in capsys.readouterr().err
