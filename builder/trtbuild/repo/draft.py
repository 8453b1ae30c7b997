"""The model `tensorrt_llm_draft`: the build folder it comes from, whether it can draft for the target, and what is printed of it.

A draft model is a deployment of its own, built like any other; its trtbuild.yaml says how its engine is run (KV cache, GPUs), and
the target's says how both are served. For the target `reference` its checkpoint takes the place of an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from trtbuild.arch.registry import resolve
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.limits import ResolvedLimits, positions
from trtbuild.names import DRAFT, TOKENIZER_FOLDER
from trtbuild.repo.engine_context import PERIODS_MS
from trtbuild.repo.engine_settings import Value, engine_parameters
from trtbuild.repo.placement import beside, lies_within, placement, require_room_for_two
from trtbuild.repo.served import read_served
from trtbuild.source import read_config, read_json
from trtbuild.spec import Deployment, Section, load
from trtbuild.spec.section import Positive
from trtbuild.trtllm.draft_pair import Disagreement, disagreements, draft_alone, draft_limit, gives_logits
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import Release

logger = logging.getLogger(__name__)

MODE = "draft_target"
_SAME_TOKENIZER = "use a draft model of the same family, with the same tokenizer"
#: Target -> folder of a build that its core runs.
_SERVED = {"tensorrt": "engine", "reference": "checkpoint"}


class DraftModel(Section, frozen=True, kw_only=True):
    """What templates print of a draft model: its own values of names that the core has too, and what BLS must know.

    Attributes:
        checkpoint_dir: its checkpoint, as the server sees it.
        core_instances: of its engine.
        engine_parameters: of its engine.
        max_draft_len: draft tokens that the target takes in a step; None when nothing says so.
        has_logits: whether it can give logits.
    """

    checkpoint_dir: str
    core_instances: Positive = 1
    engine_parameters: dict[str, Value] = msgspec.field(default_factory=dict)
    max_draft_len: Positive | None = None
    has_logits: bool = False

    def of_core(self) -> dict[str, Any]:
        """Return what the template of the core prints for it instead of the target's values."""
        return {
            "core_name": DRAFT,
            "checkpoint_dir": self.checkpoint_dir,
            "core_instances": self.core_instances,
            "engine_parameters": self.engine_parameters,
        }


@dataclass(frozen=True, slots=True)
class DraftBuild:
    """The build folder of a draft model.

    Attributes:
        path: the folder.
        deployment: its trtbuild.yaml.
        config: config.json of its checkpoint, or of its engine's checkpoint.
        engine: None for the target `reference`.
    """

    path: Path
    deployment: Deployment
    config: Mapping[str, Any]
    engine: Engine | None


def open_draft(deployment: Deployment, folder: Path | None) -> DraftBuild | None:
    """Return the draft model of a deployment, None when it has none.

    Args:
        deployment: of the target.
        folder: build folder of the draft model, as far as one was named.

    Raises:
        UsageError: a draft model was named where there can be none, or none where there must be one.
        TrtbuildError: the folder is no build of the target's kind.
    """
    wants = deployment.speculative.mode == MODE
    if folder is None:
        if wants and deployment.target == "tensorrt":
            raise UsageError(
                f"speculative.mode={MODE}, and no draft model is named",
                hint="build it as a deployment of its own, `trtbuild build DRAFT.yaml -o draft`, and add --draft draft; "
                "or set speculative.mode: none",
            )
        if wants and deployment.target == "reference":
            logger.warning("note: no draft model is named (--draft), so requests that ask for draft tokens are refused")
        return None
    if not wants or deployment.target not in _SERVED:
        raise UsageError(
            f"--draft {folder}: speculative.mode is {deployment.speculative.mode} and the target {deployment.target}",
            hint=f"set speculative.mode: {MODE}, for target {' or '.join(_SERVED)}; target pytorch takes speculative.draft_model",
        )
    served = folder / _SERVED[deployment.target]
    missing = next((each for each in (folder / "trtbuild.yaml", served / "config.json") if not each.is_file()), None)
    if missing is not None:
        raise TrtbuildError(
            f"{folder} is no build of a draft model for target {deployment.target}: there is no {missing}",
            hint=f"build it with `trtbuild build DRAFT.yaml --target {deployment.target} -o {folder}`",
        )
    engine = Engine.open(served) if deployment.target == "tensorrt" else None
    config = engine.pretrained if engine is not None else read_served(served).config
    return DraftBuild(folder, load(folder / "trtbuild.yaml"), config, engine)


