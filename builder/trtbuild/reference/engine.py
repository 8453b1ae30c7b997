"""Serve one model to many requests: they join and leave the batch between steps.

The loop, the scheduler's mechanics and the paged KV cache are those of transformers' continuous batching; this module
adds what a server needs around them: admission (a request starts when the blocks of its whole answer can be
reserved, so nothing is ever evicted), stop conditions, cancellation, timings, statistics, and an answer for every
request even if the loop dies. Thread-safe; chunks are delivered in the loop's thread right after each step.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtbuild.reference.batching import (
    BatchingConfig,
    Router,
    StepSampler,
    make_manager,
    only_allocator,
    planner_hook,
)
from trtbuild.reference.choose import TokenCounts
from trtbuild.reference.environment import require_environment
from trtbuild.reference.fit import check_sizes
from trtbuild.reference.sampling import RequestError, SamplingParams
from trtbuild.reference.sequence import Chunk, FinishReason, OnChunk, Sequence
from trtbuild.reference.stats import EngineStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its tokens, their log-probabilities if asked for, and why it ended."""

    token_ids: list[int]
    log_probs: list[float] | None
    finish_reason: FinishReason


class Engine:
    """A model that is being served.

    Args:
        model: from `load_model`, or any decoder of transformers.
        config: sizes.

    Raises:
        TrtbuildError: the sizes contradict each other.
    """

    def __init__(self, model: PreTrainedModel, config: BatchingConfig) -> None:
        require_environment()
        check_sizes(config)
        self._model = model
        self._config = config
        self._vocab_size: int = model.config.get_text_config().vocab_size
        self._weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._running: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._free_reservation = 0
        self._num_reused = 0
        self._failure: str | None = "the engine has not been started"
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

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        on_chunk: OnChunk,
        *,
        params: SamplingParams | None = None,
        want_log_probs: bool = False,
    ) -> Sequence:
        """Accept a request and return at once.

        Args:
            prompt: token ids.
            max_tokens: length of the answer at most.
            on_chunk: called with every piece of the answer in order, the last one with a finish reason; usually in the
                engine's thread, so it must not block. If it raises, the request ends with an error.
            params: sampling settings; greedy when left out.
            want_log_probs: report log-probabilities.

        Raises:
            RequestError: the request cannot be served as asked, or the engine is not running.
        """
        params = params or SamplingParams()
        self.check(prompt, max_tokens, params)
        sequence = Sequence(str(next(self._ids)), prompt, params, max_tokens, on_chunk, want_log_probs)
        if params.has_penalties:
            sequence.counts = TokenCounts(prompt, self._vocab_size)
        with self._lock:
            if self._failure is not None:
                raise RequestError(f"the request was not accepted: {self._failure}", hint="restart the server")
            self._waiting.append(sequence)
            self._admit()
        return sequence

    def generate(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        params: SamplingParams | None = None,
        want_log_probs: bool = False,
    ) -> Answer:
        """Wait for a whole answer.

        Raises:
            RequestError: as `submit`, or the request failed on its way.
        """
        chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self.submit(
            prompt, max_tokens, lambda _, chunk: chunks.put(chunk), params=params, want_log_probs=want_log_probs
        )
        token_ids: list[int] = []
        log_probs: list[float] = []
        while True:
            chunk = chunks.get()
            token_ids += chunk.token_ids
            log_probs += chunk.log_probs or []
            if chunk.error is not None:
                raise RequestError(chunk.error)
            if chunk.finish_reason is not None:
                return Answer(token_ids, log_probs if want_log_probs else None, chunk.finish_reason)

    def cancel(self, sequence: Sequence) -> None:
        """End a request; its last chunk says "cancelled". A finished one is left alone."""
        if sequence.finish("cancelled"):
            self._leave(sequence)

    def stats(self) -> EngineStats:
        """Return the current numbers."""
        counts = self._sampler.counts
        with self._lock:
            running = list(self._running)
            active = len(running) + len(self._waiting)
        scheduled = min(counts.scheduled, len(running))
        # Counted by request, since the blocks of one that has just been cancelled are freed with the next step only.
        tables = only_allocator(self._cache).block_table
        used = len({block for name in running for block in tables.get(name, ())})
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

    def check(self, prompt: list[int], max_tokens: int, params: SamplingParams) -> None:
        """Raise RequestError if a request cannot be served as asked."""
        limit, size = self._config.max_seq_len, len(prompt)
        if not prompt:
            raise RequestError("the prompt has no tokens", hint="send at least one token")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"input_ids: token {token} is outside the vocabulary", hint=f"allowed: 0 to {self._vocab_size - 1}"
                )
        if max_tokens < 1:
            raise RequestError(f"request_output_len = {max_tokens} is not allowed", hint="allowed: at least 1")
        if size + max_tokens > limit:
            raise RequestError(
                f"prompt ({size} tokens) + request_output_len ({max_tokens}) = {size + max_tokens} exceeds max_seq_len = {limit}",
                hint=f"allowed: a sum of at most {limit}; shorten the prompt or ask for at most {max(0, limit - size)} tokens",
            )

        params.validate(self._vocab_size)

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

    def _guarded(self, sequence: Sequence, action: Callable[[], bool]) -> bool:
        """Return what the action returns; a request whose callback raises is ended, and no other is disturbed."""
        try:
            return action()
        except Exception as error:
            logger.exception("request %s: its callback failed", sequence.id)
            message = f"the answer could not be delivered: {type(error).__name__}: {error}"
        try:
            sequence.finish("error", message)
        except Exception:
            logger.exception("request %s: its callback failed again", sequence.id)
        return True

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

    def _fail_all(self, reason: str) -> None:
        """Accept nothing from now on, and give an error to every request; the first reason stays."""
        with self._lock:
            self._failure = self._failure or reason
            left = [*self._running.values(), *self._waiting]
        for sequence in left:
            self._fail(sequence, self._failure)

    def _fail(self, sequence: Sequence, reason: str) -> None:
        self._guarded(sequence, lambda: sequence.finish("error", reason))
        self._leave(sequence)
