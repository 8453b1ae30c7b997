"""The outermost edge: errors become messages and exit codes here and nowhere else.

Exit codes: 0 ok, 1 our error, 2 usage, 3 a check found something, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import click

from trtbuild.cli.group import cli
from trtbuild.errors import TrtbuildError

INTERRUPTED = 130


def _complain(message: str, hint: str = "") -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code; never raises, except with `--debug`."""
    debug = "--debug" in arguments
    try:
        result = cli.main(args=arguments, prog_name="trtbuild", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except TrtbuildError as error:
        if debug:
            raise
        _complain(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`): nothing is wrong, and flushing at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        if _is_client_error(error):
            _complain(str(error), getattr(error, "hint", ""))
            return 1
        _complain(
            f"unexpected {type(error).__name__}: {error}",
            "this is a defect of trtbuild; run again with --debug for the traceback and report it",
        )
        return 1
    return result if isinstance(result, int) else 0


def _is_client_error(error: Exception) -> bool:
    """Say whether the error comes from trtbuild_client, which derives its errors from a class of its own."""
    module = sys.modules.get("trtbuild_client.errors")
    return module is not None and isinstance(error, module.ClientError)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
