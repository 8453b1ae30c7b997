"""`trtbuild serve`: start tritonserver on a model repository, say where it listens, stop it on Ctrl-C; or write what others start."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from trtbuild.cli.launch_options import LaunchOptions, launch_options, listen_options
from trtbuild.cli.options import common, json_output
from trtbuild_client.options import duration

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(epilog="Example: trtbuild serve build/qwen --http-port 0 --grpc-port 0 --metrics-port 0")
@click.argument("repo", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--server", type=_FILE, metavar="PATH", help="The tritonserver binary; default: look for one.")
@listen_options
@click.option("--ready-timeout", type=duration, metavar="TIME", help="Until every model must be ready, in seconds or with a unit. [default: 120, or 960 unless local]")  # fmt: skip
@click.option("--grace", type=duration, metavar="TIME", default="10s", show_default=True, help="For requests in flight when stopping.")  # fmt: skip
@click.option("--restarts", type=click.IntRange(min=0), default=0, show_default=True, help="Starts again so often when the server or a Python model ends by itself.")  # fmt: skip
@click.option("--smoke", metavar="TEXT", help="Send TEXT when ready; exit code 3 if no answer comes.")
@click.option("--model-control", type=click.Choice(["none", "explicit"]), default="none", show_default=True, help="explicit allows `trtbuild reload`; loopback only.")  # fmt: skip
@launch_options
@click.option("--log", "log_path", type=_FILE, metavar="FILE", help="Append the server's whole log to FILE.")
@json_output
@common
def serve(
    repo: Path, server: Path | None, ready_timeout: float | None, grace: float, restarts: int, smoke: str | None,
    model_control: Literal["none", "explicit"], launch: LaunchOptions, log_path: Path | None, as_json: bool, quiet: bool,
    **listen: Any,
) -> None:  # fmt: skip
    """Start tritonserver on REPO, a model repository or a build folder that has one, and keep it running.

    When every model is ready its addresses are printed on stdout (--json: one line). Warnings, errors and what models
    print appear on stderr. Ctrl-C or SIGTERM stops the server once requests in flight are done (exit 0), a second one
    at once; interrupted before it is ready: exit 130. If the server or the process of a Python model ends by itself:
    exit 1 with the last log lines. --with says how it is launched; --dry-run prints that, and -o writes it.
    """
    from trtbuild.cli.launch_report import present
    from trtbuild.printable import printable
    from trtbuild.serve import keeping
    from trtbuild.serve.defaults import listen_settings
    from trtbuild.serve.launch.obstacles import clear
    from trtbuild.serve.launch.prepare import prepare
    from trtbuild.serve.launch.run import Run, server_for
    from trtbuild.serve.report import announce
    from trtbuild.serve.server_log import is_notable
    from trtbuild.serve.signals import stop_signals_interrupt
    from trtbuild.serve.smoke import smoke as ask
    from trtbuild.serve.supervisor import Server

    def echo(line: str) -> None:
        if is_notable(line) and not quiet:
            click.echo(printable(line), err=True)

    def tell(running: Server) -> None:
        if smoke is not None:
            ask(running, smoke)
        announce(running, as_json=as_json)

    where = listen_settings(repo, **listen)
    plan, way, obstacles = prepare(repo, launch, where, server=server, grace_s=grace, ready_timeout_s=ready_timeout)
    if launch.dry_run or launch.output or not way.runs:
        present(plan, way, launch, obstacles, as_json=as_json)
        return
    made = server_for(plan, way, Run(repo, server, log_path, echo, model_control))
    clear(obstacles)
    with stop_signals_interrupt():
        keeping.keep(made, restarts=restarts, on_ready=tell)
