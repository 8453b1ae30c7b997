"""Keeping a server running: started again when it ends by itself, so many times at most, waiting longer each time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trtbuild.errors import CheckFailed, TrtbuildError
from trtbuild.serve.supervisor import Server

log = logging.getLogger(__name__)

#: Seconds before the first restart; doubled for each further one, up to the limit.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def keep(
    server: Server, *, restarts: int, on_ready: Callable[[Server], None], pause: Callable[[float], None] = time.sleep
) -> None:
    """Start a server, tell when it is ready, and watch it; return when an interruption (Ctrl-C) has ended a server that was ready.

    Args:
        server: started and stopped here, on the same ports each time.
        restarts: how often it is started again after it ended by itself. A first start that fails is never repeated: it would fail again.
        on_ready: called each time that it has become ready.
        pause: waits so many seconds.

    Raises:
        TrtbuildError: it did not start, or ended once more than that.
        CheckFailed: what `on_ready` checks failed.
        KeyboardInterrupt: it was interrupted before the server was ready, or a second time while it was stopping.
    """
    done = 0
    while True:
        try:
            with server:
                try:
                    on_ready(server)
                    server.watch()
                except KeyboardInterrupt:
                    return  # asked to stop, which leaving the block does; a second interruption there is raised
        except CheckFailed:
            raise
        except TrtbuildError as error:
            if not server.was_ready or done >= restarts:
                times = f" after {done} restart(s)" if done else ""
                raise type(error)(f"{error.message}{times}", hint=error.hint) from error
            done += 1
            seconds = pause_before(done)
            log.warning("%s\nrestart %d of %d in %g s", error.message, done, restarts, seconds)
            pause(seconds)


def pause_before(restart: int) -> float:
    """Return the seconds to wait before a restart; the first is 1."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (restart - 1))
