"""Errors raised on purpose. Knows exit codes; knows nothing about how an error is printed.

A message says what failed and the value seen; the hint says what is allowed and what to do.
"""

from __future__ import annotations


class TrtbuildError(Exception):
    """A failure the user can act on; ends the command with `exit_code` and no traceback.

    Args:
        message: what failed, with the value seen.
        hint: what is allowed and what to do; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(TrtbuildError):
    """The request itself is wrong: an unknown key, an impossible option, a missing argument (exit code 2)."""

    exit_code = 2


class CheckFailed(TrtbuildError):
    """A check did its work and found something (exit code 3)."""

    exit_code = 3


class ToolFailed(TrtbuildError):
    """A program that trtbuild needs is missing or failed; what was made before it is good, and the same command can go on from there."""