def check_target(deployment: Deployment, vocab_size: int, limits: ResolvedLimits) -> None:
    """Refuse, before it is built, an engine that its draft model could not be served beside; `draft_values` says the same when both are there.

    Args:
        deployment: of the target; the folder `speculative.draft_model` is looked into when it is there.
        vocab_size: of the target.
        limits: of the target.

    Raises:
        UsageError: its server holds one engine only.
        TrtbuildError: the draft model cannot draft for it, or its configuration cannot be read.
    """
    if deployment.speculative.mode != MODE or deployment.target != "tensorrt":
        return
    require_room_for_two(deployment.serving.mode)
    found = [*_reuse(deployment, None)]
    folder = Path(deployment.speculative.draft_model or "")
    if deployment.speculative.draft_model is not None and (folder / "config.json").is_file():
        config, where = read_config(folder), str(folder / "config.json")
        architecture, arch = resolve(config, where=where)
        dims = arch.read_dims(config, architecture, where)
        found += _sizes(where, dims.vocab_size, vocab_size, "the target")
        longest = positions(dims.max_position_embeddings, dims.rope.scaling if dims.rope else None)
        found += _positions(longest, limits)
    _refuse(iter(found))


def draft_values(
    draft: DraftBuild,
    deployment: Deployment,
    checkpoint_config: Mapping[str, Any],
    *,
    engine: Engine | None,
    release: Release,
    limits: ResolvedLimits,
    tokenizer_dir: Path,
    seen: Callable[[Path], str],
) -> dict[str, Any]:
    """Return the fields of a context that a draft model adds or changes.

    Args:
        draft: the build of the draft model.
        deployment: of the target.
        checkpoint_config: config.json of the target's checkpoint.
        engine: the target's; None when it is built elsewhere, later, or when there is none.
        release: of TensorRT-LLM that serves.
        limits: of the target.
        tokenizer_dir: of the target.
        seen: from a folder here to the path that the server sees.

    Raises:
        UsageError: the two are not placed side by side.
        TrtbuildError: it cannot draft for the target.
    """
    _refuse(
        chain(
            _reuse(deployment, draft.deployment),
            _vocabulary(draft, checkpoint_config, tokenizer_dir, is_sure=engine is not None),
            _engines(engine, draft.engine)
            if draft.engine is not None
            else _positions(
                positions(draft.config["max_position_embeddings"], draft.config.get("rotary_scaling")), limits
            ),
        )
    )
    asked = deployment.speculative.max_draft_len
    most = draft_limit(engine) if engine is not None else 0
    if asked is not None and engine is not None and most and asked > most:
        raise UsageError(
            f"speculative.max_draft_len={asked} exceeds max_draft_len={most} in {engine.path / 'config.json'}",
            hint=f"use at most {most}, or build the target for {asked}",
        )
    model: dict[str, Any] = {
        "checkpoint_dir": seen(draft.path / "checkpoint"),
        "max_draft_len": asked or most or None,
    }
    if draft.engine is None:
        return {"draft": model}
    mine = _served_with(draft.deployment, deployment)
    place = placement(mine)
    model |= {
        "core_instances": place.instances,
        "engine_parameters": engine_parameters(
            mine, draft.engine, release, paths={"engine": seen(draft.engine.path), "tokenizer": seen(tokenizer_dir)}, periods_ms=PERIODS_MS
        ),
        "has_logits": gives_logits(draft.engine),
    }  # fmt: skip
    if not gives_logits(draft.engine):
        logger.warning(
            "note: %s was built without gather_generation_logits, so use_draft_logits is refused",
            draft.engine.path / "config.json",
        )
    target = placement(deployment)
    both = beside(target, place, mode=deployment.serving.mode)
    if lies_within(place, target):
        _note_shared_memory(deployment, mine)
    return {"draft": model, "environment": both.environment, "world_size": both.world_size}


