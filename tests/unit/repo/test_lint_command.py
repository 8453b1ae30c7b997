"""`trtbuild lint` as a user types it: exit codes, formats, releases and paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_command_line import modules_after
from tests.unit.repo import lint_cases as cases
from tests.unit.repo.lint_cases import Case, both, parameter

from trtbuild.repo.lint.rules import RULES

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return a good repository for an engine, with everything that it names."""
    return cases.make(tmp_path_factory.mktemp("made"), target="tensorrt", tensorrt_llm="1.2.1")


@pytest.fixture
def case(made: Case, tmp_path: Path) -> Case:
    """Return a copy, which a test may change."""
    return cases.copy(made, tmp_path)


def test_of_a_good_repository_one_line_says_what_was_checked(case: Case, cli: Cli) -> None:
    code, out, err = cli("lint", case.repository)
    assert (code, out, err.count("\n")) == (0, "", 1)
    rules, files = len(RULES), sum(file.is_file() for file in case.repository.rglob("*")) - 1  # without the manifest
    assert f"nothing found: {rules} rules on {files} files of 5 model(s) of variant engine" in err
    assert f"TensorRT-LLM 1.2.1 (the engine {case.root / 'engine'})" in err
    assert cli("lint", case.repository, "--quiet") == (0, "", "")
    assert "nothing found: 1 rules on" in cli("lint", case.repository, "--select", "unfilled")[2]


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_other_formats_say_nothing_beside_the_document(case: Case, cli: Cli, form: str) -> None:
    code, out, err = cli("lint", case.repository, "--format", form)
    assert (code, err) == (0, "")
    assert json.loads(out)


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 3)])
def test_warnings_alone_are_3_only_when_strict(case: Case, cli: Cli, options: tuple[str, ...], code: int) -> None:
    parameter("enable_trt_overlap", "true")(case)
    found, out, _ = cli("lint", case.repository, *options)
    assert found == code
    assert out.startswith("unread-parameter: warning: tensorrt_llm/config.pbtxt:")


