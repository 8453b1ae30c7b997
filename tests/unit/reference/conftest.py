"""An engine on a tiny model, shared by the tests of this folder."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.reference.tiny_models import tiny_model
from transformers import PreTrainedModel

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.factory import ENGINES
from trtbuild.reference.sequence import Chunk, Sequence

SIZES = BatchingConfig(
    tokens_per_block=8, max_tokens_in_paged_kv_cache=1024, max_num_tokens=48, max_seq_len=256, max_batch_size=8
)
TIMEOUT_S = 30.0


@dataclass
class Listener:
    """Collects the chunks of a request; waits for the next one with a deadline."""

    chunks: list[Chunk] = field(default_factory=list)
    _queue: queue.Queue[Chunk] = field(default_factory=queue.Queue)

    def __call__(self, sequence: Sequence, chunk: Chunk) -> None:
        self._queue.put(chunk)

    def next(self) -> Chunk:
        """Wait for a chunk."""
        chunk = self._queue.get(timeout=TIMEOUT_S)
        self.chunks.append(chunk)
        return chunk

    def finish(self) -> list[int]:
        """Wait for the last chunk and return all tokens."""
        while not self.chunks or self.chunks[-1].finish_reason is None:
            self.next()
        return [token for chunk in self.chunks for token in chunk.token_ids]


def ask_all(engine: BaseEngine, prompts: list[list[int]], max_tokens: int, **options: Any) -> list[list[int]]:
    """Send all prompts at once and return their answers."""
    listeners = [Listener() for _ in prompts]
    for prompt, listener in zip(prompts, listeners, strict=True):
        engine.submit(prompt, max_tokens, listener, **options)
    return [listener.finish() for listener in listeners]


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    return tiny_model("llama")


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[BaseEngine]:
    # A model of its own: while it is served its attention is the paged one.
    with ENGINES[request.param](tiny_model("llama"), SIZES) as running:
        yield running
