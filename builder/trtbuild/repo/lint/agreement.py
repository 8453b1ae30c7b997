"""Rules about values that several models of a repository for language models must share."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from trtbuild.repo.lint.findings import Problem
from trtbuild.repo.lint.repository import Model, Repository

CORE = "tensorrt_llm"
CHAIN = ("preprocessing", CORE, "postprocessing", "ensemble", "tensorrt_llm_bls")


def batch_sizes(repository: Repository) -> Iterator[Problem]:
    """Find models of the chain that take other batches than the core."""
    for model, core in _chain(repository, CHAIN):
        if model.config.max_batch_size != core.config.max_batch_size:
            yield Problem(
                model.file,
                f"max_batch_size is {model.config.max_batch_size}, {core.file} has {core.config.max_batch_size}",
                "use one value for all of them",
            )


def decoupled(repository: Repository) -> Iterator[Problem]:
    """Find BLS models that stream where the core does not, or the other way round."""
    for model, core in _chain(repository, ("tensorrt_llm_bls",)):
        mine, its = (m.config.model_transaction_policy.decoupled for m in (model, core))
        if mine != its:
            yield Problem(
                model.file,
                f"decoupled is {str(mine).lower()}, {core.file} has {str(its).lower()}",
                "set model_transaction_policy.decoupled to the same value in both",
            )


def tokenizer_dirs(repository: Repository) -> Iterator[Problem]:
    """Find a postprocessing that decodes with another tokenizer than preprocessing encodes with."""
    models = [repository.models.get(name) for name in ("preprocessing", "postprocessing")]
    read = [model for model in models if model is not None and model.config is not None]
    folders = [model.parameters().get("tokenizer_dir", "") for model in read]
    if len(read) == 2 and folders[0] != folders[1]:
        yield Problem(
            read[1].file,
            f"tokenizer_dir is '{folders[1]}', {read[0].file} has '{folders[0]}'",
            "use the same folder in both",
        )


def postprocessing_instances(repository: Repository) -> Iterator[Problem]:
    """Find a postprocessing with several instances, which would take the pieces of one stream in turns."""
    model = repository.models.get("postprocessing")
    groups = model.config.instance_group if model is not None and model.config is not None else ()
    count = sum(max(group.count, 1) for group in groups)
    if model is not None and count > 1:
        yield Problem(model.file, f"postprocessing has {count} instances, streamed text needs 1", "set count to 1")


def llm_api_settings(repository: Repository) -> Iterator[Problem]:
    """Find models of the LLM API whose model.yaml says something else than config.pbtxt, which a server may read alone.

    launch_triton_server.py tells the server not to complete configurations; streams then hang until their clients give up (Triton
    specification 2.3).
    """
    for model in repository.parsed():
        for name in (file for file in model.files if file.endswith("/model.yaml")):
            try:
                data = yaml.safe_load((repository.path / name).read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                yield Problem(name, f"it cannot be read: {error}", "correct it, or render again")
                continue
            theirs = data.get("triton_config") if isinstance(data, dict) else None
            if not isinstance(theirs, dict) or "decoupled" not in theirs:
                yield Problem(name, "it has no triton_config with the key 'decoupled'", "add it")
                continue
            policy = model.config.model_transaction_policy
            mine = {"decoupled": policy.decoupled, "max_batch_size": model.config.max_batch_size}
            for key, value in mine.items():
                if (other := theirs.get(key, 0)) != value:
                    yield Problem(
                        name,
                        f"triton_config.{key} is {str(other).lower()}, {model.file} says {str(value).lower()}",
                        "set both to the same value: a server that does not complete configurations reads only the latter",
                    )


def _chain(repository: Repository, names: tuple[str, ...]) -> Iterator[tuple[Model, Model]]:
    """Yield the models of these names with the core, as far as both can be read."""
    core = repository.models.get(CORE)
    for name in names:
        model = repository.models.get(name)
        if core is not None and core.config is not None and model is not None and model.config is not None:
            yield model, core
