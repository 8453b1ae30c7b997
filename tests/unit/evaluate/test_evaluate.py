"""Evaluation from folder to exit code, against whole models, and with a checkpoint that was damaged on purpose."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import GOLDENS, read_safetensors

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.convert import work
from trtbuild.errors import TrtbuildError
from trtbuild.evaluate.models import checkpoint_tensors
from trtbuild.evaluate.run import evaluate_folder
from trtbuild.evaluate.texts import TEXTS
from trtbuild.names import GROUPED, QUANTIZATIONS
from trtbuild.quant.calibrate.texts import TEXTS as CALIBRATION_TEXTS
from trtbuild.quant.scheme import load_scheme
from trtbuild.reference.model import load_model
from trtbuild.spec import Accuracy

Cli = Callable[..., tuple[int, str, str]]
FAMILIES = ("llama", "qwen2", "gpt2", "mixtral")
IDS = "calibration_ids.safetensors"


def samples(family: str, count: int = 3) -> Accuracy:
    return Accuracy(file=str(GOLDENS / family / IDS), max_samples=count)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that converts a golden source once per set of options and returns the folder."""
    from trtbuild.cli.edge import run

    made: dict[tuple[str, ...], Path] = {}

    def convert(family: str, *options: str) -> Path:
        key = (family, *options)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("evaluate") / "ckpt"
            arguments = ["convert", str(GOLDENS / family / "source"), "-o", str(made[key]), "--quiet"]
            assert run([*arguments, "--calibration", str(GOLDENS / family / IDS), *options]) == 0
        return made[key]

    return convert


