"""Rules of engines that speculate or serve LoRA adapters; see `rules.py`.

Source: checkpoint specification 4.1, 4.5 and 4.6.
"""

from __future__ import annotations

from pathlib import Path

from trtbuild.errors import Way
from trtbuild.lora.adapter import Adapter
from trtbuild.lora.names import IDS, locate, target_modules
from trtbuild.targets.base import Job
from trtbuild.trtllm.build_settings import ARCHITECTURES, MODES, draft_len, lookahead_draft_len, lora_modules
from trtbuild.trtllm.rules import Rule

#: Most requests of a batch, and most draft tokens, of an EAGLE engine.
EAGLE_BATCH = 512
EAGLE_DRAFT = 256
#: Modes whose number of draft tokens no checkpoint tells.
NEEDS_DRAFT_LEN = ("draft_target",)


def _mode(job: Job) -> str:
    return job.deployment.speculative.mode


def _is_eagle(job: Job) -> bool:
    return _mode(job) == "eagle"


def _lookahead_needs(job: Job) -> int:
    return lookahead_draft_len(*job.deployment.speculative.lookahead) if _mode(job) == "lookahead" else 0


def _adapters(job: Job) -> list[Adapter]:
    return [Adapter.open(Path(folder)) for folder in job.deployment.lora.adapters]


def _too_large(job: Job) -> list[str]:
    most = job.deployment.lora.max_rank
    return [f"{each.path} has rank {each.max_rank}" for each in _adapters(job) if each.max_rank > most]


def _beyond(job: Job) -> list[str]:
    """Return adapters that change modules the engine will not adapt."""
    if not job.deployment.lora.adapters or _unknown_modules(job):
        return []
    adapted, found = set(lora_modules(job)), []
    for adapter in _adapters(job):
        names = {name for _, name in locate(module.name for module in adapter.modules).values()}
        if missing := sorted(names - adapted):
            found.append(f"{adapter.path} changes {', '.join(missing)}")
    return found


def _unknown_modules(job: Job) -> list[str]:
    return [name for name in job.deployment.lora.target_modules if name not in IDS]


