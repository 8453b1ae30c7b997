"""Work in threads that an interruption can end.

An interruption reaches the main thread only. Raised within grpc's own bookkeeping it can stop the thread that serves the
channel, and with it every later call, the one that cancels included; so the main thread waits, and others use grpc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: How often the main thread looks around: a signal that arrives just before it falls asleep does not wake it.
_LOOK_EVERY_S = 0.2
#: How often what is running is cancelled after an interruption; a worker may just have started another request.
_CANCEL_EVERY_S = 0.05


def run_interruptibly(work: Callable[[threading.Event], None], number: int, *, cancel: Callable[[], object]) -> None:
    """Run the same work in several threads and return when all are done.

    Args:
        work: gets the event that is set on interruption, and begins nothing new after it is.
        number: how many threads.
        cancel: ends what the threads wait for; called until they are gone.

    Raises:
        KeyboardInterrupt: the main thread was interrupted; the work has ended.
        Exception: what the first of the workers that failed raised.
    """
    is_interrupted = threading.Event()
    ended = threading.Semaphore(0)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(is_interrupted)
        except BaseException as error:  # raised again in the thread that waits
            failures.append(error)
        finally:
            ended.release()

    # Daemons: a second interruption ends the command even if a server never lets go.
    threads = [threading.Thread(target=run, name=f"trtbuild-client-{index}", daemon=True) for index in range(number)]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:  # not `join`: before Python 3.13 one that is interrupted takes its thread for ended
            while not ended.acquire(timeout=_LOOK_EVERY_S):
                pass
    except KeyboardInterrupt:
        is_interrupted.set()  # seen by a thread that is only now starting
        while any(thread.is_alive() for thread in threads):
            cancel()
            time.sleep(_CANCEL_EVERY_S)
        raise
    if failures:
        raise failures[0]
