"""Waiting for a server whose models load. Knows no protocol."""

from __future__ import annotations

import time
from collections.abc import Callable

from trtbuild_client.errors import ConnectError, NotReady

_PAUSE_S = 0.25


def wait_until_ready(ask: Callable[[], object], within_s: float | None) -> None:
    """Ask until server and model are ready; a server that is not there yet may still come.

    Args:
        ask: returns when they are ready, and raises what is wrong when not.
        within_s: seconds after which the last error is final; None asks once.

    Raises:
        ConnectError, NotReady: they were not ready within the time.
        ClientError: anything else at once, since waiting does not mend it.
    """
    deadline_s = time.monotonic() + (within_s or 0.0)
    while True:
        try:
            ask()
            return
        except (ConnectError, NotReady) as error:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                if within_s is not None:
                    error.hint = f"It was waited for {within_s:g} s. {error.hint}"
                raise
            time.sleep(min(_PAUSE_S, left_s))
