"""The files of TensorRT-LLM's LoRA cache: bytes, layout, order, refusals, and the command that writes them."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.lora.adapters import BF16, Q, pair, write_adapter

from trtbuild.errors import TrtbuildError
from trtbuild.lora import Adapter, merged
from trtbuild.lora.names import IDS, MODULES, locate, target_modules
from trtbuild.lora.serving import write_serving
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint
from trtbuild_client.tensors import encode
from trtbuild_client.wire import TensorSpec

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
WEIGHTS, CONFIG = "model.lora_weights.npy", "model.lora_config.npy"
LLAMA = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 32),
    "self_attn.v_proj": (64, 32),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (64, 192),
    "mlp.up_proj": (64, 192),
    "mlp.down_proj": (192, 64),
}
#: Written out again, from lora_manager.py, so that a wrong id in the table does not go unseen.
LLAMA_IDS = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4, "gate_proj": 5, "down_proj": 6, "up_proj": 7}


def llama_modules(rank: int = 4, dtype: Any = np.float32) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A and B of every linear module of layers 0 and 2 of the tiny Llama."""
    return {
        f"model.layers.{layer}.{name}": pair(rank, inputs, outputs, seed=10 * layer + index, dtype=dtype)
        for layer in (2, 0)
        for index, (name, (inputs, outputs)) in enumerate(LLAMA.items())
    }


def test_a_tiny_adapter_is_these_bytes(tmp_path: Path) -> None:
    a = np.array([[1, 2], [3, 4]], dtype=np.float32)
    b = np.array([[0.5, -1], [0.25, 0], [6, 7]], dtype=np.float32)
    modules = {
        "model.layers.1.self_attn.v_proj": (a[:1], b[:2, :1]),
        "model.layers.0.self_attn.q_proj": (a, b),
    }
    adapter = write_adapter(tmp_path / "adapter", modules, r=2, lora_alpha=4, rank_pattern={"v_proj": 1})
    write_serving(Adapter.open(adapter), tmp_path / "out")
    weights, config = (tmp_path / "out" / WEIGHTS).read_bytes(), (tmp_path / "out" / CONFIG).read_bytes()
    # 118 = 0x76 bytes of text: with the ten before it, two times 64.
    head = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 10), }"
    assert weights[:128] == head.ljust(127) + b"\n"
    # alpha / r is 2 for q_proj and 4 for v_proj; B carries it.
    assert weights[128:] == struct.pack(
        "<20e", *(1, 2, 3, 4, 1, -2, 0.5, 0, 12, 14), *(1, 2, 2, 1, 0, 0, 0, 0, 0, 0)
    )  # fmt: skip
    head = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3), }"
    assert config == head.ljust(127) + b"\n" + struct.pack("<6i", 1, 0, 2, 3, 1, 1)


def oracle(modules: dict[str, tuple[np.ndarray, np.ndarray]], scaling: float) -> dict[tuple[int, int], np.ndarray]:
    """Return (module id, layer) -> unpadded row in float64, from the names of a Llama."""
    found = {}
    for name, (a, b) in modules.items():
        parts = name.split(".")
        row = [float(x) for x in a.astype(np.float64).ravel()]
        row += [float(x) * scaling for x in b.astype(np.float64).ravel()]
        found[LLAMA_IDS[parts[4]], int(parts[2])] = np.array(row)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=str)
@pytest.mark.parametrize("use_rslora", [False, True])
def test_every_module_of_a_llama_is_written(make_model: Make, tmp_path: Path, dtype: Any, use_rslora: bool) -> None:
    modules = llama_modules(dtype=dtype)
    folder = write_adapter(tmp_path / "adapter", modules, lora_alpha=3, use_rslora=use_rslora)
    written = write_serving(Adapter.open(folder), tmp_path / "out", base=SourceCheckpoint.open(make_model()))
    weights, config = np.load(tmp_path / "out" / WEIGHTS), np.load(tmp_path / "out" / CONFIG)
    expected = oracle(modules, 3 / (2 if use_rslora else 4))
    assert (weights.dtype, weights.shape) == (np.float16, (1, 14, 4 * (64 + 192)))
    assert (config.dtype, config.shape) == (np.int32, (1, 14, 3))
    assert config[0, :, 1].tolist() == [0] * 7 + [2] * 7
    assert config[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7] * 2
    assert (config[0, :, 2] == 4).all()
    for row, (module, layer, _) in zip(weights[0].astype(np.float64), config[0].tolist(), strict=True):
        exact = expected[module, layer]
        assert np.allclose(row[: len(exact)], exact, rtol=2.0**-11 + 2.0**-20, atol=2.0**-24)
        assert not row[len(exact) :].any()
    assert written["lora_weights"]["shape"] == list(weights.shape)
    assert written["lora_target_modules"] == list(IDS)[1:]


