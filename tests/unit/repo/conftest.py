"""A deployment whose checkpoint and tokenizer are just enough to render a repository from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.repo.context import RepoContext
from trtbuild.repo.deployment import context_of
from trtbuild.repo.locate import templates_dir
from trtbuild.repo.render import render
from trtbuild.spec import parse


def make_checkpoint(folder: Path) -> Path:
    """Write a checkpoint folder: a configuration, a tokenizer, and a rank file that nobody opens."""
    (folder / "tokenizer").mkdir(parents=True)
    config = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "logits_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.safetensors").write_bytes(b"weights")
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint folder."""
    return make_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return an engine folder: its configuration, and a rank file that nobody opens."""
    folder = tmp_path / "engine"
    folder.mkdir()
    config = {
        "version": "1.2.0",
        "build_config": {"max_batch_size": 16},
        "pretrained_config": {"logits_dtype": "float16"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.engine").write_bytes(b"engine")
    return folder


def cut_engine(folder: Path, *, tp_size: int = 1, pp_size: int = 1) -> None:
    """Make an engine one of so many ranks."""
    content = json.loads((folder / "config.json").read_text())
    world_size = tp_size * pp_size
    content["pretrained_config"]["mapping"] = {"tp_size": tp_size, "pp_size": pp_size, "world_size": world_size}
    (folder / "config.json").write_text(json.dumps(content))
    for rank in range(world_size):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")


@pytest.fixture
def context(checkpoint: Path, engine: Path) -> Callable[..., RepoContext]:
    """Return a function that makes a context from sections of trtbuild.yaml."""

    def make(*, path_map: tuple[str, str] | None = None, engine_later: bool = False, **sections: Any) -> RepoContext:
        deployment = parse({"model": {"path": str(checkpoint)}, **sections}, origin="test")
        needed = engine if deployment.target == "tensorrt" else None
        return context_of(
            deployment, checkpoint_dir=checkpoint, engine_dir=needed, engine_later=engine_later, path_map=path_map
        )

    return make


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """Return a copy of the templates, which a test may change."""
    return Path(shutil.copytree(templates_dir(), tmp_path / "templates", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="session")
def rendered_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a rendered repository that tests copy, since writing one to the disk is slow."""
    folder = tmp_path_factory.mktemp("rendered")
    checkpoint = make_checkpoint(folder / "checkpoint")
    deployment = parse({"model": {"path": str(checkpoint)}}, origin="test")
    return render(context_of(deployment, checkpoint_dir=checkpoint), folder / "repository").path


@pytest.fixture
def repository(rendered_once: Path, tmp_path: Path) -> Path:
    """Return a rendered repository, which a test may change."""
    return Path(shutil.copytree(rendered_once, tmp_path / "repository"))
