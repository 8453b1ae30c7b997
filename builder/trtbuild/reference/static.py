"""Serve a model that transformers' continuous batching cannot: requests that wait together are answered together.

A batch is what was waiting when the one before it ended, padded on the left as `generate` does. Requests leave a batch
as they end and join none that runs, so a request may wait for the longest answer of the batch before its own. Every
model of transformers works here, since the cache is its plain `DynamicCache`. Chunks are delivered in the loop's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.sampling import RequestError
from trtbuild.reference.sequence import Sequence
from trtbuild.reference.stats import EngineStats
from trtbuild.reference.step import StepCounts, next_token
from trtbuild.reference.support import rope_switch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class StaticBatch:
    """Sequences in one left-padded batch, and their keys and values.

    Args:
        model: the decoder.
        sequences: its rows.
        max_num_tokens: tokens read in one forward pass, at least one per row; None is all of them.
    """

    def __init__(self, model: PreTrainedModel, sequences: Iterable[Sequence], max_num_tokens: int | None) -> None:
        self._model = model
        self.sequences = list(sequences)
        texts = [[*sequence.prompt, *sequence.tokens] for sequence in self.sequences]
        width = max(map(len, texts))
        self._ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
        self._mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
        columns = width if max_num_tokens is None else max(1, max_num_tokens // len(texts))
        self._ends = [*range(columns, width, columns), width]
        self._cache = DynamicCache(config=model.config)

    @property
    def ends(self) -> list[int]:
        """Columns up to which the forward passes that read the prompts go, in order."""
        return self._ends

    @property
    def cache_bytes(self) -> int:
        """Size of the keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._cache.layers if layer.is_initialized)

    def num_tokens(self, end: int) -> int:
        """Return how many prompt tokens the pass that goes up to column `end` reads, padding not counted."""
        return int(self._mask[:, self._cache.get_seq_length() : end].sum())

    def forward(self, end: int | None = None) -> torch.Tensor:
        """Read the columns up to `end`, or all that are new; return the logits behind the last, [rows, vocab_size]."""
        start = self._cache.get_seq_length()
        mask = self._mask[:, :end]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
        output = self._model(
            input_ids=self._ids[:, start:end],
            attention_mask=mask,
            position_ids=positions,
            cache=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def keep(self, rows: list[int], tokens: list[int]) -> None:
        """Keep some rows, each with its next token."""
        if len(rows) < len(self.sequences):
            index = torch.tensor(rows)
            self._cache.batch_select_indices(index)
            self._ids, self._mask = self._ids[index], self._mask[index]
            self.sequences = [self.sequences[row] for row in rows]
        new = torch.tensor(tokens).unsqueeze(1)
        self._ids = torch.cat([self._ids, new], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(new)], dim=1)