def test_rules_are_selected_and_ignored(case: Case, cli: Cli) -> None:
    both(parameter("max_beam_width", "many"), parameter("max_beam_widht", "1"))(case)
    assert cli("lint", case.repository)[1].count("\n") == 2
    assert "parameter-value" not in cli("lint", case.repository, "--ignore", "parameter-*")[1]
    code, out, _ = cli("lint", case.repository, "--select", "unknown-parameter")
    assert code == 3
    assert "write 'max_beam_width', if that is meant" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--select", "parameter-vale"), "near: parameter-value"),
        (("--dry-run",), "add --fix"),
        (("--path-map", "here"), "is not HERE=THERE"),
        (("--tensorrt-llm", "0.5.0"), "older than"),
        (("--explain", "unfiled"), "near: unfilled"),
    ],
)
def test_an_option_that_is_wrong_is_2(case: Case, cli: Cli, options: tuple[str, ...], message: str) -> None:
    code, out, err = cli("lint", case.repository, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_without_a_repository_there_is_nothing_to_do(cli: Cli) -> None:
    assert cli("lint")[0] == 2
    code, out, _ = cli("lint", "--explain", "llmapi-differs")
    assert code == 0
    assert "--disable-auto-complete-config" in out


class TestRelease:
    def test_that_of_the_option_comes_before_that_of_the_engine(self, case: Case, cli: Cli) -> None:
        data = json.loads(cli("lint", case.repository, "--json")[1])
        assert data["tensorrt_llm"] == "1.2.1"
        code, out, _ = cli("lint", case.repository, "--tensorrt-llm", "1.1.0", "--json")
        data = json.loads(out)
        assert code == 3
        assert data["tensorrt_llm"] == "1.1.0"
        [finding] = data["findings"]
        assert finding["rule"] == "engine-release"
        assert "was built by TensorRT-LLM 1.2.1" in finding["message"]
        assert "rebuild the engine with TensorRT-LLM 1.1.0" in finding["fix"]

    def test_an_engine_of_a_release_that_is_too_old_is_noted(self, case: Case, cli: Cli) -> None:
        cases.engine("version", value="0.8.0")(case)
        code, _, err = cli("lint", case.repository)
        assert code == 0
        assert "0.8.0 is older than" in err
        assert "rules about releases were skipped" in err

    def test_a_warning_is_all_that_a_concluded_row_makes(self, case: Case, cli: Cli) -> None:
        cases.write(
            "engine/manifest.json",
            json.dumps({"schema_version": 1, "kind": "engine", "tensorrt": "10.1.0", "tensorrt_is_measured": True}),
        )(case)
        code, out, _ = cli("lint", case.repository, "--tensorrt-llm", "1.3.0rc20", "--select", "engine-release")
        assert "engine-release: warning: tensorrt_llm/config.pbtxt" in out
        assert "was built by TensorRT 10.1.0" in out
        assert code == 3  # the release differs for sure


class TestPaths:
    def test_a_path_of_the_container_is_looked_for_where_it_lies_here(
        self, made: Case, tmp_path: Path, cli: Cli
    ) -> None:
        case = cases.copy(made, tmp_path / "llm")
        for file in case.repository.rglob("*.pbtxt"):
            file.write_text(file.read_text().replace(str(case.root), "/models"))
        code, out, _ = cli("lint", case.repository)
        assert code == 0
        assert "path-missing: warning" in out
        assert "--path-map HERE=THERE" in out
        assert cli("lint", case.repository, "--path-map", f"{case.root}=/models", "-q") == (0, "", "")
        cases.engine("build_config", "max_batch_size", value=4)(case)
        assert "engine-batch-size" in cli("lint", case.repository, "--path-map", f"{case.root}=/models")[1]
        code, out, _ = cli("lint", case.repository, "--path-map", f"{tmp_path / 'other'}=/models")
        assert code == 3
        assert "path-missing: error" in out
        code, out, _ = cli("lint", case.repository, "--path-map", f"{case.root}=/data")
        assert "lies outside of /data, which is all that is mapped" in out

    def test_a_tokenizer_that_cannot_be_loaded_is_found_on_request(self, case: Case, cli: Cli) -> None:
        assert cli("lint", case.repository)[0] == 0
        code, out, _ = cli("lint", case.repository, "--load-tokenizer")
        assert code == 3
        assert "tokenizer.json cannot be loaded" in out

    def test_code_of_a_tokenizer_does_not_run(self, case: Case, cli: Cli) -> None:
        folder = case.root / "checkpoint" / "tokenizer"
        (folder / "t.py").write_text(f"open({str(case.root / 'ran')!r}, 'w')\n")
        (folder / "tokenizer_config.json").write_text(
            '{"eos_token": "e", "auto_map": {"AutoTokenizer": ["t.T", null]}}'
        )
        code, out, _ = cli("lint", case.repository, "--load-tokenizer")
        assert code == 3
        assert "auto_map" in out
        assert not (case.root / "ran").exists()


@pytest.mark.parametrize(("asked", "is_refused"), [(8, True), (4, False)])
def test_the_batch_that_an_engine_was_built_for_is_the_most(case: Case, cli: Cli, asked: int, is_refused: bool) -> None:
    cases.engine("build_config", "max_batch_size", value=4)(case)
    for file in case.repository.rglob("*.pbtxt"):
        file.write_text(file.read_text().replace("max_batch_size: 16", f"max_batch_size: {asked}").replace("[ 16 ]", f"[ {asked} ]"))  # fmt: skip
    code, out, _ = cli("lint", case.repository)
    assert (code == 3) is is_refused
    if is_refused:
        assert "tensorrt_llm/config.pbtxt" in out and str(case.root / "engine" / "config.json") in out


def test_two_models_on_overlapping_gpus_are_refused(case: Case, cli: Cli) -> None:
    second = case.repository / "second"
    (second / "1").mkdir(parents=True)
    text = case.config("tensorrt_llm").read_text().replace('name: "tensorrt_llm"', 'name: "second"')
    (second / "config.pbtxt").write_text(text + 'parameters { key: "gpu_device_ids" value { string_value: "1,2" } }\n')
    parameter("gpu_device_ids", "0,1")(case)
    code, out, _ = cli("lint", case.repository)
    assert code == 3
    assert "devices-overlap" in out and "GPU 1 is also that of second" in out
    parameter("gpu_device_ids", "3,4")(case)
    assert cli("lint", case.repository)[0] == 0


#: What the schema of SARIF 2.1.0 requires: object -> its required properties (OASIS, sarif-schema-2.1.0.json).
SARIF_REQUIRED = {
    "sarifLog": {"version", "runs"}, "run": {"tool"}, "tool": {"driver"}, "toolComponent": {"name"}, "reportingDescriptor": {"id"},
    "result": {"message"}, "invocation": {"executionSuccessful"}, "notification": {"message"},
}  # fmt: skip


def test_sarif_has_what_its_schema_requires(case: Case, cli: Cli) -> None:
    both(parameter("max_beam_widht", "1"), cases.remove("engine/rank1.engine"), parameter("gpt_model_type", "V1"))(case)
    code, out, _ = cli("lint", case.repository, "--format", "sarif")
    log: dict[str, Any] = json.loads(out)
    assert code == 3
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    objects = [("sarifLog", log), ("run", run), ("tool", run["tool"]), ("toolComponent", run["tool"]["driver"])]
    objects += [("reportingDescriptor", each) for each in rules] + [("result", each) for each in run["results"]]
    objects += [("invocation", each) for each in run["invocations"]]
    objects += [("notification", note) for each in run["invocations"] for note in each["toolExecutionNotifications"]]
    for kind, value in objects:
        assert value.keys() >= SARIF_REQUIRED[kind], kind
    assert [each["id"] for each in rules] == list(RULES)
    assert {each["ruleId"] for each in run["results"]} == {"unknown-parameter", "engine-ranks", "static-batching"}
    for each in run["results"]:
        assert each["level"] in ("error", "warning", "note", "none")
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
        assert each["message"]["text"]
        [location] = each["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
        assert place["region"]["startLine"] >= 1
        line = case.config("tensorrt_llm").read_text().splitlines()[place["region"]["startLine"] - 1]
        assert "parameters" in line


#: What linting and rendering do without, as far as nothing asks for it.
UNUSED = {
    "torch", "numpy", "transformers", "tokenizers", "safetensors", "grpc", "tritonclient", "pydantic", "rich", "trtbuild.trtllm.llm_args", "trtbuild.trtllm.llm_serve",
    "trtbuild.trtllm.llm_settings", "trtbuild.repo.lint.fix", "trtbuild.repo.lint.sarif", "trtbuild.repo.lint.settings", "trtbuild.unified_checkpoint",
}  # fmt: skip


def test_linting_imports_only_what_it_uses(case: Case) -> None:
    unused = UNUSED | {"jinja2", "yaml", "msgspec", "trtbuild.spec", "trtbuild.repo.lint.select"}
    assert not modules_after("lint", str(case.repository)) & unused


def test_rendering_imports_only_what_it_uses(case: Case) -> None:
    spec = case.root / "trtbuild.yaml"
    spec.write_text(
        f"model: {{path: {case.root / 'checkpoint'}}}\ntarget: tensorrt\ntensorrt_llm: 1.2.1\nparallel: {{tp_size: 2}}\n"
    )
    options = ("--checkpoint", case.root / "checkpoint", "--engine", case.root / "engine", "-o", case.root / "out")
    assert not modules_after("render", str(spec), *map(str, options), "--quiet") & UNUSED
    assert (case.root / "out" / "ensemble" / "config.pbtxt").is_file()
