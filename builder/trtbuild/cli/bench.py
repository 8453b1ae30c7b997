"""`trtbuild bench`: load-test a server, closed or open loop, and say what the numbers are worth."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli import bench_options as options
from trtbuild.cli.options import common, json_output
from trtbuild_client.options import access, waiting

#: Columns of what is no terminal: room for every interval.
_WIDTH = 100
#: As a shell counts: 128 + SIGTERM.
_TERMINATED = 143


@click.command(
    epilog="Example: trtbuild bench --rate 4 --duration 60s --slo ttft.p95=500ms,itl.p95=40ms --html report.html"
)
@options.server
@access
@waiting
@options.load
@options.prompts
@options.verdict
@options.output
@json_output
@common
def bench(as_json: bool, quiet: bool, **given: Any) -> None:
    """Load-test a Triton or OpenAI-compatible server: latencies with intervals, goodput, capacity."""
    from trtbuild_client.load.signals import Terminated, obeyed

    try:
        with obeyed():
            _bench(given, as_json=as_json, quiet=quiet)
    except Terminated:
        click.echo("terminated", err=True)
        raise click.exceptions.Exit(_TERMINATED) from None


def _bench(given: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    from trtbuild.cli.bench_settings import from_options
    from trtbuild.console import print_json, stdout_console
    from trtbuild.errors import CheckFailed
    from trtbuild_client.load.session import failure, plain_lines, terminal_line
    from trtbuild_client.load.show import table
    from trtbuild_client.load.signals import leave

    test, files = from_options(given, show=terminal_line(is_quiet=quiet))
    extra: dict[str, Any] = {}
    if given["find_capacity"]:
        from trtbuild_client.load.capacity_run import search

        test.say = plain_lines(is_quiet=quiet)
        capacity = search(test)
        extra = {"capacity": capacity.to_json()}
        summaries = [summary for summary, _ in test.runs]
    else:
        summaries = test.execute()
    try:
        test.write(files, extra)
    finally:  # a full disk must not take the numbers with it
        if as_json:
            print_json(test.document(extra, has_records=False))
        else:
            console = stdout_console()
            console.width = console.width if console.is_terminal else max(console.width, _WIDTH)
            for summary in summaries:
                console.print(table(summary))
            if extra:
                console.print(capacity.text())
    if test.stopped_by is not None:
        leave(test.stopped_by)
    if extra:  # its points are overloaded on purpose: their failures are part of the answer
        if capacity.low == 0:
            raise CheckFailed(capacity.text(), hint="Raise the limits of --slo, or make the server faster.")
        if capacity.problem and not given["allow_invalid"]:
            raise CheckFailed(
                f"the search ended before an objective was missed or narrowed down: {capacity.problem}",
                hint="The server may hold more; --allow-invalid accepts what was found.",
            )
        return
    problem = failure(summaries, max_error_rate=given["max_error_rate"], allow_invalid=given["allow_invalid"])
    if problem is not None:
        raise CheckFailed(problem[0], hint=problem[1])
