"""Where the process begins, as `trtbuild` and as `python -m trtbuild`: an interruption ends it with 130 and no traceback at any time.

Imports as little as can be at the top: what is interrupted before this module has run is Python's own beginning. Until the command line is loaded, and after it is done, Ctrl-C ends the process at once: there is nothing to
clean up, and an exception in the midst of an import or of Python's own end would be printed.
"""

import os
import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; the entry point of the console script."""
    # A shell that starts a command in the background has it ignore SIGINT; then it stays so.
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles:
        signal.signal(signal.SIGINT, _leave)
    try:
        from trtbuild.cli.edge import main as command_line

        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    except KeyboardInterrupt:  # between two lines of the edge, or a second one while it reported the first
        _leave()
    finally:
        if handles:
            signal.signal(signal.SIGINT, _leave)


def _leave(*_signal: object) -> None:
    """End the process at once, as interrupted."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ):  # its reader is gone, it is closed, or it was interrupted while it wrote
            continue
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
