"""Models too large to have here: sparse files with real headers."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., tuple[int, str, str]]
HIDDEN, INNER, LAYERS, VOCAB, KV = 8192, 28672, 80, 128256, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def shapes() -> Iterator[tuple[str, list[int]]]:
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV), ("o", HIDDEN)):
            yield f"{prefix}.self_attn.{name}_proj.weight", [rows, HIDDEN]
        yield f"{prefix}.mlp.gate_proj.weight", [INNER, HIDDEN]
        yield f"{prefix}.mlp.up_proj.weight", [INNER, HIDDEN]
        yield f"{prefix}.mlp.down_proj.weight", [HIDDEN, INNER]
        yield f"{prefix}.input_layernorm.weight", [HIDDEN]
        yield f"{prefix}.post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def write_sparse(file: Path, entries: list[tuple[str, list[int]]]) -> None:
    header, position = {}, 0
    for name, shape in entries:
        size = 2
        for axis in shape:
            size *= axis
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    encoded = json.dumps(header).encode()
    with file.open("wb") as handle:
        handle.write(struct.pack("<Q", len(encoded)) + encoded)
        handle.truncate(8 + len(encoded) + position)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 141 GB that takes a few kilobytes of disk."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    entries, weight_map = list(shapes()), {}
    for number in range(30):
        part = entries[number::30]
        write_sparse(folder / f"model-{number}.safetensors", part)
        weight_map.update({name: f"model-{number}.safetensors" for name, _ in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def rank_bytes(tp: int, layers: int, *, first: bool, last: bool) -> int:
    """Return the bytes of a rank file, added up by hand."""
    qkv = (HIDDEN + 2 * KV) // tp * HIDDEN
    linears = qkv + HIDDEN * HIDDEN // tp + 3 * INNER // tp * HIDDEN
    total = layers * (linears + 2 * HIDDEN) + first * VOCAB * HIDDEN + last * (VOCAB // tp * HIDDEN + HIDDEN)
    return 2 * total


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (1, 3), (4, 3)])
def test_a_70b_model_is_planned_to_the_byte(large: Path, tp: int, pp: int, cli: Cli) -> None:
    code, out, err = cli("plan", large, "--tp", tp, "--pp", pp, "--json")
    assert code == 0, err
    plan = json.loads(out)["conversion"]
    assert plan["read_bytes"] == 141_107_412_992
    stages = {1: [80], 3: [27, 27, 26]}[pp]
    for rank in plan["ranks"]:
        stage = rank["pp_rank"]
        assert rank["bytes"] == rank_bytes(tp, stages[stage], first=stage == 0, last=stage == pp - 1)


def test_a_70b_model_is_planned_at_once_and_in_little_memory(large: Path) -> None:
    """Not a benchmark: processor time, the best of five, with room for a slow machine."""
    command = [sys.executable, "-m", "trtbuild", "plan", str(large), "--tp", "4"]
    used = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < 0.8
    measured = f"import os, sys; _, status, used = os.wait4(os.posix_spawn(sys.executable, {command!r}, os.environ), 0); print(used.ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", measured], capture_output=True, check=True, text=True)
    assert int(done.stdout.split()[-1]) < 80 * 2**10  # KiB


@pytest.mark.slow
def test_the_first_layers_of_a_70b_model_are_converted_within_the_budget(large: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "trtbuild",
        "convert",
        str(large),
        "-o",
        str(tmp_path / "out"),
        "--layers",
        "1",
        "--tp",
        "2",
    ]
    done = subprocess.run(
        [*command, "--memory", "256MiB", "--quiet", "--json"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # The interpreter with numpy takes up to 80 MiB; the embedding alone has 2 GB.
    assert json.loads(done.stdout)[0]["peak_rss_bytes"] < (256 + 80) * 2**20


@pytest.mark.parametrize("targets", [("tensorrt",), ("pytorch",), ("tensorrt", "pytorch")])
def test_an_embedding_larger_than_the_budget_is_converted_within_it(targets: tuple[str, ...], tmp_path: Path) -> None:
    folder, rows, hidden = tmp_path / "model", 48000, 2048
    folder.mkdir()
    small = {
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "vocab_size": rows,
        "num_attention_heads": 16,
    }
    (folder / "config.json").write_text(json.dumps({**CONFIG, **small, "tie_word_embeddings": True}))
    layer = "model.layers.0"
    entries = [("model.embed_tokens.weight", [rows, hidden]), ("model.norm.weight", [hidden])]
    entries += [
        (f"{layer}.self_attn.{name}_proj.weight", [size, hidden])
        for name, size in (("q", hidden), ("k", KV), ("v", KV))
    ]
    entries += [(f"{layer}.self_attn.o_proj.weight", [hidden, hidden]), (f"{layer}.mlp.down_proj.weight", [hidden, 64])]
    entries += [(f"{layer}.mlp.{name}_proj.weight", [64, hidden]) for name in ("gate", "up")]
    entries += [(f"{layer}.{name}_layernorm.weight", [hidden]) for name in ("input", "post_attention")]
    write_sparse(folder / "model.safetensors", entries)
    command = [
        sys.executable,
        "-m",
        "trtbuild",
        "convert",
        str(folder),
        "-o",
        str(tmp_path / "out"),
        "--memory",
        "64MiB",
        *(f"--target={target}" for target in targets),
    ]
    done = subprocess.run([*command, "--quiet", "--json"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The interpreter with numpy takes up to 80 MiB; the embedding has 188.
    assert json.loads(done.stdout)[0]["peak_rss_bytes"] < (64 + 80) * 2**20


def test_a_model_with_latent_attention_is_sized_and_not_converted(tmp_path: Path, cli: Cli) -> None:
    config: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_sparse(tmp_path / "model.safetensors", [("model.embed_tokens.weight", [129280, 7168])])
    code, out, err = cli("plan", tmp_path, "--target", "pytorch", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert (plan["is_converted"], plan["kv_values_per_token"]) == (False, 35136)
    assert plan["weight_bytes"] == {"BF16": 2 * 129280 * 7168}
    assert "is not converted: the specification" in cli("plan", tmp_path)[1]
    code, _, err = cli("convert", tmp_path, "-o", tmp_path / "out")
    assert (code, "latent attention" in err, "LLM API" in err) == (1, True, True)
    assert not (tmp_path / "out").exists()


def test_context_parallelism_is_refused_by_name(large: Path, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "trtbuild.yaml"
    file.write_text(f"model: {{path: {large}}}\nparallel: {{cp_size: 2}}\n")
    code, _, err = cli("plan", file)
    assert (code, "context parallelism (cp_size) is not supported" in err) == (2, True)
