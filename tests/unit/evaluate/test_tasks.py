"""`evaluate --tasks`: what lm-eval is handed, and how its scores are reported. lm-eval itself is a stand-in here, its models are real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conftest import GOLDENS

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.reference.model import load_model

Cli = Callable[..., tuple[int, str, str]]
IDS = torch.tensor([[3, 14, 15, 9, 26, 5]])
CALIBRATION = GOLDENS / "llama" / "calibration_ids.safetensors"


class FakeHarness:
    """Stands for lm_eval: scores a model by its logits, and notes what it was asked."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []
        self.asked: list[dict[str, Any]] = []
        self.include_path: str | None = None
        self.failure: Exception | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = self

        class HFLM:
            def __init__(self, *, pretrained: Any, tokenizer: Any) -> None:
                self.model, self.tokenizer = pretrained, tokenizer

        class TaskManager:
            def __init__(self, *, include_path: str | None) -> None:
                harness.include_path = include_path

            def match_tasks(self, names: list[str]) -> list[str]:
                return [name for name in names if name in ("hellaswag", "arc_easy")]

        def simple_evaluate(**asked: Any) -> dict[str, Any]:
            sys.stdout.write("lm-eval says something on stdout\n")
            if harness.failure:
                raise harness.failure
            model = asked.pop("model")
            assert model.tokenizer.vocab_size
            with torch.inference_mode():
                logits = model.model(input_ids=IDS).logits
            harness.models.append(logits)
            harness.asked.append(asked)
            score = float(logits.float().std())
            return {
                "results": {
                    name: {
                        "alias": name,
                        "acc,none": score,
                        "acc_stderr,none": 0.25,
                        "em,strict": 0.5,
                        "em_stderr,strict": "N/A",
                    }
                    for name in asked["tasks"]
                }
            }

        modules = {
            name: ModuleType(name)
            for name in ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface", "lm_eval.tasks")
        }
        vars(modules["lm_eval"])["simple_evaluate"] = simple_evaluate
        vars(modules["lm_eval.models.huggingface"])["HFLM"] = HFLM
        vars(modules["lm_eval.tasks"])["TaskManager"] = TaskManager
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, attribute = name.rpartition(".")
            if parent:
                vars(modules[parent])[attribute] = module


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> FakeHarness:
    fake = FakeHarness()
    fake.install(monkeypatch)
    return fake


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny golden Llama with a tokenizer of whole words."""
    import shutil

    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tasks") / "model"
    shutil.copytree(GOLDENS / "llama" / "source", folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(64)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}')
    return folder


@pytest.fixture(scope="module", params=["tensorrt", "pytorch"])
def checkpoint(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trtbuild.cli.edge import run

    out = tmp_path_factory.mktemp("tasks") / "ckpt"
    options = ("--quantization", "fp8", "--kv-cache", "fp8", "--calibration", str(CALIBRATION), "--quiet")
    assert run(["convert", str(model), "-o", str(out), "--target", request.param, *options]) == 0
    return out


def evaluate(cli: Cli, folder: Path, *options: object) -> tuple[int, str, str]:
    return cli("evaluate", folder, "--texts", CALIBRATION, "--max-samples", "1", "--max-length", "8", *options)


def test_both_models_are_scored_as_they_are(
    harness: FakeHarness, cli: Cli, checkpoint: Path, model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    (tmp_path / "own").mkdir()
    given = ("--tasks", "hellaswag, arc_easy,hellaswag", "--limit", "7", "--include-path", tmp_path / "own")
    page = tmp_path / "report.html"
    code, out, err = evaluate(cli, checkpoint, *given, "--json", "--html", page)
    assert code == 0, err
    source, quantized = harness.models
    with torch.inference_mode():
        assert torch.equal(quantized, load_model(open_checkpoint(checkpoint))(input_ids=IDS).logits)
        plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(input_ids=IDS).logits
    assert torch.allclose(source, plain, atol=1e-5)
    assert not torch.allclose(source, quantized, atol=1e-3), "inputs are rounded, too"
    assert harness.include_path == str(tmp_path / "own")
    assert [(asked["tasks"], asked["limit"]) for asked in harness.asked] == [(["hellaswag", "arc_easy"], 7)] * 2
    report = json.loads(out)
    assert [(score["task"], score["metric"], score["stderr"]) for score in report["tasks"]] == [
        (task, metric, error)
        for task in ("hellaswag", "arc_easy")
        for metric, error in (("acc", 0.25), ("em (strict)", None))
    ]
    assert report["tasks"][0]["source"] == pytest.approx(float(source.std()))
    assert report["tasks"][0]["quantized"] == pytest.approx(float(quantized.std()))
    assert "Tasks of lm-eval" in page.read_text()
    assert "lm-eval says something on stdout" in err


def test_scores_are_a_table_beside_the_metrics(harness: FakeHarness, cli: Cli, checkpoint: Path) -> None:
    code, out, err = evaluate(cli, checkpoint, "--tasks", "arc_easy")
    assert code == 0, err
    assert "mean KL divergence" in out
    assert "tasks of lm-eval" in out
    assert "em (strict)" in out


def test_without_tasks_lm_eval_is_not_needed(monkeypatch: pytest.MonkeyPatch, cli: Cli, checkpoint: Path) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, out, err = evaluate(cli, checkpoint, "--json")
    assert code == 0, err
    assert json.loads(out)["tasks"] == []


def test_a_missing_lm_eval_is_said_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, checkpoint: Path
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, out, err = evaluate(cli, checkpoint, "--tasks", "arc_easy")
    assert (code, out) == (1, "")
    assert "--tasks needs lm-eval" in err
    assert "pip install 'trtbuild[eval]'" in err
    code, _, err = cli("evaluate", checkpoint.parent / "none", "--tasks", "arc_easy")
    assert code == 1 and "--tasks needs lm-eval" in err


def test_what_lm_eval_does_not_know_is_refused_before_any_model_runs(
    harness: FakeHarness, cli: Cli, checkpoint: Path, tmp_path: Path
) -> None:
    for options, problem in (
        (("--tasks", "arc_easy,helaswag"), "knows no task helaswag"),
        (("--tasks", " , "), "names no task"),
        (("--limit", "3"), "--limit and --include-path are for --tasks"),
        (("--tasks", "arc_easy", "--include-path", tmp_path / "none"), "is not a folder"),
    ):
        code, _, err = evaluate(cli, checkpoint, *options)
        assert (code, problem in " ".join(err.split())) == (2, True), err
    assert harness.models == []


def test_a_failure_of_lm_eval_is_an_error_of_ours(harness: FakeHarness, cli: Cli, checkpoint: Path) -> None:
    harness.failure = FileNotFoundError("Couldn't find a dataset script")
    code, out, err = evaluate(cli, checkpoint, "--tasks", "arc_easy")
    assert (code, out) == (1, "")
    assert "lm-eval failed on arc_easy: FileNotFoundError: Couldn't find a dataset script" in " ".join(err.split())
