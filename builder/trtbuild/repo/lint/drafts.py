"""Rules about speculation with a draft model: how BLS is wired to it, and whether the two engines go together."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.names import DRAFT
from trtbuild.repo.lint.agreement import other_decoupling
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.trtllm.backend_parameters import BOOLEANS
from trtbuild.trtllm.draft_pair import disagreements, draft_limit, gives_logits
from trtbuild.trtllm.engine import Engine

_KEY = "tensorrt_llm_draft_model_name"


def wiring(repository: Repository) -> Iterator[Problem]:
    """Find BLS models that cannot call their draft model, or promise more than the engines do."""
    for bls, core, draft in _trios(repository):
        if draft.folder == core.folder:
            yield _problem(bls, _KEY, f"{_KEY} is '{draft.folder}', which is the target itself", "name a smaller model")
            continue
        yield from other_decoupling(draft, bls)
        yield from _promises(bls, _engine(repository, core), _engine(repository, draft))


def _promises(bls: Model, target: Engine | None, draft: Engine | None) -> Iterator[Problem]:
    asked, most = bls.values.get("max_draft_len", ""), draft_limit(target) if target is not None else 0
    if most and asked.isascii() and asked.isdigit() and int(asked) > most:
        yield _problem(
            bls,
            "max_draft_len",
            f"max_draft_len is {asked}, the target's engine was built for {most}",
            f"use at most {most}, or build the engine for more",
        )
    if draft is not None and BOOLEANS.get(bls.values.get("draft_logits", "")) and not gives_logits(draft):
        yield _problem(
            bls,
            "draft_logits",
            f"draft_logits is true, and {draft.path / 'config.json'} was built without gather_generation_logits",
            "set it to false, or build the draft model with engine.gather_generation_logits: true",
        )


def engines(repository: Repository) -> Iterator[Problem]:
    """Find draft models that cannot draft for their target."""
    for _, core, draft in _trios(repository):
        target, its = _engine(repository, core), _engine(repository, draft)
        if target is None or its is None or draft.folder == core.folder:
            continue
        for found in disagreements(target, its):
            yield _problem(draft, "gpt_model_path", found.message, found.hint)


def reuse(repository: Repository) -> Iterator[Problem]:
    """Find targets and draft models that read the whole text anew in every step."""
    for _, core, draft in _trios(repository):
        for model in (core, draft):
            if model.runs_engine and BOOLEANS.get(model.values.get("enable_kv_cache_reuse", "")) is False:
                yield _problem(
                    model,
                    "enable_kv_cache_reuse",
                    "enable_kv_cache_reuse is off, and every step of speculation sends the whole text again",
                    "set it to true",
                )


def unused(repository: Repository) -> Iterator[Problem]:
    """Find draft models that no BLS model calls."""
    draft = repository.models.get(DRAFT)
    called = {model.values.get(_KEY) for model in repository.parsed()}
    if draft is not None and CORE in repository.models and draft.folder not in called:
        yield Problem(
            draft.file,
            f"no model names {DRAFT} as its draft model, and it takes a GPU's memory",
            f"set {_KEY} of tensorrt_llm_bls to '{DRAFT}', or remove the model",
        )


def _trios(repository: Repository) -> Iterator[tuple[Model, Model, Model]]:
    """Yield each model that speculates with its target and its draft model, as far as all can be read."""
    for bls in repository.parsed():
        names = (bls.values.get("tensorrt_llm_model_name") or CORE, bls.values.get(_KEY, ""))
        core, draft = (repository.models.get(name) for name in names)
        if core is not None and draft is not None and core.config is not None and draft.config is not None:
            yield bls, core, draft


def _engine(repository: Repository, model: Model) -> Engine | None:
    folder = repository.facts.engines.get(model.folder)
    return folder.engine if folder is not None else None


def _problem(model: Model, key: str, message: str, fix: str) -> Problem:
    return Problem(model.file, message, fix, model.parameter_line(key))


RULES: dict[str, Rule] = {
    "draft-model": Rule(
        "error", wiring, "a BLS model that cannot call its draft model, or promises more draft tokens or logits than the engines give",
        "The BLS model asks both in the same way, so both are decoupled or neither; more draft tokens than `max_draft_len` of the target's engine are refused by it, and "
        "logits come only from an engine built with `gather_generation_logits` (Triton specification 1.5, 5.7).",
        "Wire it to a model of its own, and state what the engines were built for.",
    ),
    "draft-engines": Rule(
        "error", engines, "engines of a target and a draft model that do not go together",
        "Vocabulary, release, `tokens_per_block` and dtype of logits must be equal; the target is built for `draft_tokens_external`, the draft model for no speculation, and "
        "for texts and batches as large as the target's (checkpoint specification 4.4, 4.5). No request with draft tokens works, or none is ever accepted.",
        "Build the draft model for its target, or the target for draft tokens.",
    ),
    "draft-reuse": Rule(
        "warning", reuse, "a target or draft model that does not keep the blocks of its KV cache",
        "Every step is a request with the whole text so far; without reuse the text is computed again each time, which costs more than speculation saves.",
        "Set `enable_kv_cache_reuse` to true in both.",
    ),
    "draft-unused": Rule(
        "warning", unused, "a model `tensorrt_llm_draft` that no BLS model calls", "It is loaded, takes memory of a GPU, and serves nobody (Triton specification 1.5).",
        "Name it in the BLS model, or remove it.",
    ),
}  # fmt: skip
