"""Interrupted conversions go on byte for byte, unchanged ones do nothing, and a changed byte is found."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors, write_safetensors

from trtbuild.convert.budget import Budget

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
CALIBRATION = ("--calibration", GOLDENS / "llama" / "calibration_ids.safetensors")
FP8 = ("--quantization", "fp8", "--kv-cache", "fp8", "--tp", "2", *CALIBRATION)
#: Runs the command line and dies at the n-th write of a rank file.
KILLED = """
import os, signal, sys
from trtbuild.convert import writer
left, whole = int(sys.argv[1]), os.pwrite
def pwrite(descriptor, data, offset):
    global left
    left -= 1
    if left < 0:
        whole(descriptor, bytes(data)[: len(data) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(descriptor, data, offset)
os.pwrite = pwrite
from trtbuild.cli.edge import run
sys.exit(run(sys.argv[2:]))
"""


def digests(folder: Path) -> dict[str, bytes]:
    """Return the bytes of everything but the manifest, which holds times."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }


def test_a_conversion_killed_anywhere_goes_on_to_the_same_bytes(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "place" / "out"
    assert cli("convert", folder, "-o", tmp_path / "whole", "--tp", "2")[0] == 0
    expected = digests(tmp_path / "whole")
    writes = 2 * len(json.loads((tmp_path / "whole" / "manifest.json").read_text())["sha256"]["rank0.safetensors"])
    for point in random.Random(5).sample(range(writes), 20):
        command = [sys.executable, "-c", KILLED, str(point), "convert", str(folder), "-o", str(out), "--tp", "2"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, check=False, capture_output=True, env=environment)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
        assert cli("convert", folder, "-o", out, "--tp", "2")[0] == 0
        assert digests(out) == expected
        assert [file.name for file in out.parent.iterdir()] == ["out"]
        shutil.rmtree(out)


def test_what_was_finished_is_not_written_again(
    make_model: Make, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", os.pwrite
    left = 20

    def full(descriptor: int, data: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    code, _, err = cli("convert", make_model(), "-o", out)
    assert code == 1
    assert "No space left on device" in err and "goes on from there" in err
    assert not out.exists()
    finished = len((tmp_path / ".out.partial" / "unfinished.jsonl").read_text().splitlines())
    assert finished > 4
    left = 1000
    assert cli("convert", tmp_path / "model", "-o", out)[0] == 0
    assert 1000 - left < 40 - finished / 2, "else it began anew"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


def test_other_work_does_not_go_on_with_what_was_left(
    make_model: Make, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = make_model(), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        assert cli("convert", folder, "-o", out)[0] == 1
    assert (tmp_path / ".out.partial").is_dir()
    assert cli("convert", folder, "-o", out, "--tp", "2", "--dtype", "float32")[0] == 0
    assert cli("verify", out)[0] == 0


def test_a_damaged_byte_of_unfinished_work_is_written_again(
    make_model: Make, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtbuild.convert import writer

    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", tmp_path / "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(writer.RankWriter, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("convert", folder, "-o", out)[0] == 130
    file = tmp_path / ".out.partial" / "rank0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes(raw)
    assert cli("convert", folder, "-o", out)[0] == 0
    assert digests(out) == digests(tmp_path / "whole")


def test_calibration_is_not_run_again(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtbuild.convert.rank_files import RankSink
    from trtbuild.quant.calibrate import forward

    source, out = GOLDENS / "llama" / "source", tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(RankSink, "_write_kv_scales", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("convert", source, "-o", out, *FP8)[0] == 130
    monkeypatch.setattr(forward, "calibrate", lambda *_, **__: pytest.fail("calibrated again"))
    assert cli("convert", source, "-o", out, *FP8)[0] == 0
    assert "calibration.json" not in {file.name for file in out.iterdir()}
    assert cli("verify", out)[0] == 0


def test_an_unchanged_second_run_does_nothing(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", out)[0] == 0
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    code, _, err = cli("convert", folder, "-o", out)
    assert (code, "up to date" in err) == (0, True)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before
    assert cli("convert", folder, "-o", out, "--dtype", "float16")[0] == 1, "other options are other work"
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    assert cli("convert", folder, "-o", out)[0] == 1, "a touched file may be another"


def test_verify_inputs_finds_what_size_and_time_hide(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", out)[0] == 0
    assert cli("convert", folder, "-o", out, "--verify-inputs")[0] == 0
    weights = folder / "model.safetensors"
    stat, raw = weights.stat(), bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cli("convert", folder, "-o", out)[0] == 0
    code, _, err = cli("convert", folder, "-o", out, "--verify-inputs")
    assert (code, "1 tensors are not those that were converted: lm_head.weight" in err) == (3, True)


@pytest.mark.parametrize("options", [("--tp", "2"), FP8, ("--quantization", "int8_weight_only", "--pp", "2")])
def test_any_flipped_byte_is_found_with_its_file_and_tensor(options: tuple[Any, ...], cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", GOLDENS / "llama" / "source", "-o", out, *options)[0] == 0
    code, text, _ = cli("verify", out)
    assert (code, "as written" in text) == (0, True)
    file, chosen = out / "rank1.safetensors", random.Random(1)
    raw, tensors = file.read_bytes(), read_safetensors(file)
    start = len(raw) - sum(tensor.nbytes for tensor in tensors.values())
    for _ in range(8):
        position = chosen.randrange(start, len(raw))
        changed = bytearray(raw)
        changed[position] ^= 1 << chosen.randrange(8)
        file.write_bytes(changed)
        hit = next(
            name for name, tensor in read_safetensors(file).items() if tensor.tobytes() != tensors[name].tobytes()
        )
        code, text, _ = cli("verify", out, "--no-source", "--json")
        assert code == 3
        assert [(found["file"], found["tensor"]) for found in json.loads(text)["findings"]] == [(file.name, hit)]


def test_verify_reports_errors_within_the_schemes_bound_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    for name, options, exact in (("none", ("--dtype", "float16"), True), ("fp8", FP8, False)):
        out = tmp_path / name
        assert cli("convert", GOLDENS / "mixtral" / "source", "-o", out, *_without_kv(options))[0] == 0
        code, text, err = cli("verify", out, "--json")
        assert code == 0, text + err
        report = json.loads(text)
        assert report["findings"] == []
        assert (report["exact"] == report["compared"]) is exact
        for row in report["worst"]:
            assert 0 < row["relative"] < 0.05


def _without_kv(options: tuple[Any, ...]) -> tuple[Any, ...]:
    found = tuple(str(each) for each in options)
    ids = str(GOLDENS / "mixtral" / "calibration_ids.safetensors")
    return tuple(ids if each.endswith("calibration_ids.safetensors") else each for each in found)


def test_verify_compares_with_the_source_itself(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = make_model(num_key_value_heads=1, vocab_size=131)
    assert cli("convert", folder, "-o", out, "--tp", "4", "--embedding", "vocab")[0] == 0
    tensors = {name: np.array(tensor) for name, tensor in read_safetensors(folder / "model.safetensors").items()}
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] += 1
    tensors["model.layers.2.mlp.down_proj.weight"][7, 150] = 3  # columns 144 to 191 are rank 3's
    write_safetensors(folder / "model.safetensors", tensors)
    code, text, _ = cli("verify", out, "--json")
    assert code == 3
    found = [(each["file"], each["tensor"]) for each in json.loads(text)["findings"]]
    assert found == [
        *((f"rank{rank}.safetensors", "transformer.layers.1.attention.qkv.weight") for rank in range(4)),
        ("rank3.safetensors", "transformer.layers.2.mlp.proj.weight"),
    ]


def test_verify_says_what_it_cannot_do(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", out)[0] == 0
    folder.rename(tmp_path / "moved")
    code, _, err = cli("verify", out)
    assert (code, "is not there" in err, "--no-source" in err) == (1, True, True)
    assert cli("verify", out, "--no-source")[0] == 0
    code, _, err = cli("verify", tmp_path / "moved")
    assert code == 1 and err


def test_a_trial_converts_the_first_layers_only(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", out, "--layers", "2")[0] == 0
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert not any("layers.2." in name for name in read_safetensors(out / "rank0.safetensors"))
    assert cli("verify", out)[0] == 0
    code, _, err = cli("convert", folder, "-o", out, "--layers", "4", "--force")
    assert (code, "the model has 3 layers" in err) == (2, True)


@pytest.mark.parametrize("size", ["much", "0", "-1GiB", "1 XB", ""])
def test_a_memory_budget_that_is_no_size_is_refused(size: str, make_model: Make, cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("convert", make_model(), "-o", tmp_path / "out", "--memory", size)
    assert (code, "is no size" in err) == (2, True)


@pytest.mark.parametrize("size", ["1", "10", "2MiB", "2621439"])
@pytest.mark.parametrize("verb", ["convert", "build", "sensitivity"])
def test_a_memory_budget_below_the_smallest_blocks_is_refused(verb: str, size: str, cli: Cli, tmp_path: Path) -> None:
    more = ["--bits-per-weight", "6"] if verb == "sensitivity" else []
    code, _, err = cli(verb, tmp_path / "model", "-o", tmp_path / "out", "--memory", size, *more)
    assert (code, "too small: row blocks take 2,621,440 bytes at least" in err, "--memory 2.5MiB" in err) == (
        2,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("memory_bytes", "workers", "block_bytes"), [(2621440, 1, 2**18), (6 * 2**20, 2, 314572), (2**40, 8, 2**22)]
)
def test_a_budget_is_never_exceeded(
    memory_bytes: int, workers: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    found = Budget.of(memory_bytes)
    assert (found.workers, found.block_bytes) == (workers, block_bytes)
    assert 10 * found.workers * found.block_bytes <= memory_bytes


def test_the_smallest_budget_converts(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    assert cli("convert", make_model(), "-o", tmp_path / "out", "--memory", "2.5MiB")[0] == 0
    assert cli("verify", tmp_path / "out")[0] == 0


def test_a_lora_adapter_is_merged_on_the_way(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, adapter, out = make_model(torch_dtype="float32"), tmp_path / "adapter", tmp_path / "out"
    adapter.mkdir()
    a, b = np.ones((2, 64), np.float32), np.full((64, 2), 0.5, np.float32)
    module = "base_model.model.model.layers.1.self_attn.o_proj"
    write_safetensors(
        adapter / "adapter_model.safetensors", {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"], "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    assert cli("convert", folder, "-o", out, "--dtype", "float32", "--merge-lora", adapter)[0] == 0
    name = "model.layers.1.self_attn.o_proj.weight"
    expected = read_safetensors(folder / "model.safetensors")[name] + 2 * b @ a
    found = read_safetensors(out / "rank0.safetensors")["transformer.layers.1.attention.dense.weight"]
    assert np.array_equal(found, expected)
    assert cli("verify", out)[0] == 0
    assert json.loads((out / "manifest.json").read_text())["source"]["adapter"]["path"] == str(adapter)
    os.utime(adapter / "adapter_model.safetensors", ns=(1, 1))
    assert cli("convert", folder, "-o", out, "--dtype", "float32", "--merge-lora", adapter)[0] == 1


@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_a_damaged_result_is_not_up_to_date(damage: str, make_model: Make, cli: Cli, tmp_path: Path) -> None:
    folder, out = make_model(), tmp_path / "out"
    assert cli("convert", folder, "-o", out, "--tp", "2")[0] == 0
    file = out / "rank1.safetensors"
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(b"")
    code, _, err = cli("convert", folder, "-o", out, "--tp", "2")
    assert (code, "is damaged" in err, "--force" in err) == (1, True, True)
    code, text, _ = cli("verify", out, "--json")
    assert (code, [each["file"] for each in json.loads(text)["findings"]]) == (3, ["rank1.safetensors"])
    assert cli("convert", folder, "-o", out, "--tp", "2", "--force")[0] == 0
    assert cli("verify", out)[0] == 0


@pytest.mark.parametrize("target", ["tensorrt", "pytorch"])
def test_verify_finds_changes_in_files_that_are_no_weights(
    target: str, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    folder, out = make_model(), tmp_path / "out"
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "tokenizer.json").write_text("{}")
    assert cli("convert", folder, "-o", out, "--target", target)[0] == 0
    assert cli("verify", out)[0] == 0
    config = (out / "config.json").read_text()
    for old, new in (('"silu"', '"zzz"'), ("10000.0", "20000.0"), ("1e-05", "0.5")):
        assert old in config
        (out / "config.json").write_text(config.replace(old, new))
        code, text, _ = cli("verify", out, "--json")
        assert (code, [each["file"] for each in json.loads(text)["findings"]]) == (3, ["config.json"])
    (out / "config.json").write_text(config)
    next(out.rglob("generation_config.json")).write_text('{"eos_token_id": 3}')
    (out / "rank7.safetensors").write_bytes(b"more")
    code, text, _ = cli("verify", out, "--json")
    assert (code, len(json.loads(text)["findings"])) == (3, 2)


@pytest.mark.parametrize("key", ["source", "deployment", "sha256", "files"])
@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_a_damaged_manifest_is_one_clear_error(
    key: str, value: Any, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out)[0] == 0
    made = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**made, key: value}))
    code, _, err = cli("verify", out)
    assert (code, f"is damaged, or of an older version: {key} is" in err) == (1, True), err
    del made["seconds"]
    (out / "manifest.json").write_text(json.dumps(made))
    code, _, err = cli("convert", tmp_path / "model", "-o", out)
    assert (code, "seconds is missing" in err, "with --force" in err) == (1, True, True), err
    assert cli("convert", tmp_path / "model", "-o", out, "--force")[0] == 0


def test_verify_names_the_folders_of_several_targets(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out, "--target", "tensorrt", "--target", "reference")[0] == 0
    code, _, err = cli("verify", out)
    assert (code, str(out / "tensorrt") in err) == (1, True)


def test_a_tied_head_that_is_another_than_the_embedding_is_refused(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    def store_head(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    same = make_model(name="same", tie_word_embeddings=True, edit=store_head)
    assert cli("convert", same, "-o", tmp_path / "out")[0] == 0

    def change_head(tensors: dict[str, np.ndarray]) -> None:
        store_head(tensors)
        tensors["lm_head.weight"][-1, -1] += 1

    other = make_model(name="other", tie_word_embeddings=True, edit=change_head)
    code, _, err = cli("convert", other, "-o", tmp_path / "other-out")
    assert (code, "lm_head.weight is not model.embed_tokens.weight" in err) == (1, True)


def test_a_trial_of_some_layers_can_be_calibrated(cli: Cli, tmp_path: Path) -> None:
    for family in ("gpt2", "mixtral"):
        calibration = ("--calibration", GOLDENS / family / "calibration_ids.safetensors")
        options = ("--layers", "1", "--quantization", "fp8", *calibration)
        code, _, err = cli("convert", GOLDENS / family / "source", "-o", tmp_path / family, *options)
        assert code == 0, err


def test_samples_are_cut_to_the_positions_of_the_model(cli: Cli, tmp_path: Path) -> None:
    ids = tmp_path / "ids.safetensors"
    write_safetensors(ids, {"input_ids": np.arange(400, dtype=np.int64)[None] % 160})
    source = GOLDENS / "gpt2" / "source"  # 256 positions
    code, _, err = cli("convert", source, "-o", tmp_path / "out", "--quantization", "fp8", "--calibration", ids)
    assert code == 0, err


def left_behind(make_model: Make, cli: Cli, tmp_path: Path, verb: str, again: list[str]) -> tuple[Path, list[Any]]:
    """Finish a folder, kill a run that does it again; return the folder under construction and the command that finds all up to date."""
    command = [verb, make_model(), "-o", tmp_path / "out"]
    assert cli(*command)[0] == 0
    died = subprocess.run(
        [sys.executable, "-c", KILLED, "1", *map(str, command), *again], capture_output=True, check=False
    )
    assert died.returncode == -signal.SIGKILL
    stage = tmp_path / ".out.partial"
    assert stage.is_dir()
    return stage, command


@pytest.mark.parametrize(("verb", "again"), [("build", ["--from", "checkpoint"]), ("convert", ["--force"])])
def test_what_a_killed_run_left_is_removed_when_all_is_up_to_date(
    make_model: Make, cli: Cli, tmp_path: Path, verb: str, again: list[str]
) -> None:
    stage, command = left_behind(make_model, cli, tmp_path, verb, again)
    code, _, err = cli(*command)
    assert code == 0
    assert f"removed {stage}, which an interrupted run left" in err
    assert not stage.exists()
    assert "removed" not in cli(*command)[2]


def test_what_somebody_works_on_is_left_alone(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    stage, command = left_behind(make_model, cli, tmp_path, "build", ["--from", "checkpoint"])
    descriptor = os.open(stage, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert cli(*command)[0] == 0
        assert stage.is_dir()
    finally:
        os.close(descriptor)
