"""What a probe finds out beyond its main run: cold and warm, cached prompts and new ones, prompts by length, times within the server."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtbuild_client import stats
from trtbuild_client.client import Client
from trtbuild_client.errors import InvalidRequest
from trtbuild_client.parameters import Options
from trtbuild_client.probe import Probe
from trtbuild_client.records import RequestRecord
from trtbuild_client.report import Report

#: Tokens asked for where only the first one matters; two, so that a server that stops at one is noticed.
_FEW_TOKENS = 2
#: Requests of each kind, when the cache is looked at.
CACHE_ROUNDS = 4
#: Requests of each length of prompt.
LENGTH_ROUNDS = 4
#: Words of a prompt that is looked for in the cache: some blocks of 32 to 64 tokens, or there is nothing to reuse.
_CACHE_WORDS = 512
_MAX_WORDS = 1_000_000
#: Common words, each one token in most vocabularies.
_WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Where the time went inside the server, from its own measurements (`return_perf_metrics`).

    Attributes:
        queue_ns: from arrival to the first schedule.
        prefill_ns: from the first schedule to the first token.
        decode_ns: from the first to the last token.
        reused_share: reused blocks of the KV cache / (reused + newly allocated ones); None when unknown.
    """

    queue_ns: stats.Distribution
    prefill_ns: stats.Distribution
    decode_ns: stats.Distribution
    reused_share: float | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "queue_ns": distribution_json(self.queue_ns),
            "prefill_ns": distribution_json(self.prefill_ns),
            "decode_ns": distribution_json(self.decode_ns),
            "kv_cache_reused_share": self.reused_share,
        }


@dataclass(frozen=True, slots=True)
class Scenario:
    """Time to first token of some requests that have something in common.

    Attributes:
        name: what they have in common.
        words: length of their prompts in words, None where it does not matter.
        input_tokens: mean length in tokens as the server counts, None when it does not.
        failed: requests that failed.
    """

    name: str
    ttft_ns: stats.Distribution
    words: int | None = None
    input_tokens: float | None = None
    reused_share: float | None = None
    failed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "words": self.words,
            "input_tokens": self.input_tokens,
            "ttft_ns": distribution_json(self.ttft_ns),
            "kv_cache_reused_share": self.reused_share,
            "failed": self.failed,
        }


def distribution_json(each: stats.Distribution) -> dict[str, float | int | None]:
    """Return a distribution as JSON values."""
    return {
        "n": each.n,
        "mean": each.mean,
        **dict(zip((f"p{q}" for q in stats.PERCENTILES), each.percentiles, strict=True)),
    }


def chunk_gaps_ns(records: Sequence[RequestRecord]) -> stats.Distribution:
    """Return the times between responses, whatever the number of tokens in each: what a reader of the stream sees."""
    return stats.distribution(
        float(event.at_ns - before.at_ns)
        for record in records
        if record.streamed and record.outcome == "ok" and not record.warmup
        for before, event in zip(record.events, record.events[1:], strict=False)
    )


def server_times(records: Sequence[RequestRecord]) -> ServerTimes | None:
    """Return the server's own measurements, None when it gave none."""
    known = [each.server for each in records if each.server is not None and each.outcome == "ok" and not each.warmup]
    if not known:
        return None

    def spread(values: Sequence[int | None]) -> stats.Distribution:
        return stats.distribution(float(value) for value in values if value is not None)

    return ServerTimes(
        queue_ns=spread([each.queue_ns for each in known]),
        prefill_ns=spread([
            None if each.ttft_ns is None or each.queue_ns is None else each.ttft_ns - each.queue_ns for each in known
        ]),
        decode_ns=spread([each.decode_ns for each in known]),
        reused_share=_reused(records),
    )  # fmt: skip


def cold_and_warm(report: Report) -> list[Scenario]:
    """Return the first request of the run and those after the warm-up; nothing without a warm-up.

    "First" is the first of this run: a server that has served before is not cold.
    """
    warmup = [record for record in report.records if record.warmup]
    warm = [record for record in report.records if not record.warmup]
    return [_scenario("first request", warmup[:1]), _scenario("warm", warm)] if warmup and report.streamed else []


def cache(client: Client, tensors: dict[str, Any], on_done: Callable[[int], None]) -> list[Scenario]:
    """Send new prompts, each twice; return the first and the second times.

    Raises:
        ClientError: see `Probe.run`.
    """
    new = [prompt_of(_CACHE_WORDS) for _ in range(CACHE_ROUNDS)]
    records = _records(client, [prompt for prompt in new for _ in range(2)], tensors, on_done)
    return [
        _scenario("prompt not cached", records[0::2], words=_CACHE_WORDS),
        _scenario("same prompt again", records[1::2], words=_CACHE_WORDS),
    ]


def lengths(
    client: Client, words: Sequence[int], requests: int, tensors: dict[str, Any], on_done: Callable[[int], None]
) -> list[Scenario]:
    """Send new prompts of each length; return their times to first token.

    Args:
        words: lengths in words; what that is in tokens, the server says.
        requests: of each length.

    Raises:
        InvalidRequest: a length that cannot be.
        ClientError: see `Probe.run`.
    """
    check_lengths(words)
    return [
        _scenario(
            f"{each} words", _records(client, [prompt_of(each) for _ in range(requests)], tensors, on_done), words=each
        )
        for each in words
    ]


def check_lengths(words: Sequence[int]) -> None:
    """Check lengths of prompts.

    Raises:
        InvalidRequest: one that cannot be.
    """
    wrong = [each for each in words if not 1 <= each <= _MAX_WORDS]
    if wrong:
        raise InvalidRequest(f"a prompt of {wrong[0]} words", hint=f"Write 1 to {_MAX_WORDS}, such as 128,1024.")


def prompt_of(words: int) -> str:
    """Return a prompt of so many words that nobody has sent before; it differs from its first word on."""
    mark = uuid.uuid4().hex
    rng = random.Random(mark)
    return " ".join([mark, *(rng.choice(_WORDS) for _ in range(words - 1))])


def _records(
    client: Client, prompts: Sequence[str], tensors: dict[str, Any], on_done: Callable[[int], None]
) -> list[RequestRecord]:
    probe = Probe(
        requests=len(prompts),
        warmup=0,
        prompts=tuple(prompts),
        options=Options(max_tokens=_FEW_TOKENS),
        tensors=tensors,
    )
    return list(probe.run(client, on_done).records)


def _scenario(name: str, records: Sequence[RequestRecord], *, words: int | None = None) -> Scenario:
    ok = [replace(record, warmup=False) for record in records if record.outcome == "ok"]
    counted = [record.input_tokens for record in ok if record.input_tokens is not None]
    return Scenario(
        name=name,
        ttft_ns=stats.distribution(stats.of_each(ok, stats.ttft_ns)),
        words=words,
        input_tokens=sum(counted) / len(counted) if counted else None,
        reused_share=_reused(ok),
        failed=sum(record.outcome == "failed" for record in records),
    )


def _reused(records: Sequence[RequestRecord]) -> float | None:
    known = [each.server for each in records if each.server is not None and not each.warmup]
    counted = [
        each for each in known if each.kv_cache_reused_blocks is not None and each.kv_cache_alloc_new_blocks is not None
    ]
    reused = sum(each.kv_cache_reused_blocks or 0 for each in counted)
    needed = reused + sum(each.kv_cache_alloc_new_blocks or 0 for each in counted)
    return reused / needed if needed else None
