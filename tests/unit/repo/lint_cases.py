"""Good repositories of every kind, and the mistakes that are made in copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.repo.context import RepoContext, build_context
from trtbuild.repo.deployment import context_of
from trtbuild.repo.render import render
from trtbuild.spec import parse

Mutation = Callable[["Case"], None]

#: What the checkpoint of a good repository says.
CHECKPOINT = {"vocab_size": 128, "max_position_embeddings": 256, "rotary_scaling": None, "logits_dtype": "float16"}
#: config.json of an engine of two ranks.
ENGINE: dict[str, Any] = {
    "version": "1.2.1",
    "build_config": {
        "max_batch_size": 16, "max_beam_width": 1, "max_seq_len": 256, "max_num_tokens": 8192, "max_draft_len": 0, "weight_streaming": False,
        "plugin_config": {"use_paged_context_fmha": True, "lora_plugin": None, "tokens_per_block": 32},
    },
    "pretrained_config": {"logits_dtype": "float16", "num_hidden_layers": 3, "mapping": {"tp_size": 2, "pp_size": 1, "world_size": 2}},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A repository with what it names, all below one folder.

    Attributes:
        root: the folder; the repository's parent.
    """

    root: Path

    @property
    def repository(self) -> Path:
        """The repository."""
        return self.root / "repository"

    def config(self, model: str) -> Path:
        """Return a model's config.pbtxt."""
        return self.repository / model / "config.pbtxt"


