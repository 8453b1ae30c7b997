"""Do something again and again in a thread of its own."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import triton_python_backend_utils as pb_utils


class Periodic:
    """Calls a function every so often until it is stopped.

    Args:
        period_ms: time between two calls, milliseconds.
        call: the function; an error is logged, and the next call comes all the same.
    """

    def __init__(self, period_ms: int, call: Callable[[], None]) -> None:
        self._period_s = period_ms / 1000
        self._call = call
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when no call is running and none will come."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            try:
                self._call()
            except Exception as error:  # the edge of the thread: it must outlive a failed call
                pb_utils.Logger.log_error(f"tensorrt_llm: {''.join(traceback.format_exception(error))}")
