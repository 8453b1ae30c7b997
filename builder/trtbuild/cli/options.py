"""Options that several verbs share, so that a name, its help and its default exist once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from trtbuild.console import setup_logging

F = TypeVar("F", bound=Callable[..., Any])


def _configure(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    quiet = bool(ctx.params.get("quiet", False))
    setup_logging(quiet=quiet, debug=value)
    return value


def common(function: F) -> F:
    """Add --quiet and --debug; the command receives `quiet: bool`."""
    function = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_configure, help="Log each tensor; show tracebacks."
    )(function)
    return click.option("-q", "--quiet", is_flag=True, is_eager=True, help="Print results and errors only.")(function)


def json_output(function: F) -> F:
    """Add --json; the command receives `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(function)


def force(function: F) -> F:
    """Add --force; the command receives `force: bool`."""
    return click.option("--force", is_flag=True, help="Replace the output if it exists.")(function)


class _OutputFile(click.Path):
    """A file that will be written when the work is done: what cannot be written is refused before it begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; see `output.check_file` for what it raises."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        from trtbuild.output import check_file

        check_file(path, force=True)
        return path


OUTPUT_FILE = _OutputFile()
#: No file, no memory and no count of bytes of the system is as long: they have 63 bits.
_NO_SIZE = 2**63
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """Return a number of bytes, written as 512MiB, 1GiB, 2GB or a number; a callback of options."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not 1 <= float(match[1]) * unit < _NO_SIZE:
        raise click.BadParameter(f"'{text}' is no size below 8 EiB: write 512MiB, 1GiB, 2GB or a number of bytes.")
    size = int(float(match[1]) * unit)
    from trtbuild.convert.budget import require_enough

    require_enough(size)
    return size


def memory(function: F) -> F:
    """Add --memory; the command receives `memory_bytes: int`."""
    return click.option(
        "--memory",
        "memory_bytes",
        default="1GiB",
        show_default=True,
        metavar="SIZE",
        callback=size,
        help="Memory a conversion may use above that of the interpreter (calibration needs one decoder layer more).",
    )(function)