ERRORS: tuple[Rule, ...] = (
    Rule(
        "4.5: not among the modes of trtllm-build",
        lambda job: _mode(job) not in ("none", *MODES),
        lambda job: f"speculative.mode={_mode(job)} exists in the LLM API only; engines have {', '.join(MODES)}",
        "use one of these modes",
        (Way("build with --target pytorch", {"target": "pytorch"}),),
    ),
    Rule(
        "4.5",
        lambda job: _mode(job) in ARCHITECTURES and not job.dims.architecture.startswith(ARCHITECTURES[_mode(job)]),
        lambda job: (
            f"speculative.mode={_mode(job)} needs a checkpoint with its heads ({ARCHITECTURES[_mode(job)]}...), and trtbuild writes "
            f"{job.dims.architecture}"
        ),
        "convert with TensorRT-LLM's own examples",
        (
            Way("use speculative.mode: draft_target", {"speculative.mode": "draft_target"}),
            Way(
                "use speculative.mode: lookahead", {"speculative.mode": "lookahead", "speculative.max_draft_len": None}
            ),
            Way("use --target pytorch, which has eagle3", {"target": "pytorch", "speculative.mode": "eagle3"}),
        ),
    ),
    Rule(
        "4.5",
        lambda job: _mode(job) in NEEDS_DRAFT_LEN and draft_len(job) == 0,
        lambda job: (
            f"speculative.mode={_mode(job)} needs speculative.max_draft_len: an engine is built for a number of draft tokens"
        ),
        "set speculative.max_draft_len, e.g. 4",
    ),
    Rule(
        "4.5",
        lambda job: _mode(job) == "none" and job.deployment.speculative.max_draft_len is not None,
        lambda job: (
            f"speculative.max_draft_len={job.deployment.speculative.max_draft_len} has no meaning with speculative.mode=none"
        ),
        "set speculative.mode, or leave max_draft_len empty",
    ),
    Rule(
        "4.5: formula of LookaheadDecodingConfig",
        lambda job: 0 < draft_len(job) < _lookahead_needs(job),
        lambda job: (
            f"speculative.max_draft_len={draft_len(job)} is below the {_lookahead_needs(job)} draft tokens of speculative.lookahead="
            f"{list(job.deployment.speculative.lookahead)}"
        ),
        "leave max_draft_len empty, or make the window smaller",
    ),
    Rule(
        "4.5: formula of LookaheadDecodingConfig",
        lambda job: _mode(job) == "lookahead" and draft_len(job) == 0,
        lambda job: (
            f"speculative.lookahead={list(job.deployment.speculative.lookahead)} drafts no token: n-grams of one hold no next token"
        ),
        "use n-grams of 2 or more",
    ),
    Rule(
        "4.5",
        lambda job: _is_eagle(job) and job.limits.max_batch_size > EAGLE_BATCH,
        lambda job: (
            f"limits.max_batch_size={job.limits.max_batch_size}: speculative.mode=eagle takes {EAGLE_BATCH} at most"
        ),
        f"use at most {EAGLE_BATCH}",
    ),
    Rule(
        "4.5",
        lambda job: _is_eagle(job) and draft_len(job) > EAGLE_DRAFT,
        lambda job: f"speculative.max_draft_len={draft_len(job)}: speculative.mode=eagle takes {EAGLE_DRAFT} at most",
        f"use at most {EAGLE_DRAFT}",
    ),
    Rule(
        "4.5: the builder forces it on",
        lambda job: _mode(job) in ("eagle", "draft_target") and not job.deployment.engine.use_paged_context_fmha,
        lambda job: f"speculative.mode={_mode(job)} needs engine.use_paged_context_fmha, which is false",
        "set engine.use_paged_context_fmha: true",
    ),
    Rule(
        "4.5",
        lambda job: job.deployment.engine.gather_context_logits and _mode(job) != "none",
        lambda job: f"engine.gather_context_logits and speculative.mode={_mode(job)} exclude each other",
        "set engine.gather_context_logits: false",
    ),
    Rule(
        "4.5",
        lambda job: job.limits.max_beam_width > 1 and _mode(job) != "none",
        lambda job: (
            f"limits.max_beam_width={job.limits.max_beam_width} and speculative.mode={_mode(job)} exclude each other"
        ),
        "set limits.max_beam_width: 1",
    ),
)
#: Of LoRA adapters, whatever serves them.
ADAPTERS: tuple[Rule, ...] = (
    Rule(
        "names of LoraManager",
        lambda job: bool(_unknown_modules(job)),
        lambda job: f"lora.target_modules: unknown {', '.join(_unknown_modules(job))}",
        f"known are {', '.join(IDS)}",
    ),
    Rule(
        "4.1: --max_lora_rank",
        lambda job: bool(_too_large(job)),
        lambda job: f"{', '.join(_too_large(job))}; lora.max_rank={job.deployment.lora.max_rank}",
        lambda job: f"set lora.max_rank: {max(each.max_rank for each in _adapters(job))}",
    ),
    Rule(
        "4.1: --lora_target_modules",
        lambda job: bool(_beyond(job)),
        lambda job: f"{'; '.join(_beyond(job))}; lora adapts {', '.join(lora_modules(job))}",
        lambda job: f"set lora.target_modules: [{', '.join(_all_modules(job))}]",
    ),
)
NOTES: tuple[Rule, ...] = (
    Rule(
        "4.5",
        lambda job: _mode(job) == "draft_target",
        lambda job: (
            "speculative.mode=draft_target: this builds the target's engine; the draft model is a build of its own"
            + (f" ({job.deployment.speculative.draft_model})" if job.deployment.speculative.draft_model else "")
            + ", with the same tokenizer, vocabulary and tensorrt_llm; `trtbuild render --draft` serves both"
        ),
    ),
)


def _all_modules(job: Job) -> list[str]:
    names = {name for each in _adapters(job) for _, name in locate(module.name for module in each.modules).values()}
    return target_modules({*names, *lora_modules(job)})