@settings(max_examples=40)
@given(
    ranks=st.tuples(st.sampled_from([1, 2, 5]), st.sampled_from([1, 3, 8])),
    inputs=st.sampled_from([1, 2, 7, 13]),
    outputs=st.sampled_from([1, 3, 11]),
    alpha=st.sampled_from([1, 2, 0.25, -3]),
    seed=st.integers(0, 1000),
)
def test_rows_of_awkward_shapes_are_a_then_scaled_b_then_zeros(
    ranks: tuple[int, int], inputs: int, outputs: int, alpha: float, seed: int
) -> None:
    modules = {
        "model.layers.3.self_attn.q_proj": pair(ranks[0], inputs, outputs, seed=seed),
        "model.layers.3.mlp.up_proj": pair(ranks[1], inputs, outputs + 1, seed=seed + 1),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        more = {"r": ranks[0], "lora_alpha": alpha, "rank_pattern": {"up_proj": ranks[1]}}
        write_serving(Adapter.open(write_adapter(folder / "adapter", modules, **more)), folder / "out")
        weights, config = np.load(folder / "out" / WEIGHTS), np.load(folder / "out" / CONFIG)
    assert config[0].tolist() == [[1, 3, ranks[0]], [7, 3, ranks[1]]]
    rows = [
        np.concatenate([a.ravel(), (b.astype(np.float64) * alpha / rank).ravel()])
        for rank, (a, b) in zip(ranks, modules.values(), strict=True)
    ]
    width = max(map(len, rows))
    assert weights.shape == (1, 2, width)
    for row, exact in zip(weights[0], rows, strict=True):
        padded = np.pad(exact, (0, width - len(exact)))
        assert np.allclose(row.astype(np.float64), padded, rtol=2.0**-11 + 2.0**-20, atol=2.0**-24)


def test_the_same_adapter_gives_the_same_bytes(tmp_path: Path) -> None:
    modules = llama_modules()
    adapters = [
        write_adapter(tmp_path / name, dict(order))
        for name, order in (("a", modules.items()), ("b", sorted(modules.items())))
    ]
    for adapter in adapters:
        write_serving(Adapter.open(adapter), tmp_path / f"{adapter.name}.out")
    for name in (WEIGHTS, CONFIG):
        assert (tmp_path / "a.out" / name).read_bytes() == (tmp_path / "b.out" / name).read_bytes()


def test_the_manifest_says_what_was_made_from_what(make_model: Make, tmp_path: Path) -> None:
    adapter, base = write_adapter(tmp_path / "adapter", llama_modules()), make_model()
    write_serving(Adapter.open(adapter), tmp_path / "out", base=SourceCheckpoint.open(base))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["kind"], manifest["max_lora_rank"], manifest["task_id"]) == ("lora", 4, None)
    assert manifest["adapter"]["path"] == str(adapter)
    assert manifest["base"]["path"] == str(base)
    for name in (WEIGHTS, CONFIG):
        assert manifest["sha256"][name] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", MODULES)
def test_every_listed_module_has_an_id(name: str) -> None:
    layers = "transformer.h" if name.startswith("attn.") else "model.layers"
    assert locate([f"{layers}.12.{name}"]) == {f"{layers}.12.{name}": (12, MODULES[name])}
    assert MODULES[name] in IDS


def test_q_k_and_v_are_enabled_together_in_the_engine() -> None:
    assert target_modules(["mlp_gate", "attn_v"]) == ["attn_q", "attn_k", "attn_v", "mlp_gate"]
    assert target_modules(["attn_qkv", "attn_dense"]) == ["attn_qkv", "attn_dense"]


UNSERVABLE: list[tuple[str, str]] = [
    ("model.layers.0.block_sparse_moe.experts.1.w1", "changes modules of mixtures of experts: .*experts.1.w1"),
    ("model.layers.0.mlp.experts.0.gate_proj", "changes modules of mixtures of experts"),
    ("model.layers.0.mlp.shared_expert.up_proj", "changes modules of mixtures of experts"),
    ("model.layers.0.mlp.gate", "changes modules without a LoRA id: model.layers.0.mlp.gate"),
    ("model.layers.0.mlp.gate_up_proj", "changes gate and up in one module"),
    ("gpt_neox.layers.0.attention.query_key_value", "changes q, k, v in one module"),
    ("lm_head", "changes modules outside of the decoder layers: lm_head"),
    ("vision_tower.encoder.layers.0.self_attn.q_proj", "changes modules outside of the decoder layers: vision_tower"),
    ("model.layers.0.q_proj", "changes modules without a LoRA id"),
]


