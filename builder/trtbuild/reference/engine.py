"""Serve one model to many requests: they join and leave the batch between steps.

The loop, the scheduler's mechanics and the paged KV cache are those of transformers' continuous batching; this module
adds what a server needs around them: admission (a request starts when the blocks of its whole answer can be
reserved, so nothing is ever evicted), stop conditions, cancellation, timings, statistics, and an answer for every
request even if the loop dies. Thread-safe; chunks are delivered in the loop's thread right after each step.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import torch

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.batching import (
    BatchingConfig,
    Router,
    StepSampler,
    make_manager,
    only_allocator,
    planner_hook,
)
from trtbuild.reference.sequence import Sequence
from trtbuild.reference.stats import EngineStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class Engine(BaseEngine):
    """A model that is being served with transformers' continuous batching.

    Args:
        model: from `load_model`, or any decoder of transformers.
        config: sizes.

    Raises:
        TrtbuildError: the sizes contradict each other.
    """

    def __init__(self, model: PreTrainedModel, config: BatchingConfig) -> None:
        super().__init__(model, config)
        self._free_reservation = 0
        self._num_reused = 0
        self._sampler = StepSampler(self._running, config.tokens_per_block)

    def start(self) -> None:
        """Allocate the cache and start the loop.

        Raises:
            TrtbuildError: the cache does not fit into memory.
        """
        self._hook = planner_hook(self._model)
        self._attention = self._model.config._attn_implementation
        with torch.inference_mode():
            self._manager = make_manager(self._model, self._config, Router(self._on_output), self._sampler)
            self._cache = self._manager.batch_processor.cache
            self._max_blocks: int = only_allocator(self._cache).num_blocks
            self._free_reservation = self._max_blocks
            self._manager.start()
        self._failure = None
        thread = self._manager._generation_thread
        self._watcher = threading.Thread(target=self._watch, args=(thread,), name="reference-watcher", daemon=True)
        self._watcher.start()
        logger.info("engine started: %d blocks of %d tokens", self._max_blocks, self._config.tokens_per_block)

    def stop(self) -> None:
        """End the loop; requests that are still running get an error."""
        self._fail_all("the engine was stopped")
        self._manager.stop(block=True, hard_stop=True)
        self._watcher.join()
        self._model.set_attn_implementation(self._attention)
        self._hook.remove()

    def stats(self) -> EngineStats:
        """Return the current numbers."""
        counts = self._sampler.counts
        with self._lock:
            running = self._unfinished()
            active = len(running) + len(self._waiting)
        scheduled = min(counts.scheduled, len(running))
        # Counted by request, since the blocks of one that has just been cancelled are freed with the next step only.
        tables = only_allocator(self._cache).block_table
        used = len({block for sequence in running for block in tables.get(sequence.id, ())})
        pool: torch.Tensor = self._cache.cache_tensor
        return EngineStats(
            active=active,
            max_active=self._config.max_batch_size,
            scheduled=scheduled,
            context=min(counts.context, scheduled),
            context_tokens=counts.context_tokens if scheduled else 0,
            iteration=counts.iteration,
            waiting=active - scheduled,
            kv_blocks_max=self._max_blocks,
            kv_blocks_free=self._max_blocks - used,
            kv_blocks_used=used,
            kv_blocks_reused=self._num_reused,
            tokens_per_block=self._config.tokens_per_block,
            memory_bytes=pool.nbytes + self._weight_bytes,
            timestamp_s=counts.timestamp_s,
        )

    def _blocks_needed(self, sequence: Sequence) -> int:
        # The last token is never stored: nothing comes after it.
        return self._config.blocks_of(len(sequence.prompt) + sequence.max_tokens - 1)

    def _admit(self) -> None:
        """Hand waiting requests to the loop while blocks and places are left. Call with the lock held."""
        while self._waiting and len(self._running) < self._config.max_batch_size:
            needed = self._blocks_needed(self._waiting[0])
            if needed > self._free_reservation:
                return
            sequence = self._waiting.popleft()
            self._free_reservation -= needed
            self._running[sequence.id] = sequence
            self._manager.add_request(
                sequence.prompt,
                request_id=sequence.id,
                max_new_tokens=sequence.max_tokens,
                streaming=True,
                eos_token_id=-1 if sequence.params.end_id is None else sequence.params.end_id,
            )

    def _leave(self, sequence: Sequence) -> None:
        """Take a finished request out and let the next ones in; does nothing when it has left already."""
        with self._lock:
            if self._running.pop(sequence.id, None) is not None:
                self._manager.cancel_request(sequence.id)  # frees its blocks before the next step is put together
                self._free_reservation += self._blocks_needed(sequence)
                self._num_reused += sequence.kv.reused_blocks
            elif sequence in self._waiting:
                self._waiting.remove(sequence)
            if self._failure is None:
                self._admit()

    def _on_output(self, output: Any) -> None:
        """Take a `GenerationOutput` of transformers: all tokens of a request so far, or its failure."""
        sequence = self._running.get(output.request_id)
        if sequence is None:
            return  # cancelled while this step ran
        if self._guarded(sequence, lambda: self._advance(sequence, output)):
            self._leave(sequence)

    def _advance(self, sequence: Sequence, output: Any) -> bool:
        error = sequence.choice_error if output.error is None else f"generation failed: {output.error}"
        if error is not None:
            sequence.finish("error", error)
            return True
        return any(sequence.push(token) is not None for token in output.generated_tokens[len(sequence.tokens) :])

    def _watch(self, thread: threading.Thread) -> None:
        """Wait for the loop to end, however it does, and answer whoever is left."""
        thread.join()
        error = self._manager.background_thread_status.fatal_error
        self._fail_all(f"the engine died: {error}")
