"""Where output goes: results to stdout, everything else to stderr. The only module that configures logging."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from trtbuild.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


class _Formatter(logging.Formatter):
    """Messages as they are, in characters that can be printed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Advance(Protocol):
    """Called with the number of bytes (or items) that were just finished."""

    def __call__(self, amount: int, /) -> None: ...


def setup_logging(*, quiet: bool, debug: bool) -> None:
    """Send the log of trtbuild to stderr: warnings only when quiet, everything when debug."""
    level = logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(message)s"))
    for name in ("trtbuild", "trtbuild_client"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def stderr_console() -> Console:
    """Return a rich console on stderr."""
    return _console(stderr=True)


def stdout_console() -> Console:
    """Return a rich console on stdout, for tables meant for people."""
    return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
    """Return a console that prints text as it is: brackets and colons of servers, models and paths are no markup. Style is for `Text`."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def stdout_width() -> int | None:
    """Return the characters that fit in a line of stdout: of the terminal or as COLUMNS says; None without either, as in a pipe or a file."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_json(value: Any) -> None:
    """Write one JSON document to stdout; NaN and infinity are refused, since JSON has neither."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def print_text(text: str) -> None:
    """Write one line of result text to stdout."""
    sys.stdout.write(text + "\n")


@contextmanager
def progress(label: str, total: int, *, quiet: bool, unit: str = "bytes") -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs; silent when quiet or when stderr is no terminal.

    Args:
        label: what is being done.
        total: amount of work, in `unit`.
        quiet: show nothing.
        unit: "bytes" shows sizes and bytes per second; anything else shows counts.
    """
    console = stderr_console() if not quiet and sys.stderr.isatty() else None
    if console is None:
        yield lambda amount, /: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    columns.append(TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount, /: bar.advance(task, amount)