def damage(folder: Path, file: str, tensor: str, factor: float) -> None:
    """Multiply a float32 tensor of a checkpoint, and make the manifest agree."""
    path = folder / file
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    start, stop = (8 + length + offset for offset in json.loads(raw[8 : 8 + length])[tensor]["data_offsets"])
    raw[start:stop] = (np.frombuffer(raw[start:stop], np.float32) * np.float32(factor)).tobytes()
    path.write_bytes(raw)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert tensor in manifest["sha256"][file]
    manifest["sha256"][file][tensor] = hashlib.sha256(raw[start:stop]).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def combinations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (family, options): every scheme in every layout that it has, and the other families."""
    for name in QUANTIZATIONS:
        scheme = load_scheme(name)
        options = ("--quantization", name, *(("--group-size", "64") if name in GROUPED else ()), "--allow-unverified")
        if scheme.ranks is not None:
            # W4A8 kernels want multiples of 128 times the number of ranks, which the tiny model has for one.
            yield "llama", (*options, "--tp", {"w4a8_awq": "1"}.get(name, "2"), "--pp", "2")
        if scheme.unified is not None:
            yield "llama", (*options, "--target", "pytorch")
    yield "llama", ("--quantization", "fp8", "--kv-cache", "fp8", "--target", "pytorch")
    yield "qwen2", ("--quantization", "int4_weight_only", "--kv-cache", "int8", "--tp", "2")
    yield "gpt2", ("--quantization", "fp8", "--tp", "2")
    yield "mixtral", ("--quantization", "fp8", "--kv-cache", "fp8", "--tp", "2", "--ep", "2")


@pytest.mark.parametrize(("family", "options"), list(combinations()), ids=lambda value: str(value))
def test_metrics_are_those_of_the_whole_models(
    converted: Callable[..., Path], family: str, options: tuple[str, ...]
) -> None:
    folder = converted(family, *options)
    found = evaluate_folder(folder, source=None, accuracy=samples(family), quiet=True)
    whole = load_model(open_checkpoint(folder))
    source = load_model(open_checkpoint(converted(family, "--dtype", "float32")))
    kl, agrees, nll = [], [], []
    for row in read_safetensors(GOLDENS / family / IDS)["input_ids"][:3]:
        ids = torch.from_numpy(row.copy())
        with torch.no_grad():
            log_p, log_q = (model(ids[None]).logits[0, :-1].double().log_softmax(-1) for model in (source, whole))
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1))
        agrees.append(log_p.argmax(-1) == log_q.argmax(-1))
        nll.append(torch.stack([-log_p.gather(1, ids[1:, None]), -log_q.gather(1, ids[1:, None])]).squeeze(-1))
    expected = torch.cat(nll, dim=1).mean(1).exp()
    assert found.quality.source_perplexity == pytest.approx(float(expected[0]), rel=1e-4)
    assert found.quality.quantized_perplexity == pytest.approx(float(expected[1]), rel=1e-4)
    assert found.quality.mean_kl == pytest.approx(float(torch.cat(kl).mean()), rel=1e-3, abs=3e-8)
    assert found.quality.top1_agreement == pytest.approx(float(torch.cat(agrees).double().mean()), abs=0.011)
    assert len(found.layers) == 2
    if "none" not in options:
        assert found.quality.mean_kl > 1e-7
        assert all(0 < layer.own < 1 for layer in found.layers)
        assert found.layers[0].accumulated < found.layers[1].accumulated < 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [("--tp", "2", "--pp", "2"), ("--target", "pytorch")])
def test_an_unquantized_checkpoint_is_its_source(
    converted: Callable[..., Path], family: str, options: tuple[str, ...]
) -> None:
    folder = converted(family, "--dtype", "float32", *options)
    found = evaluate_folder(folder, source=None, accuracy=samples(family, 2), quiet=True)
    assert found.quality.mean_kl == 0.0
    assert found.quality.top1_agreement == 1.0
    assert found.quality.perplexity_ratio == 1.0
    assert all(layer.own == layer.accumulated == 0.0 for layer in found.layers)
    assert all(set(layer.linears.values()) == {0.0} for layer in found.layers)


@pytest.mark.parametrize("options", [("--tp", "2", "--pp", "2"), ("--target", "pytorch")])
def test_tensors_come_layer_by_layer_and_all_of_them(converted: Callable[..., Path], options: tuple[str, ...]) -> None:
    checkpoint = open_checkpoint(converted("qwen2", *options))
    tensors = checkpoint_tensors(checkpoint)
    expected = dict(checkpoint.hf_tensors())
    found: dict[str, Any] = {}
    for layer in (None, 0, 1):
        for name, values in tensors(layer):
            assert name not in found
            assert (f".layers.{layer}." in name) or layer is None
            found[name] = values
    assert list(found) != [] and set(found) == set(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("options", "file", "tensor", "linear"),
    [
        (("--pp", "2"), "rank1.safetensors", "transformer.layers.0.mlp.fc.weights_scaling_factor", "mlp.gate_proj"),
        (("--tp", "1"), "rank0.safetensors", "transformer.layers.1.attention.dense.weights_scaling_factor", "self_attn.o_proj"),
        (("--target", "pytorch"), "model.safetensors", "model.layers.1.self_attn.v_proj.weight_scale", "self_attn.v_proj"),
    ],
)  # fmt: skip
def test_a_damaged_scale_fails_and_is_named(
    converted: Callable[..., Path],
    cli: Cli,
    tmp_path: Path,
    options: tuple[str, ...],
    file: str,
    tensor: str,
    linear: str,
) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(converted("llama", "--quantization", "fp8", *options), folder)
    arguments = ("evaluate", folder, "--texts", GOLDENS / "llama" / IDS, "--max-samples", 3, "--max-layer-error", 0.25)
    assert cli(*arguments)[0] == 0
    damage(folder, file, tensor, 3.0)
    code, out, _ = cli(*arguments, "--json")
    report = json.loads(out)
    assert code == 3
    assert report["passed"] is False
    assert [check["field"] for check in report["checks"] if not check["passed"]] == ["max_layer_error"]
    assert report["culprit"] == "model.layers.1"
    assert report["layers"][1]["worst_linear"] == linear
    code, out, _ = cli(*arguments)
    assert code == 3
    assert "allowed is at most 0.25" in out
    assert f"model.layers.1 (look at {linear})" in out


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_ranks_that_disagree_are_refused(converted: Callable[..., Path], cli: Cli, tmp_path: Path, family: str) -> None:
    options = (
        "--quantization",
        "fp8",
        "--kv-cache",
        "fp8",
        "--tp",
        "2",
        *(("--ep", "2") if family == "mixtral" else ()),
    )
    folder = tmp_path / "ckpt"
    shutil.copytree(converted(family, *options), folder)
    arguments = ("evaluate", folder, "--texts", GOLDENS / family / IDS, "--max-samples", 1)
    assert cli(*arguments)[0] == 0
    tensor = "transformer.layers.1.attention.dense.weights_scaling_factor"
    damage(folder, "rank1.safetensors", tensor, 3.0)
    code, _, err = cli(*arguments)
    assert code == 3
    assert f"ranks of one stage hold different copies: {tensor} of rank 1" in err


def test_a_scale_that_is_no_number_fails_without_any_limit(
    converted: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(converted("llama", "--quantization", "fp8", "--tp", "1"), folder)
    damage(folder, "rank0.safetensors", "transformer.layers.0.mlp.proj.weights_scaling_factor", math.nan)
    code, out, _ = cli("evaluate", folder, "--texts", GOLDENS / "llama" / IDS, "--max-samples", 1, "--json")
    report = json.loads(out)
    assert code == 3
    assert report["quality"]["perplexity_ratio"] is None
    assert report["culprit"] == "model.layers.0"
    assert report["layers"][0]["worst_linear"] == "mlp.down_proj"


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a trtbuild.yaml with limits."""

    def write(**limits: float) -> Path:
        folder = GOLDENS / "llama"
        section = {"file": str(folder / IDS), "max_samples": 2, **limits}
        data = {
            "model": {"path": str(folder / "source")},
            "quantization": {"scheme": "fp8", "calibration": {"file": str(folder / IDS)}},
            "accuracy": section,
        }
        (tmp_path / "trtbuild.yaml").write_text(json.dumps(data))
        return tmp_path / "trtbuild.yaml"

    return write


