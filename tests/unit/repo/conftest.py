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

CORE = """{% from "_macros/config.pbtxt.j2" import parameter %}
backend: "python"
{% include "_macros/core.pbtxt.j2" %}
{{ parameter("gpt_model_path", checkpoint_dir) }}
{{ parameter("num_blocks", num_blocks) }}
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint folder: a configuration and a tokenizer, no weights."""
    folder = tmp_path / "checkpoint"
    (folder / "tokenizer").mkdir(parents=True)
    config = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "logits_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return an engine folder: its configuration only."""
    folder = tmp_path / "engine"
    folder.mkdir()
    config = {
        "version": "1.2.0",
        "build_config": {"max_batch_size": 16},
        "pretrained_config": {"logits_dtype": "float16"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def context(checkpoint: Path, engine: Path) -> Callable[..., RepoContext]:
    """Return a function that makes a context from sections of trtbuild.yaml."""

    def make(*, path_map: tuple[str, str] | None = None, **sections: Any) -> RepoContext:
        deployment = parse({"model": {"path": str(checkpoint)}, **sections}, origin="test")
        needed = engine if deployment.target == "tensorrt" else None
        return context_of(deployment, checkpoint_dir=checkpoint, engine_dir=needed, path_map=path_map)

    return make


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """Return a copy of the templates, with a core model of its own as the variant `reference`."""
    folder = tmp_path / "templates"
    shutil.copytree(templates_dir(), folder, ignore=shutil.ignore_patterns("__pycache__", "reference"))
    core = folder / "reference" / "tensorrt_llm"
    (core / "1").mkdir(parents=True)
    (core / "config.pbtxt.j2").write_text(CORE)
    (core / "1" / "model.py").write_text("")
    return folder


@pytest.fixture
def repository(context: Callable[..., RepoContext], templates: Path, tmp_path: Path) -> Path:
    """Return a rendered repository."""
    return render(context(), tmp_path / "repository", templates=templates).path
