"""One request on its way through the engine: what was asked, what has been generated, when, and who is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from trtbuild.reference.choose import TokenCounts
from trtbuild.reference.sampling import SamplingParams
from trtbuild.reference.words import StopWords

FinishReason = Literal["end_id", "stop_words", "length", "draft", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """News of one request.

    Attributes:
        token_ids: newly released tokens; may be empty in the last chunk.
        log_probs: natural logarithm of each token's probability under the model, parallel to `token_ids`; None unless
            asked for.
        finish_reason: set in the last chunk only.
        error: what went wrong, when finish_reason is "error".
    """

    token_ids: list[int]
    log_probs: list[float] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True)
class Timing:
    """Moments of a request, time.monotonic_ns; None until they happen."""

    arrival_ns: int
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None


@dataclass(slots=True)
class KvUse:
    """Cache blocks of a request: `reused` were found already filled, `total` is all it ended up with."""

    reused_blocks: int = 0
    total_blocks: int = 0


OnChunk = Callable[["Sequence", Chunk], None]
"""Receives every chunk of a request in order, the last one with a finish reason."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its answer.

    `tokens` holds everything generated, held-back tokens and the end included, since penalties and stop words look at
    it; what the caller gets comes in chunks. `finish` may be called from any thread, and only the first call counts.
    With draft tokens the answer ends ("draft") with the first token that is none of them, as the C++ backend ends it after
    the one step in which it checks them; here they are checked one by one, which is slower and gives the same tokens.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    on_chunk: OnChunk
    wants_log_probs: bool = False
    draft: tuple[int, ...] = ()
    timing: Timing = field(default_factory=lambda: Timing(time.monotonic_ns()))
    kv: KvUse = field(default_factory=KvUse)
    tokens: list[int] = field(default_factory=list)
    counts: TokenCounts | None = None
    choice_error: str | None = None
    _log_probs: list[float] = field(default_factory=list)
    _stop: StopWords = field(init=False)
    _num_released: int = 0
    _finish_reason: FinishReason | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._stop = StopWords(self.params.stop_words)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        return self._finish_reason

    @property
    def num_accepted(self) -> int:
        """How many draft tokens were generated as well, from the first on."""
        pairs = enumerate(zip(self.draft, self.tokens, strict=False))
        agreeing = (at for at, (guess, token) in pairs if guess != token)
        return next(agreeing, min(len(self.draft), len(self.tokens)))

    @property
    def num_released(self) -> int:
        """How many tokens the caller has been given."""
        return self._num_released

    @property
    def needs_choosing(self) -> bool:
        """True when the engine must look at the logits itself instead of taking the plain argmax."""
        return self.wants_log_probs or self.params.changes_choice

    def note_log_prob(self, value: float) -> None:
        """Remember the log-probability of the token that comes next."""
        self._log_probs.append(value)

    def push(self, token: int) -> FinishReason | None:
        """Take the next generated token, tell the caller what it releases, and return why the answer ended, if so."""
        with self._lock:
            if self._finish_reason is not None:
                return self._finish_reason
            now = time.monotonic_ns()
            self.timing.first_token_ns = self.timing.first_token_ns or now
            self.timing.last_token_ns = now
            self.tokens.append(token)
            if self.counts is not None:
                self.counts.add(token)
            reason: FinishReason | None = None
            if token == self.params.end_id:
                reason, released = "end_id", self._stop.flush()
            else:
                released, is_complete = self._stop.push(token)
                if is_complete:
                    reason = "stop_words"
                elif len(self.tokens) >= self.max_tokens:
                    reason, released = "length", released + self._stop.flush()
                elif self.draft and self.num_accepted < len(self.tokens):
                    reason, released = "draft", released + self._stop.flush()
            if released or reason is not None:
                self._tell(released, reason)
            return reason

    def finish(self, reason: FinishReason, error: str | None = None) -> bool:
        """End the answer from outside; return False when it had ended already."""
        with self._lock:
            if self._finish_reason is not None:
                return False
            self._tell([], reason, error)
            return True

    def _tell(self, released: list[int], reason: FinishReason | None, error: str | None = None) -> None:
        start = self._num_released
        self._num_released += len(released)
        self._finish_reason = reason
        log_probs = self._log_probs[start : self._num_released] if self.wants_log_probs else None
        self.on_chunk(self, Chunk(released, log_probs, reason, error))
