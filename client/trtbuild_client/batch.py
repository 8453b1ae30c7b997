"""Many prompts at once: bounded concurrency, results in order, each failure its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from trtbuild_client.errors import Cancelled, ClientError, InvalidRequest
from trtbuild_client.records import Generation
from trtbuild_client.workers import run_interruptibly


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of one prompt: exactly one of both is there.

    Attributes:
        generation: the answer.
        error: why there is none; its `partial_text` holds what had arrived.
    """

    generation: Generation | None = None
    error: ClientError | None = None

    @property
    def text(self) -> str:
        """The text of the answer.

        Raises:
            ClientError: there is none.
        """
        if self.generation is None:
            assert self.error is not None
            raise self.error
        return self.generation.text


def check(prompts: Sequence[str], concurrency: int) -> None:
    """Check what a batch was asked for.

    Raises:
        InvalidRequest: it cannot be.
    """
    if isinstance(prompts, str):
        raise InvalidRequest("prompts is one str", hint="Give a list of prompts.")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidRequest(f"concurrency={concurrency!r}", hint="It must be an integer of at least 1.")


def work_off(
    prompts: Sequence[str],
    ask: Callable[[str], Generation],
    *,
    concurrency: int,
    cancel: Callable[[], object],
) -> list[BatchResult]:
    """Ask for every prompt in `concurrency` threads.

    Args:
        cancel: ends what runs, when the main thread is interrupted.

    Raises:
        InvalidRequest: see `check`.
        KeyboardInterrupt: the main thread was interrupted.
    """
    check(prompts, concurrency)
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in range(len(prompts)):
        waiting.put(index)
    never = BatchResult(error=Cancelled("the request was never sent", hint="The batch ended before its turn."))
    results = [never] * len(prompts)

    def work(is_interrupted: threading.Event) -> None:
        while not is_interrupted.is_set():
            try:
                index = waiting.get_nowait()
            except Empty:
                return
            try:
                results[index] = BatchResult(ask(prompts[index]))
            except ClientError as error:
                results[index] = BatchResult(error=error)

    run_interruptibly(work, min(concurrency, len(prompts)), cancel=cancel)
    return results
