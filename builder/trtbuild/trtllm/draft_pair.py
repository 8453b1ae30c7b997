"""Whether one engine can draft tokens for another: what their config.json files must say, in a table.

Sources: checkpoint specification 4.4 and 4.5 (sizes and modes of speculation), Triton specification 1.2 and 5.7 (draft tokens and
logits of `tensorrt_llm`). What a file does not say is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import Version


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What keeps a draft engine from drafting.

    Attributes:
        message: what, with the values of both.
        hint: what to do.
    """

    message: str
    hint: str


def draft_limit(target: Engine) -> int:
    """Return how many draft tokens an engine takes in a step; 0: none, or it does not say."""
    found = target.build.get("max_draft_len")
    return found if isinstance(found, int) else 0


def gives_logits(draft: Engine) -> bool:
    """Return whether an engine can give the logits of what it generates."""
    return draft.build.get("gather_generation_logits") is True


def disagreements(target: Engine, draft: Engine) -> Iterator[Disagreement]:
    """Yield what keeps one engine from drafting for the other."""
    for rule in _RULES:
        yield from rule(target, draft)
    yield from draft_alone(draft)


def draft_alone(draft: Engine) -> Iterator[Disagreement]:
    """Yield what keeps an engine from drafting for any other."""
    mode, tokens = draft.speculation, draft_limit(draft)
    if mode not in ("", "none") or tokens:
        yield Disagreement(
            f"{_file(draft)} is of an engine that speculates itself (speculative_decoding_mode {mode or 'not said'}, max_draft_len {tokens})",
            "build the draft model with speculative.mode: none",
        )


def _takes_drafts(target: Engine, _: Engine) -> Iterator[Disagreement]:
    mode, tokens = target.speculation, target.build.get("max_draft_len")
    if mode not in ("", "draft_tokens_external") or tokens == 0:
        yield Disagreement(
            f"{_file(target)} is of an engine that takes no draft tokens (speculative_decoding_mode {mode or 'not said'}, max_draft_len {tokens})",
            "build the target with speculative.mode: draft_target and speculative.max_draft_len",
        )


def _versions(target: Engine, draft: Engine) -> Iterator[Disagreement]:
    mine, its = (Version.parse(each.version) for each in (target, draft))
    if mine is not None and its is not None and mine.numbers[:4] != its.numbers[:4]:
        yield Disagreement(
            f"{_file(draft)} was built by TensorRT-LLM {draft.version}, {_file(target)} by {target.version}",
            "one server loads both: build them with the same release",
        )


def _same(what: str, read: Callable[[Engine], Any], hint: str) -> Callable[[Engine, Engine], Iterator[Disagreement]]:
    def rule(target: Engine, draft: Engine) -> Iterator[Disagreement]:
        mine, its = read(target), read(draft)
        if None not in (mine, its) and mine != its:
            yield Disagreement(f"{what} is {its} in {_file(draft)} and {mine} in {_file(target)}", hint)

    return rule


def _sequence_length(target: Engine, draft: Engine) -> Iterator[Disagreement]:
    """A target's max_seq_len is the longest text plus its draft tokens (4.4, rule 2); a draft model reads the text only."""
    longest, its = target.build.get("max_seq_len"), draft.build.get("max_seq_len")
    if isinstance(longest, int) and isinstance(its, int) and its < longest - draft_limit(target):
        needed = longest - draft_limit(target)
        yield Disagreement(
            f"max_seq_len is {its} in {_file(draft)}, and a text of the target may have {needed} tokens",
            f"build the draft model with limits.max_seq_len: {needed}, or the target with less",
        )


def _batch_size(target: Engine, draft: Engine) -> Iterator[Disagreement]:
    mine, its = target.build.get("max_batch_size"), draft.build.get("max_batch_size")
    if isinstance(mine, int) and isinstance(its, int) and its < mine:
        yield Disagreement(
            f"max_batch_size is {its} in {_file(draft)} and {mine} in {_file(target)}",
            f"build the draft model with limits.max_batch_size: {mine}, or the target with less",
        )


def _file(engine: Engine) -> str:
    return str(engine.path / "config.json")


Rule = Callable[[Engine, Engine], Iterator[Disagreement]]
_RULES: tuple[Rule, ...] = (
    _takes_drafts,
    _versions,
    _same(
        "vocab_size",
        lambda engine: engine.pretrained.get("vocab_size"),
        "use a draft model of the same family, with the same vocabulary",
    ),
    _same(
        "tokens_per_block",
        lambda engine: engine.plugins.get("tokens_per_block"),
        "build both with the same kv_cache.tokens_per_block",
    ),
    _same(
        "logits_dtype",
        lambda engine: engine.pretrained.get("logits_dtype"),
        "build both with the same dtype of logits: the one's are the other's draft_logits",
    ),
    _sequence_length,
    _batch_size,
)
