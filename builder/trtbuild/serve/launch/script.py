"""Commands as shell text: quoted, one option a line, and the same for every way that writes a script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence


def shell(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return a command over several lines, with variables in front of it."""
    words = [*(f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items())]
    lines = [" ".join([*words, shlex.quote(command[0])])]
    for word in map(shlex.quote, command[1:]):
        # An option's value stays on its line.
        if lines[-1].rstrip().rpartition(" ")[2].startswith("-") and not word.startswith("-") and "=" not in lines[-1].rpartition(" ")[2]:  # fmt: skip
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return " \\\n".join(lines)


def bash(text: str) -> str:
    """Return a script that stops at the first error."""
    return f"#!/bin/bash\nset -euo pipefail\n{text}\n"
