"""The outermost edge: errors become messages and exit codes here and nowhere else.

Exit codes: 0 ok, 1 our error, 2 usage, 3 a check found something, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtbuild.cli.group import cli
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.printable import printable
from trtbuild.termination import Terminated

if TYPE_CHECKING:
    from trtbuild_client.errors import ClientError

INTERRUPTED = 130
#: As a shell counts: 128 + SIGTERM.
TERMINATED = 143


def _complain(message: str, hint: str = "") -> None:
    click.echo(printable(f"error: {message}"), err=True)
    if hint:
        click.echo(printable(f"hint: {hint}"), err=True)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code; never raises, except with `--debug`."""
    debug = "--debug" in arguments
    try:
        _require_text(arguments)
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
    except (KeyboardInterrupt, click.Abort) as stop:  # click makes an Abort of any KeyboardInterrupt
        is_terminated = isinstance(stop, Terminated) or isinstance(stop.__cause__, Terminated)
        click.echo("terminated" if is_terminated else "interrupted", err=True)
        return TERMINATED if is_terminated else INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`): nothing is wrong, and flushing at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug:
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        _complain(what, "check the path, its permissions and the free space")
        return 1
    except Exception as error:
        if debug:
            raise
        if isinstance(error, UnicodeEncodeError) and not _is_text(here := str(Path.cwd())):
            refused = _not_text(here)
            _complain(refused.message, refused.hint)
            return refused.exit_code
        if (client_error := _as_client_error(error)) is not None:
            _complain(client_error.message, client_error.hint)
            return client_error.exit_code
        _complain(
            f"unexpected {type(error).__name__}: {error}",
            "this is a defect of trtbuild; run again with --debug for the traceback and report it",
        )
        return 1
    return result if isinstance(result, int) else 0


def _require_text(arguments: list[str]) -> None:
    """Raise UsageError for an argument that is not UTF-8: Python reads its bytes as surrogates, which no file or server takes as text.

    In the C locale it reads all bytes beyond ASCII so; whether they are UTF-8 is what counts.
    """
    for argument in arguments:
        if not _is_text(argument):
            raise _not_text(argument)


def _is_text(argument: str) -> bool:
    try:
        argument.encode("utf-8", errors="surrogateescape").decode("utf-8")
    except UnicodeError:
        return False
    return True


def _not_text(name: str) -> UsageError:
    shown = name.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="backslashreplace")
    return UsageError(f"'{shown}' is not UTF-8", hint="files that are written name their folders as text: rename it")


def _as_client_error(error: Exception) -> ClientError | None:
    """Return the error if it is one of trtbuild_client, whose module is not loaded for this question."""
    module = sys.modules.get("trtbuild_client.errors")
    return error if module is not None and isinstance(error, module.ClientError) else None


def main() -> None:
    """Run the command line and end the process with its exit code; see `__main__` for how the process begins."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # None where it was closed before (`>&-`)  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # also under LC_ALL=C
    # Its search for plugins among all installed packages takes longer than reading a trtbuild.yaml.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(run(sys.argv[1:]))