class StaticEngine(BaseEngine):
    """A model that is being served in static batches.

    Args:
        model: from `load_model`, or any decoder of transformers.
        config: sizes; the pool bounds the tokens of a batch, padding included, and no block is shared.

    Raises:
        TrtbuildError: the sizes contradict each other.
    """

    def __init__(self, model: PreTrainedModel, config: BatchingConfig) -> None:
        super().__init__(model, config)
        self._arrived = threading.Condition(self._lock)
        self._counts = StepCounts()
        self._cache_bytes = 0
        self._rope_switch = rope_switch(model.config.get_text_config().to_dict())

    def start(self) -> None:
        """Start the loop; the cache grows and shrinks with each batch."""
        self._failure = None
        self._thread = threading.Thread(target=self._serve, name="reference-static", daemon=True)
        self._thread.start()
        logger.info("engine started: static batches of at most %d requests", self._config.max_batch_size)

    def stop(self) -> None:
        """End the loop; requests that are still running get an error."""
        self._fail_all("the engine was stopped")
        with self._arrived:
            self._arrived.notify_all()
        self._thread.join()

    def stats(self) -> EngineStats:
        """Return the current numbers; a request's blocks are those its own tokens would fill."""
        counts = self._counts
        with self._lock:
            running = self._unfinished()
            active = len(running) + len(self._waiting)
        scheduled = min(counts.scheduled, len(running))
        used = sum(sequence.kv.total_blocks for sequence in running)
        return EngineStats(
            active=active,
            max_active=self._config.max_batch_size,
            scheduled=scheduled,
            context=min(counts.context, scheduled),
            context_tokens=counts.context_tokens if scheduled else 0,
            iteration=counts.iteration,
            waiting=active - scheduled,
            kv_blocks_max=self._config.num_blocks,
            kv_blocks_free=self._config.num_blocks - used,
            kv_blocks_used=used,
            kv_blocks_reused=0,
            tokens_per_block=self._config.tokens_per_block,
            memory_bytes=self._cache_bytes + self._weight_bytes,
            timestamp_s=counts.timestamp_s,
        )

    def _admit(self) -> None:
        self._arrived.notify_all()

    def _leave(self, sequence: Sequence) -> None:
        with self._lock:
            if self._running.pop(sequence.id, None) is None and sequence in self._waiting:
                self._waiting.remove(sequence)

    def _serve(self) -> None:
        """Answer batch after batch until the engine is stopped; if anything fails, everyone is told."""
        try:
            with torch.inference_mode():
                while sequences := self._next_batch():
                    self._answer(sequences)
                    self._cache_bytes = 0
        except Exception as error:  # the edge of the thread: whoever is left must get an answer
            logger.exception("the engine died")
            self._fail_all(f"the engine died: {type(error).__name__}: {error}")

    def _next_batch(self) -> list[Sequence]:
        """Wait for requests and return the first of them that fit into one batch; none when the engine is stopped."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting or self._failure is not None)
            if self._failure is not None:
                return []
            batch = [self._waiting.popleft()]
            while self._waiting and self._fits([*batch, self._waiting[0]]):
                batch.append(self._waiting.popleft())
            self._running.update({sequence.id: sequence for sequence in batch})
        return batch

    def _fits(self, batch: list[Sequence]) -> bool:
        if len(batch) > self._config.max_batch_size or any(map(self._goes_alone, batch)):
            return False
        # Each row is as wide as the longest prompt and grows until the longest answer ends, whose last token is not stored.
        columns = max(len(row.prompt) for row in batch) + max(row.max_tokens for row in batch) - 1
        return len(batch) * self._config.blocks_of(columns) <= self._config.num_blocks

    def _goes_alone(self, sequence: Sequence) -> bool:
        """Return whether it may grow to where all its positions are rotated otherwise (see `rope_switch`)."""
        return self._rope_switch is not None and len(sequence.prompt) + sequence.max_tokens > self._rope_switch

    def _answer(self, sequences: list[Sequence]) -> None:
        """Generate until every answer of a batch has ended."""
        now = time.monotonic_ns()
        for sequence in sequences:
            sequence.timing.first_scheduled_ns = now
        # What a prompt is rotated by depends on its whole length, so one that may be long is read in one piece.
        goes_alone = self._goes_alone(sequences[0])
        piece = None if goes_alone else self._config.max_num_tokens
        batch = StaticBatch(self._model, sequences, piece)
        logits = self._read(batch)
        while self._advance(batch, logits):
            sequence = batch.sequences[0]
            if goes_alone and len(sequence.prompt) + len(sequence.tokens) - 1 == self._rope_switch:
                batch = StaticBatch(self._model, [sequence], piece)
            self._count(batch, context_tokens=0)
            logits = batch.forward()

    def _read(self, batch: StaticBatch) -> torch.Tensor:
        """Read the prompts; return the logits of the first tokens, [rows, vocab_size]."""
        for end in batch.ends:
            self._count(batch, context_tokens=batch.num_tokens(end))
            logits = batch.forward(end)
            if all(sequence.finish_reason is not None for sequence in batch.sequences):
                break  # all cancelled
        return logits

    def _count(self, batch: StaticBatch, *, context_tokens: int) -> None:
        rows = len(batch.sequences)
        self._counts = StepCounts(
            self._counts.iteration + 1, rows, rows if context_tokens else 0, context_tokens, time.time()
        )

    def _advance(self, batch: StaticBatch, logits: torch.Tensor) -> bool:
        """Give every row its next token and let those leave that have ended; return whether any is left."""
        self._cache_bytes = batch.cache_bytes
        rows: list[int] = []
        for row, sequence in enumerate(batch.sequences):
            sequence.kv.total_blocks = self._config.blocks_of(len(sequence.prompt) + len(sequence.tokens))
            if self._guarded(sequence, partial(self._push, sequence, logits[row])):
                self._leave(sequence)
            else:
                rows.append(row)
        if rows:
            batch.keep(rows, [batch.sequences[row].tokens[-1] for row in rows])
        return bool(rows)

    def _push(self, sequence: Sequence, logits: torch.Tensor) -> bool:
        """Choose the next token of a request; return whether its answer has ended."""
        if sequence.finish_reason is not None:
            return True  # cancelled
        try:
            token = next_token(logits, sequence) if sequence.needs_choosing else int(logits.argmax())
        except RequestError as error:
            sequence.finish("error", str(error))
            return True
        return sequence.push(token) is not None
