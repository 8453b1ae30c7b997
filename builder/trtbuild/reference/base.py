"""What both engines share: requests come in, are checked, told about and cancelled.

Knows nothing about batches: an engine says how waiting requests get in (`_admit`) and how one gets out (`_leave`).
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.choose import TokenCounts
from trtbuild.reference.environment import require_environment
from trtbuild.reference.fit import check_positions, check_sizes
from trtbuild.reference.sampling import RequestError, SamplingParams
from trtbuild.reference.sequence import Chunk, FinishReason, OnChunk, Sequence
from trtbuild.reference.stats import EngineStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

EngineT = TypeVar("EngineT", bound="BaseEngine")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its tokens, their log-probabilities if asked for, and why it ended."""

    token_ids: list[int]
    log_probs: list[float] | None
    finish_reason: FinishReason


class BaseEngine(ABC):
    """A model that is being served. Thread-safe.

    Args:
        model: from `load_model`, or any decoder of transformers.
        config: sizes.

    Raises:
        TrtbuildError: the sizes contradict each other, or exceed the positions of the model.
    """

    def __init__(self, model: PreTrainedModel, config: BatchingConfig) -> None:
        require_environment()
        check_sizes(config)
        check_positions(config, model.config.get_text_config().to_dict())
        self._model = model
        self._config = config
        self._vocab_size: int = model.config.get_text_config().vocab_size
        self._weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._running: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._failure: str | None = "the engine has not been started"

    @abstractmethod
    def start(self) -> None:
        """Start the loop.

        Raises:
            TrtbuildError: memory does not suffice.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the loop; requests that are still running get an error."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Return the current numbers."""

    @abstractmethod
    def _admit(self) -> None:
        """Let waiting requests in as far as there is room. Called with the lock held."""

    @abstractmethod
    def _leave(self, sequence: Sequence) -> None:
        """Take a finished request out; does nothing when it has left already."""

    def __enter__(self: EngineT) -> EngineT:
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
        draft: tuple[int, ...] = (),
    ) -> Sequence:
        """Accept a request and return at once.

        Args:
            prompt: token ids.
            max_tokens: length of the answer at most.
            on_chunk: called with every piece of the answer in order, the last one with a finish reason; usually in the
                engine's thread, so it must not block. If it raises, the request ends with an error.
            params: sampling settings; greedy when left out.
            want_log_probs: report log-probabilities.
            draft: tokens that the answer is guessed to begin with; it ends with the first that is none of them.

        Raises:
            RequestError: the request cannot be served as asked, or the engine is not running.
        """
        params = params or SamplingParams()
        self.check(prompt, max_tokens, params, draft=draft)
        sequence = Sequence(str(next(self._ids)), prompt, params, max_tokens, on_chunk, want_log_probs, draft)
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

    def check(self, prompt: list[int], max_tokens: int, params: SamplingParams, *, draft: tuple[int, ...] = ()) -> None:
        """Raise RequestError if a request cannot be served as asked."""
        limit, size = self._config.max_seq_len, len(prompt)
        if not prompt:
            raise RequestError("the prompt has no tokens", hint="send at least one token")
        for name, tokens in (("input_ids", prompt), ("draft_input_ids", draft or prompt)):
            for token in (min(tokens), max(tokens)):
                if not 0 <= token < self._vocab_size:
                    raise RequestError(
                        f"{name}: token {token} is outside the vocabulary", hint=f"allowed: 0 to {self._vocab_size - 1}"
                    )
        if max_tokens < 1:
            raise RequestError(f"request_output_len = {max_tokens} is not allowed", hint="allowed: at least 1")
        if size + max_tokens > limit:
            raise RequestError(
                f"prompt ({size} tokens) + request_output_len ({max_tokens}) = {size + max_tokens} exceeds max_seq_len = {limit}",
                hint=f"allowed: a sum of at most {limit}; shorten the prompt or ask for at most {max(0, limit - size)} tokens",
            )

        params.validate(self._vocab_size)

    def _unfinished(self) -> list[Sequence]:
        """Return the running requests that have not been told their last chunk. Call with the lock held."""
        return [sequence for sequence in self._running.values() if sequence.finish_reason is None]

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
