"""`trtbuild convert`, `plan` and `build` as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import read_safetensors

from trtbuild.checkpoint import Checkpoint

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "model-00001-of-00002.safetensors"}})
    )


def more_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4000}))


def a_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def broken_settings(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("[1")


def not_a_number(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.2.mlp.down_proj.weight"][0, 0] = np.nan


BAD: dict[str, tuple[dict[str, Any], Callable[[Path], object] | None, tuple[str, ...], str]] = {
    "missing shard": ({}, lose_a_shard, (), "missing: model-00001-of-00002.safetensors"),
    "LFS pointer": ({}, lambda folder: (folder / "model.safetensors").write_text(LFS), (), "Git LFS pointer"),
    "truncated": ({}, truncate, (), "truncated"),
    "pickle only": ({}, pickle_only, (), "pickled weights only"),
    "unknown architecture": ({"architectures": ["FooForCausalLM"]}, None, (), "'FooForCausalLM' is not supported"),
    "no config": ({}, lambda folder: (folder / "config.json").unlink(), (), "no config.json"),
    "tp does not divide": ({}, None, ("--tp", "3"), "num_attention_heads=4 cannot be split over tp=3"),
    "too many stages": ({}, None, ("--pp", "4"), "num_layers=3 cannot fill pp=4"),
    "NaN weights": ({"edit": not_a_number}, None, (), "NaN or infinite"),
    "NaN weights, fp8": (
        {"edit": not_a_number},
        None,
        ("--quantization", "fp8", "--calibration", "IDS"),
        "NaN or infinite",
    ),
    "no experts": ({}, None, ("--tp", "2", "--ep", "2"), "LlamaForCausalLM has no experts"),
    "unverified layout": (
        {},
        None,
        ("--target", "pytorch", "--quantization", "int8_smoothquant"),
        "has no INT8 SmoothQuant",
    ),
    "no such weights in a folder": (
        {},
        None,
        ("--target", "pytorch", "--quantization", "int4_weight_only"),
        "the nearest is --quantization int4_awq",
    ),
    "no such cache in a folder": (
        {},
        None,
        ("--target", "tensorrt", "--target", "pytorch", "--kv-cache", "int8", "--calibration", "IDS"),
        "use --kv-cache fp8",
    ),
    "more layers than tensors": ({"num_hidden_layers": 3}, more_layers, (), "num_hidden_layers=4000"),
    "not a file": ({}, a_pipe, (), "not a regular file"),
    "broken generation settings": ({}, broken_settings, (), "generation_config.json is not valid JSON"),
    "no groups": ({}, None, ("--group-size", "64"), "has no groups"),
    "no tokenizer": ({}, None, ("--quantization", "fp8"), "has no tokenizer"),
    "not a choice": ({}, None, ("--quantization", "fp9"), "fp9"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error_and_leaves_nothing(case: str, make_model: Make, cli: Cli, tmp_path: Path) -> None:
    config, damage, options, message = BAD[case]
    folder = make_model(**config)
    if damage is not None:
        damage(folder)
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [1, 2, 3]}\n')
    place = tmp_path / "place"
    place.mkdir()
    code, out, err = cli(
        "convert", folder, "-o", place / "out", *(ids if option == "IDS" else option for option in options)
    )
    assert code in (1, 2)
    assert not out
    assert "Traceback" not in err
    assert message in err, err
    assert "\n\n" not in err.removeprefix("Usage").strip() or code == 2
    assert list(place.iterdir()) == []


def test_an_unknown_key_names_the_nearest_known_one(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "trtbuild.yaml"
    file.write_text(f"model: {{path: {make_model()}}}\nparalel: {{tp_size: 2}}\n")
    code, _, err = cli("plan", file)
    assert (code, "unknown key 'paralel', did you mean 'parallel'?" in err) == (2, True)
    file.write_text(f"model: {{path: {make_model(name='b')}}}\nparallel: {{tp_sise: 2}}\n")
    code, _, err = cli("plan", file)
    assert (code, "unknown key 'parallel.tp_sise', did you mean 'tp_size'?" in err) == (2, True)


def test_an_existing_output_is_kept_unless_forced(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    folder = make_model()
    code, _, err = cli("convert", folder, "-o", out)
    assert code == 1
    assert "--force" in err
    assert [file.name for file in out.iterdir()] == ["precious"]
    code, _, err = cli("convert", folder, "-o", out, "--force")
    assert (code, "not made by trtbuild" in err) == (1, True), "--force is no licence to delete what others made"
    assert (out / "precious").read_text() == "mine"
    (out / "precious").unlink()
    assert cli("convert", folder, "-o", out)[0] == 0, "an empty folder is as good as none"
    assert cli("convert", folder, "-o", out, "--tp", "2")[0] == 1
    assert cli("convert", folder, "-o", out, "--force", "--tp", "2")[0] == 0
    Checkpoint.open(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"], "no leftovers beside it"


def test_a_failed_forced_run_keeps_the_old_output(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out)[0] == 0
    before = (out / "rank0.safetensors").read_bytes()
    assert cli("convert", make_model(name="bad", edit=not_a_number), "-o", out, "--force")[0] == 1
    assert (out / "rank0.safetensors").read_bytes() == before


@pytest.mark.parametrize("place", ["model", ".", "model/config.json", "model/new"])
def test_the_source_cannot_be_overwritten(place: str, make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    before = read_safetensors(folder / "model.safetensors")
    code, _, err = cli("convert", folder, "-o", tmp_path / place, "--force")
    assert code == 2
    assert "would replace" in err or "inside" in err
    assert sorted(read_safetensors(folder / "model.safetensors")) == sorted(before)


def test_a_dry_run_prints_every_tensor_and_writes_nothing(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    code, out, err = cli("convert", folder, "--dry-run", "--json", "--tp", "2", "-o", tmp_path / "out")
    assert code == 0, err
    plan = json.loads(out)
    assert cli("convert", folder, "--tp", "2", "-o", tmp_path / "real")[0] == 0
    for rank in plan["ranks"]:
        written = read_safetensors(tmp_path / "real" / f"rank{rank['rank']}.safetensors")
        assert {t["name"]: t["shape"] for t in rank["tensors"]} == {
            name: list(tensor.shape) for name, tensor in written.items()
        }
    assert not (tmp_path / "out").exists()
    assert cli("convert", folder, "--dry-run")[0] == 0
    assert cli("convert", folder)[0] == 2, "an output folder is needed otherwise"


def test_several_targets_get_a_subfolder_each_from_one_read(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(
        "convert",
        make_model(),
        "-o",
        tmp_path / "o",
        "--target",
        "tensorrt",
        "--target",
        "reference",
        "--json",
        "--tp",
        "2",
    )
    assert code == 0, err
    assert [entry["target"] for entry in json.loads(out)] == ["tensorrt", "reference"]
    for target in ("tensorrt", "reference"):
        Checkpoint.open(tmp_path / "o" / target)
        assert json.loads((tmp_path / "o" / target / "manifest.json").read_text())["target"] == target


def test_tokenizer_files_travel_and_code_does_not(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "tokenization_x.py", "notes.txt"):
        (folder / name).write_text("{}")
    assert cli("convert", folder, "-o", tmp_path / "out")[0] == 0
    copied = sorted(file.name for file in (tmp_path / "out" / "tokenizer").iterdir())
    assert copied == ["chat_template.jinja", "generation_config.json", "tokenizer.json"]


def test_the_manifest_says_what_was_made_from_what(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    assert cli("convert", folder, "-o", tmp_path / "out", "--tp", "2")[0] == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["source"]["files"][0]["bytes"] == (folder / "model.safetensors").stat().st_size
    assert manifest["deployment"]["parallel"]["tp_size"] == 2
    assert set(manifest["sha256"]) == {"rank0.safetensors", "rank1.safetensors"}
    assert manifest["schema_version"] == 1


def test_quiet_prints_nothing_but_results(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("convert", make_model(), "-o", tmp_path / "out", "--json", "--quiet", "--tp", "4")
    assert code == 0
    assert err == "note: each of the 2 kv heads is held by 2 ranks, since tp=4\n", (
        "what was done beyond the request is still said"
    )
    assert json.loads(out)[0]["write_bytes"] > 0


def test_a_conversion_killed_in_the_middle_leaves_nothing_that_looks_finished(
    make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    folder = make_model()
    place = tmp_path / "place"
    place.mkdir()
    script = (
        "import os, signal, sys\n"
        "from trtbuild.convert import writer\n"
        "whole = writer.RankWriter.append\n"
        "def append(self, name, data):\n"
        "    if 'layers.1.' in name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    whole(self, name, data)\n"
        "writer.RankWriter.append = append\n"
        "from trtbuild.cli.edge import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "convert", str(folder), "-o", str(place / "out")]
    done = subprocess.run(
        command, check=False, capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (place / "out").exists()
    left = [file for file in place.rglob("*") if file.name in ("config.json", "manifest.json")]
    assert left == []
    assert cli("convert", folder, "-o", place / "out")[0] == 0
    assert [file.name for file in place.iterdir()] == ["out"]


def test_two_conversions_to_one_place_do_not_mix(make_model: Make, tmp_path: Path) -> None:
    from trtbuild.errors import TrtbuildError
    from trtbuild.output import staged_folder

    with staged_folder(tmp_path / "out") as stage:
        (stage / "file").write_text("first")
        with pytest.raises(TrtbuildError, match="another process is writing"), staged_folder(tmp_path / "out"):
            pass
    assert (tmp_path / "out" / "file").read_text() == "first"


def test_a_full_disk_is_seen_beforehand(
    make_model: Make, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    code, _, err = cli("convert", make_model(), "-o", tmp_path / "out")
    assert code == 1
    assert "bytes are missing" in err


def test_plan_contains_the_conversion_plan_and_the_kv_pool(make_model: Make, cli: Cli) -> None:
    code, out, err = cli("plan", make_model(), "--tp", "4", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["conversion"]["architecture"] == "LlamaForCausalLM"
    # One replicated kv head per rank: 2 (k, v) x 3 layers x 1 head x 16 x 2 bytes.
    assert [rank["bytes_per_token"] for rank in plan["kv_cache"]] == [192] * 4
    assert plan["limits"]["max_seq_len"] == 256
    assert "KV pool" in cli("plan", make_model(name="again"))[1]


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("limits: {max_seq_len: 257}", "max_seq_len=257 exceeds the 256 positions"),
        ("kv_cache: {max_tokens: 128}", "makes 4 blocks, one sequence of 256 tokens needs 8"),
        ("limits: {max_batch_size: 8, max_num_tokens: 7}", "max_num_tokens=7 is below the 8 tokens"),
        ("kv_cache: {tokens_per_block: 2}", "kv_cache.tokens_per_block = 2"),
        ("limits: {max_batch_size: 0}", "limits.max_batch_size = 0"),
        ("quantization: {scheme: fp7}", "did you mean 'fp8'"),
        ("target: refrence", "did you mean 'reference'"),
        ("serving: {system_prompt: hi}", "system_prompt needs chat_template"),
        ("serving: {http_port: 99999}", "serving.http_port = 99999"),
        ("limits: {}\nlimits: {}", "key 'limits' is given twice"),
        ("limits: [", "not valid YAML"),
        ("model: !!python/object/apply:os.system [true]", "not valid YAML"),
    ],
)
def test_values_that_cannot_work_are_refused_by_plan(
    yaml: str, message: str, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "trtbuild.yaml"
    prefix = "" if yaml.startswith("model") else f"model: {{path: {make_model()}}}\n"
    file.write_text(prefix + yaml + "\n")
    code, out, err = cli("plan", file)
    assert code == 2
    assert not out
    assert message in err


def test_paths_in_a_file_are_relative_to_the_file(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    make_model()
    file = tmp_path / "trtbuild.yaml"
    file.write_text("model: {path: model}\nparallel: {tp_size: 2}\n")
    code, out, err = cli("plan", file, "--json", "--pp", "3")
    assert code == 0, err
    plan = json.loads(out)["conversion"]
    assert plan["config"]["mapping"] == {"world_size": 6, "tp_size": 2, "pp_size": 3}, (
        "an option overrides, the file keeps the rest"
    )


def test_build_makes_a_folder_and_does_nothing_the_second_time(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder = make_model()
    out = tmp_path / "build"
    assert cli("build", folder, "-o", out, "--tp", "2")[0] == 0
    assert {"trtbuild.yaml", "checkpoint", "manifest.json"} <= {file.name for file in out.iterdir()}
    stamp = (out / "checkpoint" / "rank0.safetensors").stat().st_mtime_ns
    code, text, _ = cli("build", out / "trtbuild.yaml", "-o", out, "--json")
    assert (code, json.loads(text)["unchanged"]) == (0, True)
    assert (out / "checkpoint" / "rank0.safetensors").stat().st_mtime_ns == stamp
    code, _, err = cli("build", folder, "-o", out, "--tp", "1")
    assert code == 1
    assert "--force" in err
    assert cli("build", folder, "-o", out, "--tp", "1", "--force")[0] == 0


def test_a_checkpoint_of_other_inputs_is_refused_by_what_changed(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    model, out = make_model(), tmp_path / "out"
    assert cli("convert", model, "-o", out)[0] == 0
    before = (out / "manifest.json").read_bytes()
    os.utime(model / "model.safetensors", (1, 1))
    code, _, err = cli("convert", model, "-o", out, "--dtype", "float32", "--tp", 2)
    assert code == 1
    assert f"{out} holds a checkpoint of other inputs: " in err
    assert "model.dtype was auto, now float32" in err
    assert "parallel.tp_size was 1, now 2" in err
    assert f"weights of {model} changed (model.safetensors)" in err
    assert "--force" in err
    assert (out / "manifest.json").read_bytes() == before
    assert cli("convert", model, "-o", out, "--force")[0] == 0


def test_what_a_manifest_does_not_say_is_still_called_other_inputs(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    model, out = make_model(), tmp_path / "out"
    assert cli("convert", model, "-o", out, "--layers", 1)[0] == 0
    _, _, err = cli("convert", model, "-o", out)
    assert err.startswith(f"error: {out} holds a checkpoint of other inputs\n")
