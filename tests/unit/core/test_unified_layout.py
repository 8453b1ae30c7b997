"""The unified Hugging Face folder: what is written, in how many files, and how it is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.convert.encoding import Knowledge
from trtbuild.convert.execute import run_sinks
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.convert.unified import UnifiedSink
from trtbuild.convert.unified_config import rotary_fields, tokenizer_config
from trtbuild.errors import TrtbuildError
from trtbuild.names import QUANTIZATIONS
from trtbuild.parallel import Parallel
from trtbuild.quant.scheme import load_scheme
from trtbuild.quant.stats import CalibrationStats
from trtbuild.quant.unified import unified_form
from trtbuild.source import SourceCheckpoint
from trtbuild.unified_checkpoint import UnifiedCheckpoint
from trtbuild.unified_layout import UnifiedLayout

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


def planned(folder: Path, **options: Any) -> ConversionPlan:
    return plan_conversion(OpenedSource(SourceCheckpoint.open(folder)), ConversionOptions(**options))


def stats_of(plan: ConversionPlan) -> CalibrationStats:
    """Return ranges that tell every module from every other."""
    modules = {part.module for part in plan.layout.parts}
    ranges = {name: 1.0 + number / 64 for number, name in enumerate(sorted(modules))}
    count = plan.dims.num_layers
    return CalibrationStats(
        ranges, tuple(range(1, count + 1)), tuple(range(11, count + 11)), samples=1, tokens=1, digest=""
    )


def write(plan: ConversionPlan, unified: UnifiedLayout, folder: Path) -> UnifiedCheckpoint:
    """Write a folder and open it."""
    folder.mkdir()
    stats = stats_of(plan) if plan.needs_calibration else None
    done: list[int] = []
    with UnifiedSink(Knowledge(plan, stats), unified, folder) as sink:
        run_sinks(plan, [sink], advance=done.append)
        sink.finish()
        sink.write_beside()
    assert sum(done) == sink.rows_bytes
    opened = open_checkpoint(folder)
    assert isinstance(opened, UnifiedCheckpoint)
    return opened


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "mixtral"])
@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_files_are_cut_at_the_limit_and_read_back_whole(family: str, quantization: str, tmp_path: Path) -> None:
    kv_cache = "fp8" if quantization == "fp8" else "auto"
    plan = planned(GOLDENS / family / "source", quantization=quantization, kv_cache=kv_cache)
    whole = write(plan, UnifiedLayout.of(plan.layout), tmp_path / "whole")
    limit = 70_000
    cut = write(plan, UnifiedLayout.of(plan.layout, max_file_bytes=limit), tmp_path / "cut")
    names = sorted(file.name for file in (tmp_path / "cut").glob("*.safetensors"))
    assert names == [f"model-{number:05}-of-{len(names):05}.safetensors" for number in range(1, len(names) + 1)]
    assert len(names) > 3
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())
    single = read_safetensors(tmp_path / "whole" / "model.safetensors")
    assert sorted(index["weight_map"]) == sorted(single)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in single.values())
    for name in names:
        tensors = read_safetensors(tmp_path / "cut" / name)
        assert sum(tensor.nbytes for tensor in tensors.values()) <= limit or len(tensors) <= 3, name
        for key, tensor in tensors.items():
            assert index["weight_map"][key] == name
            assert tensor.tobytes() == single[key].tobytes()
    for (left, values), (right, others) in zip(whole.hf_tensors(), cut.hf_tensors(), strict=True):
        assert left == right and values.tobytes() == others.tobytes()
    assert whole.input_roundings() == cut.input_roundings()
    assert whole.kv_scales() == cut.kv_scales()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "mixtral"])
def test_without_quantization_every_source_tensor_is_kept(family: str, tmp_path: Path) -> None:
    source = GOLDENS / family / "source"
    plan = planned(source)
    write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    given, found = (read_safetensors(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert sorted(given) == sorted(found)
    assert all(found[name].tobytes() == tensor.tobytes() for name, tensor in given.items())
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_a_tied_head_is_written_once_though_the_source_has_both(make_model: Make, tmp_path: Path) -> None:
    folder = make_model(
        tie_word_embeddings=True, edit=lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]})
    )
    plan = planned(folder, quantization="fp8")
    write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    found = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in found and "model.embed_tokens.weight" in found
    excluded = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    assert excluded == ["lm_head", "model.embed_tokens"]


def test_every_weight_has_its_own_scale_and_a_group_one_for_its_input(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    plan = planned(folder, quantization="fp8", kv_cache="fp8")
    opened = write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    source, found = (read_safetensors(each / "model.safetensors") for each in (folder, tmp_path / "out"))
    inputs, stats = opened.input_roundings(), stats_of(plan)
    for layer in range(3):
        prefix = f"model.layers.{layer}"
        for group in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            modules = [f"{prefix}.{name}" for name in group]
            widest = max(stats.input_amax[name] for name in modules)
            assert {inputs[name].scale for name in modules} == {float(np.float32(widest) / np.float32(448))}
            for name in modules:
                amax = np.abs(source[f"{name}.weight"].astype(np.float32)).max()
                assert found[f"{name}.weight_scale"].shape == ()
                assert float(found[f"{name}.weight_scale"]) == float(amax / np.float32(448))
        assert float(found[f"{prefix}.self_attn.k_proj.k_scale"]) == pytest.approx((layer + 1) / 448, rel=1e-6)
        assert float(found[f"{prefix}.self_attn.v_proj.v_scale"]) == pytest.approx((layer + 11) / 448, rel=1e-6)
    assert opened.kv_scales() == pytest.approx([(layer + 11) / 448 for layer in range(3)], rel=1e-6)


def test_a_quantized_kv_cache_alone_leaves_the_weights_plain(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    plan = planned(folder, kv_cache="fp8")
    opened = write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    assert (opened.quant_algo, opened.kv_cache_quant_algo) == (None, "FP8")
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "config_groups" not in block and block["kv_cache_scheme"]["num_bits"] == 8
    given, found = (read_safetensors(each / "model.safetensors") for each in (folder, tmp_path / "out"))
    assert all(found[name].tobytes() == tensor.tobytes() for name, tensor in given.items())
    assert len(found) == len(given) + 2 * 3


def test_inner_inputs_of_experts_keep_their_own_ranges(tmp_path: Path) -> None:
    plan = planned(GOLDENS / "mixtral" / "source", quantization="fp8")
    opened = write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    block = "model.layers.0.block_sparse_moe.experts"
    inner = {opened.input_roundings()[f"{block}.{expert}.w2"].scale for expert in range(4)}
    assert len(inner) == 4
    excluded = UnifiedLayout.of(plan.layout).exclude_modules
    assert {f"model.layers.{layer}.block_sparse_moe.gate" for layer in range(2)} <= set(excluded)


def test_codes_looked_up_are_those_computed(make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(make_model(), quantization="fp8")
    files = []
    for name, least in (("looked up", 0), ("computed", 2**60)):
        monkeypatch.setattr("trtbuild.convert.cast.LEAST_TABLED", least)
        write(plan, UnifiedLayout.of(plan.layout), tmp_path / name)
        files.append((tmp_path / name / "model.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("scheme", [name for name in QUANTIZATIONS if load_scheme(name).unified is None])
def test_schemes_without_a_form_name_the_nearest(scheme: str) -> None:
    with pytest.raises(TrtbuildError, match=f"'{scheme}' has no form") as error:
        unified_form(load_scheme(scheme))
    assert "--quantization" in (error.value.hint or "")


def test_transformers_5_rotary_blocks_are_written_in_the_older_spelling_too() -> None:
    block = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
    assert rotary_fields({"rope_parameters": block}) == {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    }
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert rotary_fields({"rope_parameters": kinds}) == {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    assert rotary_fields({"rope_theta": 1e4}) == {}


def test_tokenizer_names_of_transformers_5_are_written_in_the_older_spelling() -> None:
    given = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "</s>"}
    assert tokenizer_config(given) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
        "eos_token": "</s>",
    }
    kept = {"tokenizer_class": "LlamaTokenizer", "extra_special_tokens": {"image_token": "<i>"}}
    assert tokenizer_config(kept) == kept


@pytest.mark.parametrize(("name", "expected"), [("TokenizersBackend", "PreTrainedTokenizerFast"), ("X", None)])
def test_tokenizer_files_are_copied_byte_for_byte_unless_repaired(
    name: str, expected: str | None, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    folder = make_model()
    given = f'{{"tokenizer_class":  "{name}"}}'
    for file, content in (("tokenizer.json", "{ }"), ("tokenizer_config.json", given), ("tokenization_x.py", "")):
        (folder / file).write_text(content)
    assert cli("convert", folder, "-o", tmp_path / "out", "--target", "pytorch")[0] == 0
    written = (tmp_path / "out" / "tokenizer_config.json").read_text()
    assert written == given if expected is None else json.loads(written) == {"tokenizer_class": expected}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{ }"
    assert not (tmp_path / "out" / "tokenization_x.py").exists()


def test_either_layout_is_recognised(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    code, _, err = cli("convert", folder, "-o", tmp_path / "o", "--target", "pytorch", "--target", "tensorrt")
    assert code == 0, err
    assert isinstance(open_checkpoint(tmp_path / "o" / "tensorrt"), Checkpoint)
    opened = open_checkpoint(tmp_path / "o" / "pytorch")
    assert isinstance(opened, UnifiedCheckpoint) and opened.tokenizer_dir == tmp_path / "o" / "pytorch"
    assert (opened.quant_algo, opened.kv_cache_quant_algo) == (None, None)
    assert (tmp_path / "o" / "pytorch" / "generation_config.json").is_file()
    with pytest.raises(TrtbuildError, match="no config.json"):
        open_checkpoint(tmp_path)


def test_parallel_options_are_noted_and_change_nothing(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    code, _, err = cli("convert", folder, "-o", tmp_path / "one", "--target", "pytorch")
    assert code == 0, err
    code, _, err = cli("convert", folder, "-o", tmp_path / "two", "--target", "pytorch", "--tp", "2", "--pp", "3")
    assert code == 0, err
    assert "tp=2, pp=3: for the server only" in err
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_a_finished_folder_is_verified_against_source_and_manifest(family: str, cli: Cli, tmp_path: Path) -> None:
    source, out = GOLDENS / family / "source", tmp_path / "out"
    ids = GOLDENS / family / "calibration_ids.safetensors"
    options = ("--target", "pytorch", "--quantization", "fp8", "--kv-cache", "fp8", "--calibration", ids)
    assert cli("convert", source, "-o", out, *options)[0] == 0
    code, report, _ = cli("verify", out, "--json")
    assert code == 0 and json.loads(report)["compared"] == len(read_safetensors(source / "model.safetensors"))
    code, _, err = cli("convert", source, "-o", out, *options, "--verify-inputs")
    assert code == 0 and "up to date" in err
    raw = bytearray((out / "model.safetensors").read_bytes())
    raw[-1000] ^= 0x40
    (out / "model.safetensors").write_bytes(raw)
    code, report, _ = cli("verify", out, "--json")
    findings = json.loads(report)["findings"]
    assert code == 3 and {finding["file"] for finding in findings} == {"model.safetensors"}
    assert any("further from the source" in finding["problem"] for finding in findings)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_trial_of_some_layers_is_a_whole_folder(family: str, cli: Cli, tmp_path: Path) -> None:
    options = ("--target", "pytorch", "--layers", "1")
    assert cli("convert", GOLDENS / family / "source", "-o", tmp_path / "out", *options)[0] == 0
    opened = open_checkpoint(tmp_path / "out")
    assert opened.dims.num_layers == 1
    assert len(opened.hf_config().get("layer_types", ["one"])) == 1


def test_the_dry_run_lists_every_tensor_of_every_file(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    code, out, err = cli("convert", folder, "--target", "pytorch", "--target", "tensorrt", "--dry-run", "--json")
    assert code == 0, err
    described = json.loads(out)
    assert len(described["ranks"]) == 1
    (file,) = described["unified"]["files"]
    assert {entry["name"] for entry in file["tensors"]} == set(read_safetensors(folder / "model.safetensors"))
    code, out, _ = cli("convert", folder, "--target", "pytorch", "--dry-run")
    assert code == 0 and "model.safetensors" in out


def test_an_interrupted_conversion_goes_on(make_model: Make, tmp_path: Path) -> None:
    plan = planned(make_model(), quantization="fp8")
    unified = UnifiedLayout.of(plan.layout)
    whole = write(plan, unified, tmp_path / "whole")
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(KeyboardInterrupt),
        UnifiedSink(Knowledge(plan, stats_of(plan)), unified, tmp_path / "out") as sink,
    ):
        seen: list[int] = []

        def stop(count: int) -> None:
            seen.append(count)
            if len(seen) > 12:
                raise KeyboardInterrupt

        run_sinks(plan, [sink], advance=stop)
    with UnifiedSink(Knowledge(plan, stats_of(plan)), unified, tmp_path / "out") as sink:
        from trtbuild.convert.execute import groups

        assert any(sink.is_done(group) for group in groups(plan))
        run_sinks(plan, [sink], advance=lambda _: None)
        sink.finish()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no quant config": (lambda folder: (folder / "hf_quant_config.json").unlink(), "no hf_quant_config.json"),
    "another algorithm": (
        lambda folder: (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}'),
        "says quant_algo 'NVFP4', config.json 'FP8'",
    ),
    "no object": (lambda folder: (folder / "hf_quant_config.json").write_text("{}"), "no object 'quantization'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders_are_refused(damage: str, make_model: Make, tmp_path: Path) -> None:
    plan = planned(make_model(), quantization="fp8")
    write(plan, UnifiedLayout.of(plan.layout), tmp_path / "out")
    act, message = DAMAGE[damage]
    act(tmp_path / "out")
    with pytest.raises(TrtbuildError, match=message):
        open_checkpoint(tmp_path / "out")


def test_cuts_over_ranks_do_not_reach_the_folder(make_model: Make, tmp_path: Path) -> None:
    folder = make_model()
    plans = [planned(folder, parallel=Parallel(tp, pp)) for tp, pp in ((1, 1), (2, 3))]
    first, second = (UnifiedLayout.of(plan.layout) for plan in plans)
    assert first.files == second.files
