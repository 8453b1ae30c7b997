"""Two hundred streams at once for a minute against the real model: every text that comes to its end is the one that it is alone.

Scheme none in float32, so that a batch changes no argmax. Clients leave, read slowly and ask wrongly in between.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import TAUGHT, Deployment, deployed
from tests.e2e.test_serving import LONG, MODELS, metric

from trtbuild_client import AsyncClient, Client, RequestRefused, ServerError

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 200
SECONDS = 60
#: A request waits for its turn among so many others on a machine that has other work.
PATIENCE_S = 300
#: Prompts that the model was not taught, too: beginnings of answers, and characters it has no words for.
PROMPTS = (*TAUGHT, "count: one two", "emoji: 🙂", "cjk:北京", "plain: the quick", "Ω≈ç √ ∫", "x")
LENGTHS = (1, 2, 5, 13, LONG)
#: What no server can do, each found by another part of it.
BAD: tuple[dict[str, Any], ...] = (
    {"prompt": "x" * 2000, "max_tokens": 4},
    {"prompt": "plain:", "max_tokens": 300},
    {"prompt": "plain:", "max_tokens": 4, "beam_width": 2},
    {"prompt": "plain:", "max_tokens": 4, "tensors": {"lora_task_id": 3}},
    {"prompt": "plain:", "max_tokens": 4, "tensors": {"embedding_bias_words": ["x"]}},
)


@pytest.fixture(scope="module")
def crowded(taught: tuple[Path, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The taught model with a server of its own, since what it counts is looked at in the end."""
    with deployed(*taught, tmp_path_factory.mktemp("crowded")) as running:
        yield running


def test_every_text_in_a_crowd_is_the_one_of_a_request_alone(crowded: Deployment) -> None:
    alone = {}
    with Client(crowded.grpc_url) as client:
        for prompt in PROMPTS:
            for length in LENGTHS:
                alone[prompt, length] = client.generate(prompt, max_tokens=length).text
    assert {prompt: alone[prompt, LONG] for prompt in TAUGHT} == TAUGHT
    soak = _Soak(crowded, alone)
    asyncio.run(soak.run())
    assert soak.problems == []
    assert min(soak.counts[kind] for kind in ("whole", "slow", "left", "refused")) >= 20, soak.counts
    deadline = time.monotonic() + 30
    while metric(crowded, "nv_trt_llm_request_metrics", "active") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert metric(crowded, "nv_trt_llm_request_metrics", "active") == 0
    assert metric(crowded, "nv_trt_llm_kv_cache_block_metrics", "used") == 0


class _Soak:
    """All clients, and what went wrong.

    Args:
        served: the server.
        alone: (prompt, max_tokens) -> the text of a single request.
    """

    def __init__(self, served: Deployment, alone: dict[tuple[str, int], str]) -> None:
        self._served, self._alone = served, alone
        self._end = time.monotonic() + SECONDS
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Run all clients until the time is over and their last answers are there."""
        clients = {name: AsyncClient(self._served.grpc_url, name, timeout_s=PATIENCE_S) for name in MODELS}
        try:
            await asyncio.gather(*(self._run(clients[MODELS[seed % 25 == 0]], seed) for seed in range(STREAMS)))
        finally:
            for client in clients.values():
                await client.close()

    async def _run(self, client: AsyncClient, seed: int) -> None:
        choose = random.Random(seed)
        while time.monotonic() < self._end:
            kind = choose.choices(("whole", "slow", "left", "refused"), (6, 1, 2, 1))[0]
            prompt, length = choose.choice(PROMPTS), choose.choice(LENGTHS)
            try:
                problem = await getattr(self, f"_{kind}")(client, prompt, length, choose)
            except Exception as error:  # whatever it is, the test reports it
                problem = f"{type(error).__name__}: {error}"
            self.counts[kind] += 1
            if problem:
                self.problems.append(f"{client.model}, {kind}, {prompt!r}, {length}: {problem}")

    async def _whole(self, client: AsyncClient, prompt: str, length: int, choose: random.Random) -> str:
        got = "".join([chunk.text async for chunk in client.stream(prompt, max_tokens=length)])
        return self._difference(got, prompt, length)

    async def _slow(self, client: AsyncClient, prompt: str, length: int, choose: random.Random) -> str:
        got = ""
        async for chunk in client.stream(prompt, max_tokens=length):
            got += chunk.text
            await asyncio.sleep(choose.uniform(0.05, 0.3))
        return self._difference(got, prompt, length)

    async def _left(self, client: AsyncClient, prompt: str, length: int, choose: random.Random) -> str:
        got, leave = "", choose.randint(1, 6)
        async with client.stream(prompt, max_tokens=LONG) as stream:
            async for chunk in stream:
                got += chunk.text
                leave -= 1
                if leave == 0:
                    break
        return "" if self._alone[prompt, LONG].startswith(got) else f"{got!r} is no beginning"

    async def _refused(self, client: AsyncClient, prompt: str, length: int, choose: random.Random) -> str:
        try:
            answer = await client.generate(**choose.choice(BAD))
        except (ServerError, RequestRefused):
            return ""
        return f"not refused: {answer.text!r}"

    def _difference(self, got: str, prompt: str, length: int) -> str:
        expected = self._alone[prompt, length]
        return "" if got == expected else f"{got!r} instead of {expected!r}"