def test_a_page_that_cannot_be_written_is_refused_before_work(tmp_path: Path, cli: Cli) -> None:
    for page, problem in ((tmp_path / "nowhere" / "page.html", "does not exist"), (tmp_path, "is a folder")):
        code, _, err = cli("evaluate", tmp_path / "no checkpoint", "--html", page)
        assert (code, problem in err, "checkpoint folder" in err) == (1, True, False), err


def test_a_build_within_its_limits_holds_the_report(config: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "build"
    assert cli("build", config(max_perplexity_ratio=1.5, max_layer_error=0.3), "-o", out)[0] == 0
    report = json.loads((out / "evaluation.json").read_text())
    assert report["passed"] is True
    assert report["folder"] == str(out / "checkpoint")
    again = cli("evaluate", out, "--config", tmp_path / "trtbuild.yaml", "--html", tmp_path / "page.html", "--json")
    assert again[0] == 0
    assert json.loads(again[1])["quality"] == report["quality"]
    assert "<svg" in (tmp_path / "page.html").read_text()
    tighter = cli("evaluate", out, "--config", tmp_path / "trtbuild.yaml", "--max-mean-kl", 1e-9)
    assert tighter[0] == 3
    assert "mean KL divergence" in tighter[1]


def test_a_build_beyond_a_limit_is_refused_with_the_report_and_goes_on_with_other_limits(
    config: Callable[..., Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = work.convert_into

    def convert_badly(plan: Any, deployment: Any, folder: Path, **named: Any) -> dict[str, Any]:
        made = whole(plan, deployment, folder, **named)
        damage(folder, "rank0.safetensors", "transformer.layers.1.mlp.gate.weights_scaling_factor", 5.0)
        return made

    monkeypatch.setattr(work, "convert_into", convert_badly)
    code, out, err = cli("build", config(max_layer_error=0.3), "-o", tmp_path / "build")
    assert code == 3
    assert out == ""
    assert "allowed is at most 0.3" in err
    assert "the source's" in err
    assert "model.layers.1 (look at mlp.up_proj)" in err
    assert not (tmp_path / "build").exists()
    kept = tmp_path / ".build.partial"
    assert str(kept / "evaluation.html") in err
    assert json.loads((kept / "evaluation.json").read_text())["passed"] is False
    monkeypatch.setattr(work, "convert_into", None)  # not called again
    code, _, err = cli("build", config(max_layer_error=5), "-o", tmp_path / "build")
    assert code == 0, err
    assert json.loads((tmp_path / "build" / "evaluation.json").read_text())["passed"] is True


def test_samples_of_the_gate_are_looked_for_before_the_conversion(
    config: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    text = config(max_mean_kl=1.0).read_text().replace(str(GOLDENS / "llama" / IDS), "missing.txt", 2)
    data = json.loads(text)
    data["quantization"] = {}
    (tmp_path / "trtbuild.yaml").write_text(json.dumps(data))
    code, _, err = cli("build", tmp_path / "trtbuild.yaml", "-o", tmp_path / "build")
    assert code == 1
    assert f"accuracy.file: {tmp_path / 'missing.txt'} does not exist" in err


def test_another_source_than_the_checkpoints_is_refused(converted: Callable[..., Path]) -> None:
    folder = converted("llama", "--tp", "1")
    accuracy = samples("llama", 1)
    with pytest.raises(TrtbuildError, match="has architecture Qwen2ForCausalLM.*it is not the source"):
        evaluate_folder(folder, source=GOLDENS / "qwen2" / "source", accuracy=accuracy, quiet=True)
    with pytest.raises(TrtbuildError, match="nowhere, the source of"):
        evaluate_folder(folder, source=Path("nowhere"), accuracy=accuracy, quiet=True)


def test_a_folder_without_a_manifest_needs_its_source_named(converted: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(converted("llama", "--tp", "1"), folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(TrtbuildError, match="its source is not known"):
        evaluate_folder(folder, source=None, accuracy=samples("llama", 1), quiet=True)
    source = GOLDENS / "llama" / "source"
    found = evaluate_folder(folder, source=source, accuracy=samples("llama", 1), quiet=True)
    assert found.source == str(source)


def test_samples_without_two_tokens_have_nothing_to_predict(converted: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "ids.jsonl").write_text('{"input_ids": [5]}\n{"input_ids": [7]}\n')
    with pytest.raises(TrtbuildError, match="no sample has two tokens"):
        evaluate_folder(
            converted("llama", "--tp", "1"),
            source=None,
            accuracy=Accuracy(file=str(tmp_path / "ids.jsonl")),
            quiet=True,
        )


def test_held_out_texts_share_no_sentence_with_the_calibration_texts() -> None:
    def sentences(texts: tuple[str, ...]) -> Iterator[str]:
        return (part.strip() for text in texts for part in text.replace("\n", ". ").split(". ") if len(part) > 12)

    assert len(TEXTS) == len(set(TEXTS)) >= 12
    assert not set(sentences(TEXTS)) & set(sentences(CALIBRATION_TEXTS))
