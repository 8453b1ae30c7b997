"""Runs a plan: in this process, or in several that begin at one common time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

from trtbuild_client.descriptors import raise_limit
from trtbuild_client.errors import ClientError, InvalidRequest
from trtbuild_client.load.conversation import Endpoint
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.driver import Driver
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.signals import Stop, blocked, noted
from trtbuild_client.load.strain import StrainReport
from trtbuild_client.load.table import RecordTable, merged
from trtbuild_client.load.workload import Workload

#: From the moment when all processes are ready to the beginning of the run.
_HEAD_START_NS = 100_000_000
#: How often is looked for a signal while no process says anything.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Run:
    """What happened.

    Attributes:
        table: all requests, in the order of sending.
        strain: of each process.
        started_ns: the beginning of the schedule.
        peak_in_flight: most requests at the same time; with several processes the sum of theirs.
        stopped_by: number of the signal that ended it, None when it ended by itself.
    """

    table: RecordTable
    strain: list[StrainReport]
    started_ns: int
    peak_in_flight: int
    connections_opened: int
    stopped_by: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that runs.

    Attributes:
        first_ns: when its first token came, None while none has.
    """

    due_ns: int
    first_ns: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        table: what has ended so far; None when several processes share the work.
        waiting: what runs; empty then.
    """

    elapsed_s: float
    sent: int
    done: int
    failed: int
    in_flight: int
    tokens: int
    table: RecordTable | None = None
    waiting: tuple[Waiting, ...] = ()


Report = Callable[[Progress], bool]


def run(endpoint: Endpoint, plan: Plan, dataset: Dataset, *, on_progress: Report = lambda progress: False) -> Run:
    """Run a plan to its end, or to an interruption.

    Args:
        endpoint: where to send.
        plan: what to send.
        dataset: the prompts.
        on_progress: called twice a second; the run is stopped when it returns True (with one process).

    Raises:
        InvalidRequest: the plan cannot be carried out, here or at all.
        KeyboardInterrupt: a second signal came; the first one ends the run.
    """
    workloads = plan.workloads(dataset)
    room = raise_limit()
    wanted = max(endpoint.descriptors(each.concurrency) for each in workloads) if plan.is_closed(dataset) else 0
    if wanted > room:
        raise InvalidRequest(
            f"concurrency {plan.concurrency} takes {wanted} open files in a process, and the system allows {room}",
            hint="Raise the hard limit (ulimit -Hn), or use more --processes or --streams-per-connection.",
        )
    with noted() as stop:
        if len(workloads) == 1:
            return _here(endpoint, workloads[0], on_progress, stop)
        return _spawned(endpoint, workloads, on_progress, stop)


def _here(endpoint: Endpoint, workload: Workload, on_progress: Report, stop: Stop) -> Run:
    def tick(driver: Driver) -> bool:
        return on_progress(_progress(driver, is_shared=False)) or stop.signal is not None

    driver = Driver(endpoint, workload, on_tick=tick)
    driver.run()
    return Run(
        merged([driver.table]),
        [driver.strain.report()],
        driver.started_ns,
        driver.peak,
        driver.connections_opened,
        stop.signal,
    )


def _progress(driver: Driver, *, is_shared: bool) -> Progress:
    outcomes = driver.table.columns["outcome"]
    return Progress(
        elapsed_s=(time.perf_counter_ns() - driver.started_ns) / 1e9,
        sent=driver.sent,
        done=len(driver.table),
        failed=len(outcomes) - outcomes.count(0),
        in_flight=len(driver.active),
        tokens=len(driver.table.events),
        table=None if is_shared else driver.table,
        waiting=()
        if is_shared
        else tuple(Waiting(each.due_ns, each.event_ns[0] if each.event_ns else None) for each in driver.active),
    )


def _work(pipe: Pipe, endpoint: Endpoint, workload: Workload) -> None:
    """Be one of the processes: say when ready, wait for the time of the start, run until done or told to stop, send the result."""
    is_told = False

    def tell(driver: Driver) -> bool:
        nonlocal is_told
        pipe.send(_progress(driver, is_shared=True))
        is_told = is_told or pipe.poll()
        return is_told

    driver = Driver(endpoint, workload, on_tick=tell)
    try:
        pipe.send("ready")
        driver.run(pipe.recv())
        strain = [driver.strain.report()]
        pipe.send(Run(driver.table, strain, driver.started_ns, driver.peak, driver.connections_opened))
    except (EOFError, ConnectionError):  # the process that wanted the result is gone
        return


def _spawned(endpoint: Endpoint, workloads: list[Workload], on_progress: Report, stop: Stop) -> Run:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in workloads]
    processes = [
        context.Process(target=_work, args=(there, endpoint, workload), daemon=True)
        for (_, there), workload in zip(pairs, workloads, strict=True)
    ]
    pipes = [here for here, _ in pairs]
    try:
        _start(processes)
        for _, there in pairs:
            there.close()
        results = _gather(pipes, on_progress, stop)
        for process in processes:
            process.join(timeout=5)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return Run(
        table=merged([each.table for each in results]),
        strain=[strain for each in results for strain in each.strain],
        started_ns=results[0].started_ns,
        peak_in_flight=sum(each.peak_in_flight for each in results),
        connections_opened=sum(each.connections_opened for each in results),
        stopped_by=stop.signal,
    )


def _start(processes: list[Any]) -> None:
    """Start processes that signals do not reach: only this process is told, whoever got the signal, and tells them."""
    resource_tracker.ensure_running()  # it unblocks the signals
    with blocked():
        for process in processes:
            process.start()


def _gather(pipes: list[Any], on_progress: Report, stop: Stop) -> list[Run]:
    """Return what the processes send in the end."""
    for pipe in pipes:
        _receive(pipe)  # "ready"
    epoch_ns = time.perf_counter_ns() + _HEAD_START_NS  # the clock is the same in all processes of a machine
    for pipe in pipes:
        pipe.send(epoch_ns)
    results: dict[int, Run] = {}
    last: dict[int, Progress] = {}
    is_stopping = False
    while len(results) < len(pipes):
        waiting = [pipe for index, pipe in enumerate(pipes) if index not in results]
        for pipe in wait(waiting, timeout=_LOOK_S):
            index = pipes.index(pipe)
            message = _receive(pipe)
            if isinstance(message, Run):
                results[index] = message
            else:
                last[index] = message
        if last:
            on_progress(_sum(list(last.values())))
        if stop.signal is not None and not is_stopping:
            is_stopping = True
            for pipe in waiting:
                with suppress(OSError):  # it has ended meanwhile
                    pipe.send("stop")
    return [results[index] for index in range(len(pipes))]


def _receive(pipe: Any) -> Any:
    try:
        return pipe.recv()
    except EOFError as error:
        raise ClientError(
            "a process of the load test died", hint="Its message is above; is there enough memory?"
        ) from error


def _sum(parts: list[Progress]) -> Progress:
    return Progress(
        elapsed_s=max(each.elapsed_s for each in parts),
        sent=sum(each.sent for each in parts),
        done=sum(each.done for each in parts),
        failed=sum(each.failed for each in parts),
        in_flight=sum(each.in_flight for each in parts),
        tokens=sum(each.tokens for each in parts),
    )
