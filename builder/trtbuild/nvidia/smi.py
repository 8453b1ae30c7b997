"""Asking nvidia-smi. Everything goes through an `Smi`, so that a test can answer in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

#: Called with the arguments of nvidia-smi; returns what it prints, None when it is missing or does not answer; raises SmiFailed.
Smi = Callable[[tuple[str, ...]], "str | None"]
_TIMEOUT_S = 10.0


class SmiFailed(Exception):
    """nvidia-smi answered that it cannot; the text is its first line."""


def ask_nvidia_smi(arguments: tuple[str, ...], *, environment: Mapping[str, str] | None = None) -> str | None:
    """Run nvidia-smi and return what it prints, None when it is missing or does not answer within ten seconds.

    Args:
        arguments: of nvidia-smi.
        environment: for PATH, of this process unless given.

    Raises:
        SmiFailed: it ended with an error, such as that of a driver that is not loaded.
    """
    found = os.environ if environment is None else environment
    tool = shutil.which("nvidia-smi", path=found.get("PATH"))
    if tool is None:
        return None
    try:
        answer = subprocess.run(
            [tool, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    text, errors = (stream.decode("utf-8", "replace") for stream in (answer.stdout, answer.stderr))
    if answer.returncode != 0:
        said = (text.strip() or errors.strip() or f"status {answer.returncode}").splitlines()
        raise SmiFailed(said[0])
    return text