@pytest.mark.parametrize(("name", "message"), UNSERVABLE)
def test_modules_that_cannot_be_served_are_named(tmp_path: Path, name: str, message: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1), name: pair(4, 6, 5, seed=2)})
    with pytest.raises(TrtbuildError, match=message) as error:
        write_serving(Adapter.open(adapter), tmp_path / "out")
    assert "can be merged" in error.value.hint
    assert not (tmp_path / "out").exists()


def test_two_modules_of_one_row_are_refused(tmp_path: Path) -> None:
    each = pair(4, 6, 5, seed=1)
    adapter = write_adapter(tmp_path / "adapter", {Q: each, Q.replace("model.", "language_model.model."): each})
    with pytest.raises(TrtbuildError, match="are both attn_q of layer 0"):
        write_serving(Adapter.open(adapter), tmp_path / "out")


def test_an_output_projection_that_is_not_square_is_refused(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", {"model.layers.0.self_attn.o_proj": pair(4, 128, 64, seed=1)})
    with pytest.raises(TrtbuildError, match=r"attn_dense is \[64, 128\] here, and TensorRT-LLM reads .*o_proj"):
        write_serving(Adapter.open(adapter), tmp_path / "out")


def test_an_mlp_without_a_gate_is_refused_with_its_base_and_noted_without(make_model: Make, tmp_path: Path) -> None:
    def drop_gates(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if "gate_proj" in name]:
            del tensors[name]

    up = {"model.layers.0.mlp.up_proj": pair(4, 64, 192, seed=1)}
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", up))
    with pytest.raises(
        TrtbuildError, match="has up_proj without gate_proj, so that mlp_gate does not exist: .*up_proj"
    ):
        write_serving(adapter, tmp_path / "out", base=SourceCheckpoint.open(make_model(edit=drop_gates)))
    notes = write_serving(adapter, tmp_path / "out")["notes"]
    assert len(notes) == 2
    assert "up_proj was taken as mlp_gate" in notes[1]


def test_a_base_that_does_not_fit_is_refused(make_model: Make, tmp_path: Path) -> None:
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", {Q: pair(4, 65, 64, seed=1)}))
    with pytest.raises(TrtbuildError, match=r"is \[64, 64\], the adapter needs \[64, 65\]"):
        write_serving(adapter, tmp_path / "out", base=SourceCheckpoint.open(make_model()))


@pytest.mark.parametrize(
    ("side", "value", "alpha", "message"),
    [
        (0, 65520.0, 8, "lora_A.weight reaches 65520 with its scaling, and float16 ends at 65504"),
        (1, 40000.0, 8, "lora_B.weight reaches 80000 with its scaling"),
        (1, 3e38, 8, "lora_B.weight reaches inf with its scaling"),
        (1, 0.0, 1e300, "lora_B.weight reaches .* with its scaling"),
        (0, np.nan, 8, "lora_A.weight holds NaN or infinite values, first in row 1"),
        (1, np.inf, 8, "lora_B.weight holds NaN or infinite values"),
    ],
)
def test_values_beyond_float16_are_an_error_and_leave_nothing(
    tmp_path: Path, side: int, value: float, alpha: float, message: str
) -> None:
    each = pair(4, 6, 5, seed=1)
    each[side][1, 2] = value
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", {Q: each}, lora_alpha=alpha))
    with pytest.raises(TrtbuildError, match=message):
        write_serving(adapter, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_the_largest_float16_is_no_overflow(tmp_path: Path) -> None:
    each = (np.full((1, 2), 65519.0, np.float32), np.full((2, 1), -65519.0, np.float32))
    write_serving(Adapter.open(write_adapter(tmp_path / "adapter", {Q: each}, r=1, lora_alpha=1)), tmp_path / "out")
    assert np.load(tmp_path / "out" / WEIGHTS).tolist() == [[[65504, 65504, -65504, -65504]]]


@pytest.mark.parametrize("task", [-1, 2**31])
def test_impossible_task_ids_are_refused(tmp_path: Path, task: int) -> None:
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)}))
    with pytest.raises(TrtbuildError, match=f"task id {task} is not possible"):
        write_serving(adapter, tmp_path / "out", task_id=task)