def make_files(root: Path) -> None:
    """Write a tokenizer, a checkpoint folder and an engine."""
    (root / "checkpoint" / "tokenizer").mkdir(parents=True)
    (root / "checkpoint" / "config.json").write_text(json.dumps({"architecture": "LlamaForCausalLM", **CHECKPOINT}))
    (root / "checkpoint" / "rank0.safetensors").write_bytes(b"weights")
    (root / "checkpoint" / "tokenizer" / "tokenizer.json").write_text("{}")
    (root / "checkpoint" / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (root / "engine").mkdir()
    (root / "engine" / "config.json").write_text(json.dumps(ENGINE))
    for rank in range(2):
        (root / "engine" / f"rank{rank}.engine").write_bytes(b"engine")
    (root / "serve.sh").write_text("exec tritonserver --model-repository repository --model-control-mode none\n")


def make_draft(root: Path, **sections: Any) -> None:
    """Write the build of a draft model with sections of its trtbuild.yaml, and let the target's engine take draft tokens."""
    draft, config = root / "draft", json.loads(json.dumps(ENGINE))
    shutil.copytree(root / "checkpoint", draft / "checkpoint")
    shutil.copytree(root / "engine", draft / "engine")
    (draft / "trtbuild.yaml").write_text(
        json.dumps({"target": "tensorrt", "model": {"path": str(draft / "checkpoint")}, **sections})
    )
    config["build_config"] |= {"max_draft_len": 0, "speculative_decoding_mode": 1, "gather_generation_logits": True}
    (draft / "engine" / "config.json").write_text(json.dumps(config))
    config["build_config"] |= {"max_draft_len": 4, "speculative_decoding_mode": 2, "max_seq_len": 260}
    (root / "engine" / "config.json").write_text(json.dumps(config))


def make(root: Path, *, draft: dict[str, Any] | None = None, **sections: Any) -> Case:
    """Render a good repository from sections of trtbuild.yaml, and of a draft model's, into root/repository."""
    make_files(root)
    if draft is not None:
        make_draft(root, **draft)
    if sections.get("target") == "tensorrt":
        sections = {"parallel": {"tp_size": 2}, **sections}
    deployment = parse({"model": {"path": str(root / "checkpoint")}, **sections}, origin="test")
    context: RepoContext
    if deployment.target == "pytorch":
        context = build_context(
            deployment, CHECKPOINT, checkpoint_dir=root / "checkpoint", tokenizer_dir=root / "checkpoint" / "tokenizer"
        )
    else:
        engine = root / "engine" if deployment.target == "tensorrt" else None
        context = context_of(
            deployment,
            checkpoint_dir=root / "checkpoint",
            engine_dir=engine,
            draft_dir=None if draft is None else root / "draft",
        )
    render(context, root / "repository")
    return Case(root)


def copy(case: Case, root: Path) -> Case:
    """Return a copy, in which every path leads to what lies in the copy."""
    shutil.copytree(case.root, root, dirs_exist_ok=True)
    for file in root.rglob("*"):
        if file.suffix in (".pbtxt", ".yaml"):
            file.write_text(file.read_text().replace(str(case.root), str(root)))
    return Case(root)


def swap(model: str, old: str, new: str) -> Mutation:
    """Return a mutation that replaces the first `old` in a model's config.pbtxt."""
    return swap_in(f"repository/{model}/config.pbtxt", old, new)


def swap_in(name: str, old: str, new: str) -> Mutation:
    """Return a mutation that replaces the first `old` in a file."""

    def mutate(case: Case) -> None:
        file = case.root / name
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{old} is not in {name}"
        file.write_text(text.replace(old, new, 1), encoding="utf-8")

    return mutate


def cut_engine(case: Case) -> None:
    """Cut a rank of an engine whose manifest lists its files."""
    manifest.write(case.root / "engine", manifest.header("engine"))
    (case.root / "engine" / "rank0.engine").write_bytes(b"eng")


def lose_engine(case: Case) -> None:
    """Remove every rank of an engine whose manifest lists its files."""
    manifest.write(case.root / "engine", manifest.header("engine"))
    for file in (case.root / "engine").glob("rank*.engine"):
        file.unlink()


def dead_link(name: str, target: str = "/nowhere/at/all") -> Mutation:
    """Return a mutation that adds a symbolic link."""

    def mutate(case: Case) -> None:
        (case.root / name).symlink_to(target)

    return mutate


def parameter(key: str, value: str, model: str = "tensorrt_llm") -> Mutation:
    """Return a mutation that sets a parameter, instead of the one that is there if there is one."""

    def mutate(case: Case) -> None:
        without(key, model)(case)
        with case.config(model).open("a", encoding="utf-8") as file:
            file.write(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n')

    return mutate


def without(key: str, model: str = "tensorrt_llm") -> Mutation:
    """Return a mutation that removes a parameter."""

    def mutate(case: Case) -> None:
        lines = case.config(model).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if f'key: "{key}"' not in line]
        case.config(model).write_text("".join(kept), encoding="utf-8")

    return mutate


def line_with(part: str, new: str = "", model: str = "tensorrt_llm") -> Mutation:
    """Return a mutation that replaces the only line with a text."""

    def mutate(case: Case) -> None:
        lines = case.config(model).read_text(encoding="utf-8").splitlines(keepends=True)
        assert sum(part in line for line in lines) == 1, part
        case.config(model).write_text("".join(new if part in line else line for line in lines), encoding="utf-8")

    return mutate


def add(text: str, model: str = "tensorrt_llm") -> Mutation:
    """Return a mutation that adds a line to a model's config.pbtxt."""

    def mutate(case: Case) -> None:
        with case.config(model).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    return mutate


def engine(*path: str, value: Any, of: str = "engine") -> Mutation:
    """Return a mutation that changes one value of the engine's config.json; the path "" is the whole."""

    def mutate(case: Case) -> None:
        file = case.root / of / "config.json"
        data = json.loads(file.read_text())
        node = data
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        file.write_text(json.dumps(data))

    return mutate


def both(*mutations: Mutation) -> Mutation:
    """Return a mutation made of several."""

    def mutate(case: Case) -> None:
        for mutation in mutations:
            mutation(case)

    return mutate


def write(name: str, text: str) -> Mutation:
    """Return a mutation that writes a file below the root."""

    def mutate(case: Case) -> None:
        (case.root / name).write_text(text, encoding="utf-8")

    return mutate


def remove(name: str) -> Mutation:
    """Return a mutation that deletes a file or a folder below the root."""

    def mutate(case: Case) -> None:
        place = case.root / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return mutate


def link(name: str, to: str) -> Mutation:
    """Return a mutation that puts a link to a place below the root."""

    def mutate(case: Case) -> None:
        (case.root / name).unlink(missing_ok=True)
        (case.root / name).symlink_to(case.root / to)

    return mutate
