"""Options that several verbs share, so that a name, its help and its default exist once."""

from __future__ import annotations

from collections.abc import Callable
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