def test_the_command_fills_a_prefetch_folder_task_by_task(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    adapter, base, out = write_adapter(tmp_path / "adapter", llama_modules()), make_model(), tmp_path / "lora"
    for task in (1, 2):
        code, printed, _ = cli("lora", adapter, "-o", out, "--base", base, "--task-id", task)
        assert code == 0
        assert "14 modules, rank 4, rows of 1024 float16" in printed
        assert "--max_lora_rank 4 --lora_target_modules attn_q attn_k attn_v attn_dense mlp_h_to_4h" in printed
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert sorted(path.name for path in (out / "2").iterdir()) == ["manifest.json", CONFIG, WEIGHTS]
    code, _, err = cli("lora", adapter, "-o", out, "--task-id", 2)
    assert (code, "exists" in err and "--force" in err) == (1, True)
    assert cli("lora", adapter, "-o", out, "--task-id", 2, "--force")[0] == 0
    assert (out / "1" / WEIGHTS).exists()


def test_the_command_says_what_it_could_not_check(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", {Q: pair(4, 64, 64, seed=1)})
    code, printed, err = cli("lora", adapter, "-o", tmp_path / "out", "--json")
    assert code == 0
    assert "not checked against the base model" in err
    written = json.loads(printed)
    assert (written["output"], written["base"]) == (str(tmp_path / "out"), None)
    assert written["lora_weights"] == {"file": WEIGHTS, "dtype": "float16", "shape": [1, 1, 4 * 128]}
    code, printed, err = cli("lora", adapter, "-o", tmp_path / "out", "--force", "--base", make_model(), "--json")
    assert "the base is bfloat16" in err
    assert json.loads(printed)["notes"] == [
        line.removeprefix("note: ") for line in err.splitlines() if "note: " in line
    ]


def test_the_command_never_replaces_what_it_reads_or_did_not_write(cli: Cli, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)})
    assert cli("lora", adapter, "-o", adapter, "--force")[0] == 2
    assert cli("lora", adapter, "-o", adapter, "--task-id", 1)[0] == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    code, _, err = cli("lora", adapter, "-o", tmp_path / "mine", "--force")
    assert (code, "was not made by trtbuild" in err) == (1, True)
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_errors_of_the_command_have_hints_and_exit_codes(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("lora", tmp_path / "nowhere", "-o", tmp_path / "out")
    assert (code, "error: " in err, "hint: " in err) == (1, True, True)
    assert cli("lora", tmp_path)[0] == 2
    assert cli("lora", tmp_path, "-o", tmp_path / "out", "--task-id", "-1")[0] == 2


def test_the_client_sends_the_arrays_as_they_are(tmp_path: Path) -> None:
    write_serving(Adapter.open(write_adapter(tmp_path / "adapter", llama_modules())), tmp_path / "out")
    for name, file, dtype, dims in (
        ("lora_weights", WEIGHTS, "FP16", (-1, -1)),
        ("lora_config", CONFIG, "INT32", (-1, 3)),
    ):
        array = np.load(tmp_path / "out" / file)
        tensor = encode(name, array, TensorSpec(dtype, dims), is_batched=True)
        assert (tensor.shape, tensor.data) == (array.shape, array.tobytes())


def test_served_rows_and_merged_weights_are_the_same_adapter(make_model: Make, tmp_path: Path) -> None:
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", llama_modules(), use_rslora=True))
    base = SourceCheckpoint.open(make_model(torch_dtype="float32"))
    write_serving(adapter, tmp_path / "out", base=base)
    rows, config = np.load(tmp_path / "out" / WEIGHTS)[0], np.load(tmp_path / "out" / CONFIG)[0]
    names = {identifier: name for name, identifier in LLAMA_IDS.items()}
    changed = merged(base, adapter).tensors
    with TensorReader() as reader:
        for row, (module, layer, rank) in zip(rows.astype(np.float32), config.tolist(), strict=True):
            name = next(name for name in changed if name.startswith(f"model.layers.{layer}.") and names[module] in name)
            outputs, inputs = changed[name].shape
            a = row[: rank * inputs].reshape(rank, inputs)
            b = row[rank * inputs : rank * (inputs + outputs)].reshape(outputs, rank)
            added = changed[name].read_rows(reader, 0, outputs) - base.tensors[name].read_rows(reader, 0, outputs)
            assert np.allclose(b @ a, added, atol=2.0**-8)
