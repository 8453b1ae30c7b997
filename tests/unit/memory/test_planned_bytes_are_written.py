"""What a plan says of files, against the files: no difference in a single byte."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import write_ids

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 260}


def data_bytes(file: Path) -> int:
    """Return the bytes of a safetensors file behind its header."""
    with file.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
    return file.stat().st_size - 8 - length


def planned(cli: Cli, *arguments: object) -> list[dict[str, int]]:
    code, out, err = cli("plan", *arguments, "--json")
    assert code == 0, err
    ranks: list[dict[str, int]] = json.loads(out)["memory"]["ranks"]
    return ranks


@pytest.mark.parametrize("pp", [1, 2, 3])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("scheme", ["none", "int8_weight_only", "fp8_per_channel_per_token", "int4_rtn"])
def test_rank_files_have_the_planned_bytes(
    make_model: Make, tmp_path: Path, cli: Cli, scheme: str, tp: int, pp: int
) -> None:
    folder = make_model(**SIZES)
    arguments = (folder, "--target", "tensorrt", "--quantization", scheme, "--tp", tp, "--pp", pp)
    ranks = planned(cli, *arguments)
    code, _, err = cli("convert", *arguments, "-o", tmp_path / "out", "--quiet")
    assert code == 0, err
    files = [tmp_path / "out" / f"rank{number}.safetensors" for number in range(tp * pp)]
    assert [rank["file_bytes"] for rank in ranks] == [data_bytes(file) for file in files]
    if scheme in ("none", "fp8_per_channel_per_token"):
        assert [rank["weight_bytes"] for rank in ranks] == [data_bytes(file) for file in files]
    else:
        assert all(rank["weight_bytes"] < rank["file_bytes"] for rank in ranks)


@pytest.mark.parametrize(("tie", "embedding"), [(True, "replicated"), (True, "vocab"), (False, "hidden")])
@pytest.mark.parametrize("tp", [1, 2])
def test_embeddings_in_all_forms_have_the_planned_bytes(
    make_model: Make, tmp_path: Path, cli: Cli, tie: bool, embedding: str, tp: int
) -> None:
    folder = make_model(**SIZES, tie_word_embeddings=tie)
    arguments = (folder, "--target", "tensorrt", "--tp", tp, "--pp", 2, "--embedding", embedding)
    ranks = planned(cli, *arguments)
    assert cli("convert", *arguments, "-o", tmp_path / "out", "--quiet")[0] == 0
    files = [tmp_path / "out" / f"rank{number}.safetensors" for number in range(tp * 2)]
    assert [rank["weight_bytes"] for rank in ranks] == [data_bytes(file) for file in files]


def test_calibrated_scales_have_the_planned_bytes(make_model: Make, tmp_path: Path, cli: Cli) -> None:
    ids = write_ids(tmp_path / "ids.safetensors")
    arguments = (
        make_model(**SIZES), "--target", "tensorrt", "--quantization", "fp8", "--kv-cache", "fp8", "--tp", 2, "--calibration", ids,
    )  # fmt: skip
    ranks = planned(cli, *arguments)
    code, _, err = cli("convert", *arguments, "-o", tmp_path / "out", "--quiet")
    assert code == 0, err
    files = [tmp_path / "out" / f"rank{number}.safetensors" for number in range(2)]
    assert [rank["weight_bytes"] for rank in ranks] == [data_bytes(file) for file in files]


@pytest.mark.parametrize("scheme", ["none", "fp8_per_channel_per_token", "fp8_block", "int4_rtn"])
@pytest.mark.parametrize("tie", [False, True])
def test_a_unified_folder_on_one_gpu_has_the_planned_bytes(
    make_model: Make, tmp_path: Path, cli: Cli, scheme: str, tie: bool
) -> None:
    folder = make_model(**SIZES, tie_word_embeddings=tie)
    arguments = (folder, "--target", "pytorch", "--quantization", scheme)
    (rank,) = planned(cli, *arguments)
    code, _, err = cli("convert", *arguments, "-o", tmp_path / "out", "--quiet")
    assert code == 0, err
    # The folder keeps a scale or a norm of q, k and v each; the server joins them, which changes no byte but those of per-tensor scales.
    assert rank["file_bytes"] == sum(data_bytes(file) for file in (tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("scheme", ["none", "fp8_per_channel_per_token"])
def test_the_servers_cut_of_a_unified_folder_adds_up(make_model: Make, cli: Cli, scheme: str) -> None:
    """Linears, embedding and head are cut; norms and the scales of rows of row-parallel linears are on every rank."""
    folder = make_model(**{**SIZES, "vocab_size": 256})
    (whole,) = planned(cli, folder, "--target", "pytorch", "--quantization", scheme)
    ranks = planned(cli, folder, "--target", "pytorch", "--quantization", scheme, "--tp", 2)
    norms = 2 * 256 * (2 * 3 + 1)
    rows = 0 if scheme == "none" else 3 * 2 * 256 * 4
    assert sum(rank["weight_bytes"] for rank in ranks) == whole["weight_bytes"] + norms + rows


def whole_plan(cli: Cli, *arguments: object) -> dict[str, Any]:
    code, out, err = cli("plan", *arguments, "--json")
    assert code == 0, err
    plan: dict[str, Any] = json.loads(out)
    return plan


@pytest.mark.parametrize("target", ["tensorrt", "pytorch", "reference"])
@pytest.mark.parametrize("tie", [False, True])
def test_what_is_read_is_what_lies_in_the_file(
    make_model: Make, tmp_path: Path, cli: Cli, target: str, tie: bool
) -> None:
    """A tied embedding is written twice for an engine, and there only once."""
    folder = make_model(**SIZES, tie_word_embeddings=tie)
    plan = whole_plan(cli, folder, "--target", target)
    held = data_bytes(folder / "model.safetensors")
    assert plan["conversion"]["read_bytes"] == held
    assert (plan["conversion"]["write_bytes"] > held) == (tie and target != "pytorch")
    assert cli("convert", folder, "--target", target, "-o", tmp_path / "out", "--quiet")[0] == 0
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (written["read_bytes"], written["write_bytes"]) == (held, plan["conversion"]["write_bytes"])
    files = sum(data_bytes(file) for file in (tmp_path / "out").glob("*.safetensors"))
    assert plan["conversion"]["write_bytes"] == plan["disk_bytes"] == files


@pytest.mark.parametrize("name", ["fp8_kvfp8", "int4_awq_g64", "nvfp4", "fp8_pc_pt"])
def test_what_is_read_of_a_quantized_source_is_what_lies_in_its_file(cli: Cli, name: str) -> None:
    """Weights are read as float32, the file holds 8 or 4 bits of each."""
    folder = Path(__file__).parents[2] / "goldens" / "llama" / "hf" / name
    plan = whole_plan(cli, folder, "--target", "tensorrt", "--dequantize")
    held = data_bytes(folder / "model.safetensors")
    assert 0.9 * held < plan["conversion"]["read_bytes"] <= held


def test_the_disk_of_a_build_holds_checkpoint_and_engine(make_model: Make, cli: Cli) -> None:
    plan = whole_plan(cli, make_model(**SIZES), "--target", "tensorrt", "--tp", 2)
    ranks = plan["memory"]["ranks"]
    assert plan["host"]["disk_bytes"] == sum(rank["file_bytes"] + rank["weight_bytes"] for rank in ranks)
    least, most = plan["host"]["build_memory_bytes"]
    assert (least, most) == (
        2 * sum(rank["weight_bytes"] for rank in ranks),
        3 * sum(rank["weight_bytes"] for rank in ranks),
    )


@pytest.mark.parametrize("tie", [False, True])
def test_the_server_of_the_reference_holds_the_model_in_float32(make_model: Make, cli: Cli, tie: bool) -> None:
    folder = make_model(**SIZES, tie_word_embeddings=tie)
    plan = whole_plan(cli, folder, "--target", "reference", "--tp", 2)
    config = json.loads((folder / "config.json").read_text())
    kv = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * 256 // config["num_attention_heads"]
    weights = data_bytes(folder / "model.safetensors") // 2
    assert plan["host"]["server_memory_bytes"] == 4 * (weights + kv * plan["limits"]["kv_tokens"])


@pytest.mark.parametrize("scheme", ["none", "fp8"])
def test_a_conversion_stays_within_the_planned_memory(make_model: Make, tmp_path: Path, scheme: str) -> None:
    """In a process of its own, with what it imports."""
    ids = write_ids(tmp_path / "ids.safetensors")
    arguments = [str(make_model(**SIZES)), "--target", "tensorrt", "--quantization", scheme]
    arguments += ["--calibration", str(ids)] if scheme == "fp8" else []

    def run(verb: str, *more: str) -> str:
        command = [sys.executable, "-m", "trtbuild", verb, *arguments, *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    planned = json.loads(run("plan", "--json"))["host"]["conversion_memory_bytes"]
    run("convert", "-o", str(tmp_path / "out"), "--quiet")
    peak = json.loads((tmp_path / "out" / "manifest.json").read_text())["peak_rss_bytes"]
    assert peak < planned < 3 * peak
