"""A whole load test: target, prompts, one run or several, files. What the command line does, without a command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtbuild_client.errors import ClientError
from trtbuild_client.load.conversation import Endpoint
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.result import document, write, write_text
from trtbuild_client.load.run import Progress, Run, run
from trtbuild_client.load.settings import DEFAULT_REQUESTS, Load, Prompts
from trtbuild_client.load.slo import Objective
from trtbuild_client.load.slo import check as check_objectives
from trtbuild_client.load.summary import Summary, summarize
from trtbuild_client.load.target import Target
from trtbuild_client.output_file import Named, check_apart
from trtbuild_client.readiness import wait_until_ready

Log = Callable[[str], None]
#: Empties the line of a terminal.
_BEGIN_LINE = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class Files:
    """Where results go; None for nowhere."""

    json: Path | None = None
    html: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    aiperf: Path | None = None

    def check(self, inputs: Sequence[Named] = ()) -> None:
        """Return if each result has a file of its own, and what writes it: found out before a run, not after it.

        Args:
            inputs: files that are read.

        Raises:
            InvalidRequest: a path is given twice or is that of an input, or Parquet without pyarrow.
        """
        from trtbuild_client.load import exports

        if self.parquet is not None:
            exports.need_pyarrow()
        outputs = (
            ("-o", self.json),
            ("--html", self.html),
            ("--csv", self.csv),
            ("--parquet", self.parquet),
            ("--aiperf", self.aiperf),
        )
        check_apart(outputs, inputs)


@dataclass
class LoadTest:
    """A load test.

    Args:
        target: who is asked.
        load: how much, and when.
        prompts: what.
        objectives: of the service.
        show: takes a line of progress, on a terminal.
        say: takes whole lines of progress of a search; None for nobody.
        wait_s: how long to wait until the model is ready, seconds; None for not at all.

    Attributes:
        runs: those that are done.
        stopped_by: number of the signal that ended the last one, None when it ended by itself.
    """

    target: Target
    load: Load
    prompts: Prompts
    objectives: Sequence[Objective] = ()
    show: Log | None = None
    wait_s: float | None = None
    runs: list[tuple[Summary, Run]] = field(default_factory=list)
    endpoint: Endpoint | None = None
    described: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    stopped_by: int | None = None
    say: Log | None = None

    def prepare(self) -> Dataset:
        """Ask the server what it is, and make the prompts.

        Raises:
            ClientError: what is asked for cannot be done.
        """
        from dataclasses import replace

        is_streaming = self.load.is_streaming
        check_objectives(self.objectives, is_streaming=is_streaming)
        self.created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        if self.wait_s is not None:
            wait_until_ready(self.target.max_seq_len, self.wait_s)
        self.endpoint, self.described = self.target.open()
        prompts = self.prompts
        if prompts.max_seq_len is None:
            prompts = replace(prompts, max_seq_len=self.target.max_seq_len())
        load = self.load
        wanted = load.requests or (DEFAULT_REQUESTS if load.duration_s is None else None)
        if self.show is not None:
            self.show(f"{_BEGIN_LINE}making prompts")
        dataset = prompts.dataset(None if wanted is None else wanted + load.warmup_requests)
        if self.show is not None:
            self.show(_BEGIN_LINE)
        longest = max(turn.max_tokens for session in dataset.sessions for turn in session)
        check_objectives(self.objectives, is_streaming=is_streaming, max_tokens=longest)
        return dataset

    def execute(self) -> list[Summary]:
        """Run all plans; return their summaries. An interrupted run is the last.

        Raises:
            ClientError: what is asked for cannot be done; nothing was sent.
        """
        dataset = self.prepare()
        plans = list(self.load.plans(dataset))
        for plan in plans:
            plan.check(dataset)
        for plan in plans:
            if self.measure(plan, dataset).client["interrupted"]:
                break
        return [summary for summary, _ in self.runs]

    def measure(
        self, plan: Plan, dataset: Dataset, *, until: Callable[[Progress], bool] = lambda progress: False
    ) -> Summary:
        """Make one run and keep it."""
        assert self.endpoint is not None
        line = Line(plan.label(dataset), self.show)

        def report(progress: Progress) -> bool:
            line.update(progress)
            return until(progress)

        done = run(self.endpoint, plan, dataset, on_progress=report)
        line.close()
        self.stopped_by = done.stopped_by
        summary = summarize(done, plan, dataset, objectives=self.objectives)
        self.runs.append((summary, done))
        return summary

    def document(self, extra: dict[str, Any] | None = None, *, has_records: bool = True) -> dict[str, Any]:
        """Return the result as JSON values."""
        whole = document(self.runs, endpoint=self.described, created=self.created, extra=extra)
        if not has_records:
            for each in whole["runs"]:
                del each["records"]
        return whole

    def write(self, files: Files, extra: dict[str, Any] | None = None) -> None:
        """Write what is wanted: every file that can be written, whatever becomes of the others.

        Raises:
            ClientError: some could not be written; names each with the reason.
        """
        failed = []
        for path, write_it in self._writers(files, extra):
            if path is None:
                continue
            try:
                write_it(path)
            except OSError as error:
                failed.append(f"{path}: {error.strerror or error}")
        if failed:
            raise ClientError(
                f"cannot be written: {'; '.join(failed)}",
                hint="What was there before is as it was, and other files are written. Check free space and permissions.",
            )

    def _writers(
        self, files: Files, extra: dict[str, Any] | None
    ) -> tuple[tuple[Path | None, Callable[[Path], None]], ...]:
        from trtbuild_client.load import exports

        def aiperf(path: Path) -> None:
            write(path, exports.aiperf(*self.runs[-1], described=self.described, created=self.created))

        def html(path: Path) -> None:
            from trtbuild_client.load.page import render

            write_text(path, render(self.runs, self.described, created=self.created, extra=extra))

        return (
            (files.json, lambda path: write(path, self.document(extra))),
            (files.csv, lambda path: exports.write_csv(path, self.runs)),
            (files.parquet, lambda path: exports.write_parquet(path, self.runs)),
            (files.aiperf, aiperf),
            (files.html, html),
        )


class Line:
    """A line of progress that is written over."""

    def __init__(self, label: str, show: Log | None) -> None:
        self._label = label
        self._show = show
        self._last = (0.0, 0)

    def update(self, progress: Progress) -> None:
        """Show how far it is."""
        if self._show is None:
            return
        before_s, before_tokens = self._last
        span = progress.elapsed_s - before_s
        rate = (progress.tokens - before_tokens) / span if span > 0 else 0.0
        self._last = progress.elapsed_s, progress.tokens
        failed = f", {progress.failed} failed" if progress.failed else ""
        self._show(
            f"{_BEGIN_LINE}{self._label}: {progress.elapsed_s:.0f} s, {progress.done} done{failed}, {progress.in_flight} in flight, "
            f"{rate:,.0f} events/s"
        )

    def close(self) -> None:
        """Remove the line."""
        if self._show is not None:
            self._show(_BEGIN_LINE)


def terminal_line(*, is_quiet: bool) -> Log | None:
    """Return where progress is shown: stderr if it is a terminal."""
    if is_quiet or not sys.stderr.isatty():
        return None
    return _to_stderr


def plain_lines(*, is_quiet: bool) -> Log | None:
    """Return where lines are written that stay: stderr, terminal or not."""
    if is_quiet:
        return None
    return lambda text: _to_stderr(f"{text}\n")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def failure(summaries: Sequence[Summary], *, max_error_rate: float, allow_invalid: bool) -> tuple[str, str] | None:
    """Return (what is wrong, what to do) when the runs cannot be relied on, else None."""
    for each in summaries:
        hint = f"The most frequent error was: {each.errors[0][0]}" if each.errors else "See the counts above."
        if not each.counts["total"] and each.counts["warmup"]:
            return (
                f"{each.label}: all {each.counts['warmup']} requests were warm-up: nothing was measured",
                "Make --warmup smaller, or --requests or --duration larger.",
            )
        if not each.counts["ok"]:
            return (
                f"{each.label}: no request succeeded ({each.counts['failed']} failed, {each.counts['cancelled']} cancelled)",
                hint,
            )
        if each.error_rate is not None and each.error_rate > max_error_rate:
            return (
                f"{each.label}: {each.counts['failed']} of {each.counts['total']} requests failed, "
                f"more than --max-error-rate {max_error_rate:g}",
                hint,
            )
    for each in summaries:
        if not each.is_valid and not allow_invalid:
            return (
                f"{each.label}: the run is invalid: {each.invalid_reasons[0]}",
                "Its numbers say more about the client than about the server; --allow-invalid accepts them.",
            )
    return None