def _note_shared_memory(*deployments: Deployment) -> None:
    """Say so where two KV caches on the same GPUs may take more than there is."""
    caches = [each.kv_cache for each in deployments]
    shares = [cache.free_gpu_memory_fraction for cache in caches if cache.max_tokens is None]
    if sum(shares) > 1:
        logger.warning(
            "note: the draft model lies on GPUs of the target, and the KV cache of the one that loads first takes its share of all that is "
            "free (kv_cache.free_gpu_memory_fraction: %s): make them 1 together at most, or give each GPUs with serving.gpu_device_ids",
            ", ".join(f"{share:g}" for share in shares),
        )


def _served_with(draft: Deployment, target: Deployment) -> Deployment:
    """Return the deployment of a draft model as it is served: its own, in the process mode of the target's server."""
    serving = msgspec.structs.replace(
        draft.serving, mode=target.serving.mode, guided_decoding=None, xgrammar_tokenizer_info=None
    )
    return msgspec.structs.replace(draft, serving=serving)


def _refuse(found: Iterator[Disagreement]) -> None:
    problems = list(found)
    if problems:
        raise TrtbuildError(
            "the draft model cannot draft for the target: " + "; ".join(each.message for each in problems),
            hint="; ".join(dict.fromkeys(each.hint for each in problems)),
        )


def _reuse(target: Deployment, draft: Deployment | None) -> Iterator[Disagreement]:
    """Every step sends the whole text anew; without reuse of the KV cache each would compute all of it again."""
    both = {"target": target, "draft model": draft}
    off = [who for who, each in both.items() if each is not None and not each.kv_cache.enable_block_reuse]
    if off:
        yield Disagreement(
            f"kv_cache.enable_block_reuse is false for the {' and the '.join(off)}, and every step sends the whole text again",
            "set it to true in both",
        )


def _engines(target: Engine | None, draft: Engine) -> Iterator[Disagreement]:
    yield from draft_alone(draft) if target is None else disagreements(target, draft)


def _positions(longest: int, limits: ResolvedLimits) -> Iterator[Disagreement]:
    if longest < limits.max_seq_len:
        yield Disagreement(
            f"the draft model has {longest} positions, and max_seq_len is {limits.max_seq_len}",
            f"set limits.max_seq_len to {longest} at most, or use another draft model",
        )


def _sizes(where: object, its: Any, mine: int, target: str) -> Iterator[Disagreement]:
    if its != mine:
        yield Disagreement(f"vocab_size is {its} in {where} and {mine} in {target}", _SAME_TOKENIZER)


def _vocabulary(
    draft: DraftBuild, target: Mapping[str, Any], tokenizer_dir: Path, *, is_sure: bool
) -> Iterator[Disagreement]:
    """Compare sizes, unless the target's engine says more surely, and where both tokenizers are there, tokens."""
    if not is_sure:
        its = draft.config.get("vocab_size")
        yield from _sizes(draft.path / "checkpoint", its, target["vocab_size"], "the target's checkpoint")
    files = [draft.path / "checkpoint" / TOKENIZER_FOLDER / "tokenizer.json", tokenizer_dir / "tokenizer.json"]
    if not all(file.is_file() for file in files):
        return
    its, mine = map(_tokens, files)
    different = sorted(token for token in its.keys() | mine.keys() if its.get(token) != mine.get(token))
    if different:
        token = different[0]
        yield Disagreement(
            f"{files[0]} and {files[1]} number {len(different)} tokens differently, e.g. {token!r} is {its.get(token)} and {mine.get(token)}",
            _SAME_TOKENIZER,
        )


def _tokens(file: Path) -> dict[str, int]:
    """Return token -> id of a tokenizer.json; a vocabulary is a table, or a list of [token, score]."""
    data = read_json(file)
    found = data.get("model", {}).get("vocab", {})
    table = dict(found) if isinstance(found, dict) else {item[0]: number for number, item in enumerate(found)}
    return {**table, **{item["content"]: item["id"] for item in data.get("added_tokens", ())}}
