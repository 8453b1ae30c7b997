"""Many prompts at once: bounded concurrency, results in order, each failure its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from trtbuild_client.arguments import of_type, whole
from trtbuild_client.errors import Cancelled, ClientError, InvalidRequest
from trtbuild_client.records import Generation
from trtbuild_client.workers import run_interruptibly

#: Threads or tasks beyond it help nobody, and no system has so many connections.
MOST_CONCURRENCY = 65_536


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


def checked(prompts: Iterable[str], concurrency: int) -> list[str]:
    """Return the prompts of a batch.

    Raises:
        InvalidRequest: they or the concurrency cannot be.
    """
    if isinstance(prompts, (str, bytes)):
        raise InvalidRequest(f"prompts is one {type(prompts).__name__}", hint="Give a list of prompts.")
    of_type("prompts", prompts, Iterable, "an iterable of str")
    whole("concurrency", concurrency, 1, MOST_CONCURRENCY)
    return list(prompts)


def work_off(
    prompts: Iterable[str],
    ask: Callable[[str], Generation],
    *,
    concurrency: int,
    cancel: Callable[[], object],
) -> list[BatchResult]:
    """Ask for every prompt in `concurrency` threads.

    Args:
        cancel: ends what runs, when the main thread is interrupted.

    Raises:
        InvalidRequest: see `checked`.
        KeyboardInterrupt: the main thread was interrupted.
    """
    listed = checked(prompts, concurrency)
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in range(len(listed)):
        waiting.put(index)
    never = BatchResult(error=Cancelled("the request was never sent", hint="The batch ended before its turn."))
    results = [never] * len(listed)

    def work(is_interrupted: threading.Event) -> None:
        while not is_interrupted.is_set():
            try:
                index = waiting.get_nowait()
            except Empty:
                return
            try:
                results[index] = BatchResult(ask(listed[index]))
            except ClientError as error:
                results[index] = BatchResult(error=error)

    run_interruptibly(work, min(concurrency, len(listed)), cancel=cancel)
    return results
