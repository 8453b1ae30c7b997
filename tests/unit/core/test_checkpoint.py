"""Reading rank files back: whatever does not fit config.json is found, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import GOLDENS, read_safetensors, write_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import TrtbuildError

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(cli: Cli, tmp_path: Path) -> Path:
    """An FP8 checkpoint with FP8 KV cache at tp 2."""
    calibration = GOLDENS / "llama" / "calibration_ids.safetensors"
    options = ("--tp", "2", "--quantization", "fp8", "--kv-cache", "fp8", "--calibration", calibration)
    code, _, err = cli("convert", GOLDENS / "llama" / "source", "-o", tmp_path / "out", *options)
    assert code == 0, err
    return tmp_path / "out"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_scales_come_back_under_hugging_face_names(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    scales = {name: rounding.scale for name, rounding in checkpoint.input_roundings().items()}
    assert len(scales) == 2 * 7
    assert scales["model.layers.0.self_attn.q_proj"] == scales["model.layers.0.self_attn.v_proj"]
    assert scales["model.layers.1.mlp.gate_proj"] == scales["model.layers.1.mlp.up_proj"]
    assert checkpoint.kv_scales() == [1.0, 1.0]
    assert (checkpoint.quant_algo, checkpoint.kv_cache_quant_algo) == ("FP8", "FP8")
    assert checkpoint.tokenizer_dir is None


def test_every_written_float_is_finite_and_every_scale_positive(folder: Path) -> None:
    for rank in range(2):
        for name, tensor in read_safetensors(folder / f"rank{rank}.safetensors").items():
            values = tensor.astype(np.float32)
            assert np.isfinite(values).all(), name
            if name.endswith("scaling_factor"):
                assert (values > 0).all(), name


def test_scales_are_the_same_on_all_ranks(folder: Path) -> None:
    one, two = (read_safetensors(folder / f"rank{rank}.safetensors") for rank in range(2))
    scales = [name for name in one if name.endswith("scaling_factor")]
    assert len(scales) == 2 * (2 * 5 + 3)
    assert all(one[name].tobytes() == two[name].tobytes() for name in scales)


def test_an_algorithm_that_does_not_fit_the_tensors_lists_missing_and_surplus(folder: Path) -> None:
    edit(folder, lambda config: config["quantization"].update(quant_algo=None))
    with pytest.raises(TrtbuildError, match=r"does not fit its config.json: surplus: .*scaling_factor.* and \d+ more"):
        Checkpoint.open(folder)


def test_a_lost_scale_is_named(folder: Path) -> None:
    file = folder / "rank1.safetensors"
    tensors = read_safetensors(file)
    kept = {
        k: v.view(np.uint8) if v.dtype.name == "float8_e4m3fn" else v
        for k, v in tensors.items()
        if "fc.weights_scaling" not in k
    }
    write_safetensors(file, kept)
    with pytest.raises(TrtbuildError, match="missing: transformer.layers.0.mlp.fc.weights_scaling_factor"):
        Checkpoint.open(folder)


def test_a_lost_rank_file_is_named(folder: Path) -> None:
    (folder / "rank1.safetensors").unlink()
    with pytest.raises(TrtbuildError, match="rank1.safetensors is missing: mapping says 2 ranks"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.update(architecture="FooForCausalLM"), "FooForCausalLM"),
        (lambda config: config.pop("mapping"), "has no 'mapping'"),
        (lambda config: config["quantization"].update(quant_algo="W8A16_GPTQ"), "'W8A16_GPTQ' cannot be read"),
        (lambda config: config["quantization"].update(kv_cache_quant_algo="NVFP4"), "'NVFP4' cannot be read"),
        (lambda config: config.update(vocab_size=161), "lm_head.weight is"),
    ],
)
def test_a_config_that_says_something_else_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(folder, change)
    with pytest.raises(TrtbuildError, match=message):
        Checkpoint.open(folder)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="not a checkpoint folder"):
        Checkpoint.open(tmp_path)


def test_zero_groups_and_padding_stay_zero_and_finite(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    def zero(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][:] = 0
        tensors["model.layers.1.mlp.down_proj.weight"][:, :32] = 0

    (tmp_path / "ids.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    options = ("--tp", "2", "--quantization", "fp8", "--calibration", tmp_path / "ids.jsonl")
    code, _, err = cli("convert", make_model(vocab_size=129, edit=zero), "-o", tmp_path / "z", *options)
    assert code == 0, err
    merged = dict(Checkpoint.open(tmp_path / "z").hf_tensors())
    assert not merged["model.layers.0.mlp.down_proj.weight"].any()
    assert not merged["model.layers.1.mlp.down_proj.weight"][:, :32].any()
    assert all(np.isfinite(tensor.astype(np.float32)).all() for tensor in merged.values())


def test_memory_does_not_grow_with_the_number_of_ranks(tmp_path: Path) -> None:
    """A 128 MiB embedding at tp 8: the peak stays below one copy of it."""
    import subprocess
    import sys

    from tests.conftest import T0, llama_tensors

    folder = tmp_path / "model"
    folder.mkdir()
    shape = {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 32,
        "intermediate_size": 256,
    }
    config = {
        **T0,
        **shape,
        "num_hidden_layers": 1,
        "vocab_size": 8,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    tensors = {**llama_tensors(config), "model.embed_tokens.weight": np.ones((262144, 256), np.float16)}
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 262144}))
    write_safetensors(folder / "model.safetensors", tensors)
    script = (
        "import resource, sys\nimport numpy, ml_dtypes\nfrom trtbuild.convert import execute\nfrom trtbuild.cli.edge import run\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\ncode = run(sys.argv[1:])\n"
        "sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))\nsys.exit(code)"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "convert",
        str(folder),
        "-o",
        str(tmp_path / "out"),
        "--tp",
        "8",
        "--quiet",
        "--json",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout.rpartition("]")[2]) * 1024 < 128 * 2**20
