"""Adapter folders: what is read from them, and what is refused, by name, from headers and adapter_config.json alone."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.lora.adapters import CONFIG, Q, pair, write_adapter

from trtbuild.errors import TrtbuildError
from trtbuild.lora import Adapter

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1050813074\n"
V = "model.layers.10.self_attn.v_proj"
PREFIX = "base_model.model."


def test_names_places_and_scaling_are_read(tmp_path: Path) -> None:
    modules = {Q: pair(4, 6, 5, seed=1), V: pair(4, 6, 3, seed=2)}
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", modules))
    assert [module.name for module in adapter.modules] == [Q, V]
    assert (adapter.rank, adapter.alpha, adapter.use_rslora) == (4, 8.0, False)
    assert (adapter.base_model_name, adapter.max_rank) == ("someone/model", 4)
    first = adapter.modules[0]
    assert (first.rank, first.in_features, first.out_features, first.scaling) == (4, 6, 5, 2.0)
    assert first.a.name == f"{PREFIX}{Q}.lora_A.weight"
    assert (first.a.shape, first.b.shape) == ((4, 6), (5, 4))


def test_rank_stabilized_scaling_divides_by_the_root_of_the_rank(tmp_path: Path) -> None:
    adapter = Adapter.open(write_adapter(tmp_path / "adapter", {Q: pair(9, 6, 5, seed=1)}, r=9, use_rslora=True))
    assert adapter.modules[0].scaling == 8 / math.sqrt(9)


@pytest.mark.parametrize(
    ("pattern", "applies"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        (Q, True),
        (f"^{Q}", True),
        (r".*\.layers\.0\..*", True),
        ("proj", False),
        (r"model.layers.1.self_attn.q_proj", False),
        ("v_proj", False),
    ],
)
def test_patterns_match_whole_names_or_their_end_after_a_dot(tmp_path: Path, pattern: str, applies: bool) -> None:
    rank = 2 if applies else 4
    folder = write_adapter(
        tmp_path / "adapter", {Q: pair(rank, 6, 5, seed=1)}, rank_pattern={pattern: 2}, alpha_pattern={pattern: 3.0}
    )
    module = Adapter.open(folder).modules[0]
    assert module.rank == rank
    assert module.scaling == (3.0 / 2 if applies else 8 / 4)


def test_rank_and_alpha_patterns_are_looked_up_apart(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "adapter",
        {Q: pair(2, 6, 5, seed=1)},
        rank_pattern={"q_proj": 2},
        alpha_pattern={"self_attn.q_proj": 5},
    )
    assert Adapter.open(folder).modules[0].scaling == 5 / 2


def test_layers_to_transform_and_harmless_fields_are_no_problem(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "adapter",
        {Q: pair(4, 6, 5, seed=1)},
        layers_to_transform=[0],
        layers_pattern="layers",
        lora_dropout=0.1,
        init_lora_weights="gaussian",
        modules_to_save=[],
        a_field_of_the_future=None,
    )
    assert len(Adapter.open(folder).modules) == 1


def test_the_identity_changes_with_the_config(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)})
    first = Adapter.open(folder).identity()
    write_adapter(folder, {Q: pair(4, 6, 5, seed=1)}, lora_alpha=9)
    assert first["config_sha256"] != Adapter.open(folder).identity()["config_sha256"]
    assert first["files"][0]["bytes"] == (folder / "adapter_model.safetensors").stat().st_size
    json.dumps(first, allow_nan=False)


REFUSED_FIELDS: list[tuple[str, Any, str]] = [
    ("peft_type", "LOHA", "peft_type='LOHA' is not supported"),
    ("peft_type", None, "peft_type=None is not supported"),
    ("use_dora", True, "use_dora=True is not supported: DoRA"),
    ("modules_to_save", ["lm_head"], r"modules_to_save=\['lm_head'\] is not supported"),
    ("trainable_token_indices", [7], "trainable_token_indices="),
    ("target_parameters", ["experts.gate_up_proj"], "target_parameters="),
    ("layer_replication", [[0, 4]], "layer_replication="),
    ("lora_bias", True, "lora_bias=True"),
    ("alora_invocation_tokens", [1, 2], "alora_invocation_tokens="),
    ("use_qalora", True, "use_qalora=True"),
    ("use_bdlora", {"nblocks": 2}, "use_bdlora="),
    ("arrow_config", {"top_k": 1}, "arrow_config="),
    ("bias", "all", "bias='all' is not supported"),
    ("bias", "lora_only", "bias='lora_only' is not supported"),
    ("init_lora_weights", "pissa_niter_4", "init_lora_weights='pissa_niter_4' is not supported: it changes"),
    ("init_lora_weights", "loftq", "init_lora_weights='loftq'"),
    ("r", 0, "rank r=0 is not a whole number"),
    ("r", True, "rank r=True is not"),
    ("r", "8", "rank r='8' is not"),
    ("r", None, "rank r=None"),
    ("lora_alpha", None, "alpha lora_alpha=None is not a finite number"),
    ("lora_alpha", float("nan"), "alpha lora_alpha=nan"),
    ("lora_alpha", 10**400, "is not a finite number"),
    ("lora_alpha", False, "alpha lora_alpha=False"),
    ("use_rslora", "yes", "use_rslora='yes' is not true or false"),
    ("fan_in_fan_out", 1, "fan_in_fan_out=1 is not true or false"),
    ("rank_pattern", [4], r"rank_pattern holds \[4\], not an object"),
    ("rank_pattern", {"q_proj": 1.5}, "rank q_proj=1.5"),
    ("alpha_pattern", {"q_proj": None}, "alpha q_proj=None"),
    ("alpha_pattern", {"(": 1}, "not a regular expression"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), REFUSED_FIELDS, ids=lambda value: str(value)[:40])
def test_what_is_more_than_a_and_b_is_refused_by_field(tmp_path: Path, field: str, value: Any, message: str) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)}, **{field: value})
    (folder / "adapter_model.safetensors").write_bytes(b"")  # nothing but the config is needed to know
    with pytest.raises(TrtbuildError, match=message) as error:
        Adapter.open(folder)
    assert "adapter_config.json" in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (f"{PREFIX}model.embed_tokens.lora_embedding_A", (4, 8), "holds LoRA on an embedding: .*lora_embedding_A"),
        (f"{PREFIX}{Q}.lora_magnitude_vector", (5,), "holds a DoRA magnitude vector: .*lora_magnitude_vector"),
        (f"{PREFIX}{Q}.lora_B.bias", (5,), "holds a bias of A or B"),
        (f"{PREFIX}{Q}.bias", (5,), "holds a trained bias"),
        (f"{PREFIX}{Q}.lora_A.default.weight", (4, 6), "under a name that PEFT does not save"),
        (f"{PREFIX}lm_head.weight", (9, 6), "a weight saved whole .*lm_head.weight"),
        (f"{PREFIX}model.embed_tokens.weight", (9, 6), "a weight saved whole .*embed_tokens.weight"),
        (f"{PREFIX}{V}.lora_A.weight", (4, 6), f"module {V} has lora_A but no lora_B"),
        (f"{PREFIX}{V}.lora_B.weight", (5, 4), f"module {V} has lora_B but no lora_A"),
        (f"{Q}.lora_A.weight", (4, 6), "are the same tensor of the same module"),
    ],
)
def test_tensors_beside_a_and_b_are_refused_by_name(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    more = {name: np.zeros(shape, dtype=np.float32)}
    folder = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)}, more=more)
    with pytest.raises(TrtbuildError, match=message) as error:
        Adapter.open(folder)
    assert error.value.hint


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3, 6), (5, 3), "is 4 in adapter_config.json, A .3, 6. has 3"),
        ((4, 6), (5, 3), "B .5, 3. has 3"),
        ((4, 6, 3, 3), (5, 4, 1, 1), r"has the shape \[4, 6, 3, 3\]; A is \[r, in\]"),
        ((4, 0), (5, 4), r"has the shape \[4, 0\]"),
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: (np.zeros(a, np.float32), np.zeros(b, np.float32))})
    with pytest.raises(TrtbuildError, match=message):
        Adapter.open(folder)


def test_integers_are_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: (np.zeros((4, 6), np.int8), np.zeros((5, 4), np.int8))})
    with pytest.raises(TrtbuildError, match="lora_A.weight is I8, which is not supported"):
        Adapter.open(folder)


def test_an_adapter_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="holds no lora_A and no lora_B"):
        Adapter.open(write_adapter(tmp_path / "adapter", {}))


class Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was opened",))


def only_pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Explosive()))


def as_pipe_name(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").mkdir()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickled": (only_pickled, "pickled adapter_model.bin only, which is never opened"),
    "weights are an LFS pointer": (lambda f: (f / "adapter_model.safetensors").write_text(LFS), "Git LFS pointer"),
    "config is an LFS pointer": (lambda f: (f / "adapter_config.json").write_text(LFS), "Git LFS pointer"),
    "no weights": (lambda f: (f / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), "has no adapter_config.json"),
    "no JSON": (lambda f: (f / "adapter_config.json").write_text("{"), "not valid JSON"),
    "a JSON list": (lambda f: (f / "adapter_config.json").write_text("[]"), "holds a list, not an object"),
    "truncated": (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x10"), "not a safetensors file"),
    "a folder": (as_pipe_name, "not a regular file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused(tmp_path: Path, case: str) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)})
    spoil, message = BROKEN[case]
    spoil(folder)
    with pytest.raises(TrtbuildError, match=message) as error:
        Adapter.open(folder)
    assert error.value.hint


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", {Q: pair(4, 6, 5, seed=1)})
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Explosive()))
    assert len(Adapter.open(folder).modules) == 1


def test_folders_that_are_something_else_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="does not exist"):
        Adapter.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(TrtbuildError, match="is a file, not an adapter folder"):
        Adapter.open(tmp_path / "file")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(TrtbuildError, match="it looks like a model folder"):
        Adapter.open(tmp_path)
