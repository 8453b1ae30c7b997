"""Compare what load-test clients cost, and how right their times are, on one mock server in one run.

    python benchmarks/client.py [--quick] [--fetch] [--tritonclient PYTHON] [--aiperf PATH] [--parts cost busy memory schedule] [--json FILE]

Clients: `trtbuild bench` over its own transport, over grpcio and over HTTP; perf_analyzer 2.50.0 (the binary of tritonclient's wheel: `--fetch` puts it and what
it needs into the cache, once); tritonclient's synchronous and asyncio streams in the interpreter `--tritonclient`; AIPerf, where `--aiperf` names its executable.
Each is a process of its own that is measured from outside (getrusage with its children), so that start-up counts. Nothing else should run on the machine.

cost: every client runs a small and a large number of requests; the difference gives the CPU per event without start-up, the rest is start-up. They take turns, forth and
    back, round by round. Loads: paced (a token each 20 ms, every message its own wake-up) and burst (all 64 messages of an answer at once). Errors are 99th percentiles in
    milliseconds: the first token, and gaps between tokens, as seen by the client minus as written by the mock, on the clock of the machine. "-": it does not say when each came.
busy: the errors of `trtbuild bench` at more and more tokens per second, with the CPU of the client and how late the server was against its own schedule: over gRPC from
    the mock, and over HTTP from `client_replay.py`, which costs less than the client. It says which CPU share was reached.
memory: peak memory at 400 and at 4,000 requests.
schedule: an open loop of 200 requests/s for 30 s: Kolmogorov-Smirnov test of the send times against a Poisson process, and the send lag.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from client_peers import (
    ANALYZER,
    ANALYZER_LIBRARIES,
    CACHE,
    TOKENS,
    Command,
    Job,
    aiperf,
    analyzer,
    bench,
    fetch_analyzer,
    tritonclient,
)
from trtbuild.console import stdout_console

LOADS = {"paced": ("--ttft", "20ms", "--itl", "20ms"), "burst": ("--ttft", "20ms", "--burst")}
#: Of the requests, the small run has this share.
_SMALL = 0.2
#: (server, streams, milliseconds between tokens): 1.6 to 64 thousand tokens per second. The mock is as busy as a core can be long before the client
#: is; `client_replay.py` costs less than the client.
_BUSY = (
    ("mock", 32, 20), ("mock", 64, 10), ("mock", 128, 10), ("replay", 128, 10), ("replay", 256, 10), ("replay", 384, 10), ("replay", 512, 10),
    ("replay", 640, 10),
)  # fmt: skip
#: 99th percentiles that a client with half a core to do may be wrong by.
_TTFT_ERROR_MS, _ITL_ERROR_MS = 1.0, 0.5
_MEMORY = (400, 4000)
_RATE, _SECONDS = 200, 30
#: Starts a command and writes what it used. A process of its own, since Linux counts the memory of who starts a process to that process.
_LAUNCHER = """
import os, sys
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=file)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


@dataclass
class Result:
    """Of one client under one load; a list entry per round."""

    us_per_event: list[float] = field(default_factory=list)
    fixed_cpu_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    ttft_error_ms: list[float] = field(default_factory=list)
    itl_error_ms: list[float] = field(default_factory=list)


def main() -> None:
    arguments = parse_arguments()
    if arguments.fetch:
        fetch_analyzer()
    clients = contestants(arguments)
    measured: dict[str, Any] = {"machine": machine()}
    stdout_console().print(measured["machine"], soft_wrap=True)
    parts: dict[str, Callable[[], Any]] = {
        "cost": lambda: cost(clients, arguments),
        "busy": lambda: busy(arguments),
        "memory": lambda: memory(clients),
        "schedule": schedule,
    }
    for name in arguments.parts:
        began = time.perf_counter()
        measured[name] = parts[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if arguments.json:
            arguments.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 160 requests: about 6 minutes")
    parser.add_argument("--requests", type=int, help="of the large run; the small one has a fifth (320)")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, help="of all clients (5)")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--parts", nargs="+", choices=["cost", "busy", "memory", "schedule"])
    parser.add_argument("--fetch", action="store_true", help=f"download perf_analyzer into {CACHE} (pip, apt-get)")
    parser.add_argument("--tritonclient", default=sys.executable, metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--aiperf", metavar="PATH", help="executable of AIPerf in an environment of its own")
    parser.add_argument("--only", nargs="+", metavar="CLIENT", help="clients to measure, by their names in the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every number of every round")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or ["cost", "busy", "memory", "schedule"]
    arguments.requests = arguments.requests or (160 if arguments.quick else 320)
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    return arguments


def contestants(arguments: argparse.Namespace) -> dict[str, Command]:
    clients = {
        "bench": bench(),
        "bench, HTTP": bench(is_http=True),
        "bench, grpcio": bench("--transport", "grpcio"),
        "perf_analyzer": analyzer,
        "tritonclient sync": tritonclient(arguments.tritonclient, "sync"),
        "tritonclient aio": tritonclient(arguments.tritonclient, "aio"),
    }
    if not ANALYZER.exists():
        del clients["perf_analyzer"]
        print(f"perf_analyzer is skipped: it is not in {CACHE}; --fetch puts it there", file=sys.stderr)
    if arguments.aiperf:
        clients["AIPerf, HTTP"] = aiperf(arguments.aiperf)
    unknown = sorted(set(arguments.only or ()) - set(clients))
    if unknown:
        raise SystemExit(f"no client {unknown}; there are: {', '.join(clients)}")
    return {name: command for name, command in clients.items() if not arguments.only or name in arguments.only}


# The mock, and how a client is run.


@contextmanager
def mock(*options: str) -> Iterator[tuple[str, str]]:
    """Run a mock in a process of its own; give (gRPC address, HTTP address)."""
    ports = ["--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]
    command = [sys.executable, "-m", "trtbuild", "mock", *ports, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        try:
            yield addresses["grpc"], addresses["http"]
        finally:
            process.terminate()


@contextmanager
def replay(ttft_ms: float, itl_ms: float) -> Iterator[tuple[str, str]]:
    """Run the server of `client_replay.py` in a process of its own; give ("", HTTP address)."""
    script = Path(__file__).with_name("client_replay.py")
    command = [sys.executable, str(script), str(ttft_ms), str(itl_ms), str(TOKENS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield "", process.stdout.readline().strip()
        finally:
            process.terminate()


def ask(http: str, path: str, method: str = "GET") -> Any:
    """Return what the mock answers."""
    with urllib.request.urlopen(urllib.request.Request(f"http://{http}{path}", method=method)) as answer:
        return json.load(answer)


def run(command: Sequence[str]) -> tuple[float, float]:
    """Return (CPU seconds, peak MiB) of a command and the processes it waited for; of several processes the peak of the largest."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if command[0] == str(ANALYZER):
        environment["LD_LIBRARY_PATH"] = ANALYZER_LIBRARIES
    with tempfile.TemporaryFile() as log, tempfile.NamedTemporaryFile("r") as used:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, used.name, *command]
        code = subprocess.run(launcher, stdout=log, stderr=log, env=environment, check=False).returncode
        if code:
            log.seek(0)
            raise SystemExit(f"{command[0]}: {code}\n{log.read().decode(errors='replace')[-2000:]}")
        cpu_s, peak_kib = map(float, used.read().split())
    return cpu_s, peak_kib / 1024


# Errors of times.


def seen_by(job: Job) -> dict[int, NDArray[np.int64]] | None:
    """Return number of a request -> arrivals of its tokens, as the client saw them; None when it does not say."""
    if job.result.exists():
        (measured,) = json.loads(job.result.read_text("utf-8"))["runs"]
        columns, events = measured["records"]["columns"], np.array(measured["records"]["event_ns"])
        events += measured["records"]["started_ns"]
        return {
            number: events[columns["first_event"][row] :][: columns["events"][row]]
            for row, number in enumerate(columns["number"])
        }
    if job.arrivals.exists():
        events = np.frombuffer(job.arrivals.read_bytes(), np.int64).reshape(job.requests, TOKENS)
        return dict(enumerate(events))
    return None


def written_by(http: str) -> dict[int, dict[str, Any]]:
    """Return number of a request -> what the mock did with it."""
    numbered = ((each["request_id"].rpartition("-")[2], each) for each in ask(http, "/mock/schedule")["requests"])
    return {int(number): each for number, each in numbered if number.isdigit()}


def errors_ms(job: Job) -> tuple[float, float] | None:
    """Return 99th percentiles of the error of first tokens and of gaps, milliseconds; None when the client does not say."""
    seen = seen_by(job)
    if seen is None:
        return None
    first, gaps = [], []
    for number, written in written_by(job.http).items():
        sent, came = np.array(written["sent_ns"]), seen[number]
        first.append(came[0] - sent[0])
        gaps.append(np.diff(came) - np.diff(sent))
    return p99_ms(np.array(first)), p99_ms(np.concatenate(gaps))


def p99_ms(values: NDArray[np.int64]) -> float:
    return float(np.percentile(np.abs(values), 99)) / 1e6


# The parts.


def cost(clients: dict[str, Command], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all clients under all loads; print a table for each load."""
    results = {load: {name: Result() for name in clients} for load in arguments.loads}
    for load in arguments.loads:
        for number in range(arguments.rounds):
            for name in list(clients)[:: 1 if number % 2 == 0 else -1]:
                measure(results[load][name], clients[name], load, arguments)
                last = results[load][name]
                print(f"{load} {number} {name}: {last.us_per_event[-1]:.1f} us per event", file=sys.stderr)
        title = f"{load}: {arguments.requests} requests of {TOKENS} events, {arguments.concurrency} in flight; {arguments.rounds} rounds"
        show(title, ("us/event", "range", "start, CPU-s", "peak MiB", "TTFT error", "ITL error"), [
            (
                name, middle(each.us_per_event), f"{min(each.us_per_event):.0f}-{max(each.us_per_event):.0f}",
                *(middle(values, 2) for values in (each.fixed_cpu_s, each.rss_mib, each.ttft_error_ms, each.itl_error_ms)),
            )
            for name, each in results[load].items()
        ])  # fmt: skip
    return {load: {name: vars(each) for name, each in rows.items()} for load, rows in results.items()}


def measure(result: Result, command: Command, load: str, arguments: argparse.Namespace) -> None:
    """Run a client with few and with many requests, and add what it took."""
    sizes = [max(arguments.concurrency, round(arguments.requests * _SMALL)), arguments.requests]
    with mock(*LOADS[load]) as (grpc, http), tempfile.TemporaryDirectory() as folder:
        used = []
        for size in sizes:
            job = Job(grpc, http, size, arguments.concurrency, Path(folder))
            ask(http, "/mock/reset", "POST")
            cpu_s, rss_mib = run(command(job))
            used.append(cpu_s)
        errors = errors_ms(job)
    per_event = (used[1] - used[0]) / ((sizes[1] - sizes[0]) * TOKENS)
    result.us_per_event.append(1e6 * per_event)
    result.fixed_cpu_s.append(used[0] - per_event * sizes[0] * TOKENS)
    result.rss_mib.append(rss_mib)
    if errors is not None:
        result.ttft_error_ms.append(errors[0])
        result.itl_error_ms.append(errors[1])


def busy(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the errors of `trtbuild bench` at more and more tokens per second; print a table, and how busy the client was."""
    found = []
    for server, concurrency, itl_ms in _BUSY:
        is_http = server == "replay"
        served = replay(20, itl_ms) if is_http else mock("--ttft", "20ms", "--itl", f"{itl_ms}ms")
        with served as (grpc, http), tempfile.TemporaryDirectory() as folder:
            job = Job(grpc, http, concurrency * (5 if arguments.quick else 15), concurrency, Path(folder))
            run(bench("--ramp-up", "0.5s", is_http=is_http)(job))
            (measured,) = json.loads(job.result.read_text("utf-8"))["runs"]
            ttft_ms, itl_error_ms = errors_ms(job) or (0.0, 0.0)
            entries = written_by(http).values()
            late = np.concatenate([np.array(each["sent_ns"]) - np.array(each["intended_ns"]) for each in entries])
        client = measured["client"]
        found.append({
            "server": server, "concurrency": concurrency, "itl_ms": itl_ms, "events_per_s": client["events"] / measured["rates"]["duration_s"],
            "cpu_share": client["cpu_share_max"], "us_per_event": client["cpu_us_per_event"], "ttft_error_ms": ttft_ms,
            "itl_error_ms": itl_error_ms, "server_late_ms": p99_ms(late), "valid": measured["valid"], "reasons": measured["invalid_reasons"],
        })  # fmt: skip
    show("busy: trtbuild bench, errors by load", ("events/s", "client CPU", "us/event", "TTFT error", "ITL error", "server late", "valid"), [
        (
            f"{each['server']}, {each['concurrency']} x {each['itl_ms']} ms", f"{each['events_per_s']:,.0f}", f"{each['cpu_share']:.0%}",
            f"{each['us_per_event']:.1f}", f"{each['ttft_error_ms']:.3f}", f"{each['itl_error_ms']:.3f}",
            f"{each['server_late_ms']:.1f}", "yes" if each["valid"] else "no",
        )
        for each in found
    ])  # fmt: skip
    right = [
        each for each in found if each["ttft_error_ms"] <= _TTFT_ERROR_MS and each["itl_error_ms"] <= _ITL_ERROR_MS
    ]
    reached, shown = (max((each["cpu_share"] for each in rows), default=0.0) for rows in (found, right))
    stdout_console().print(
        f"client CPU reached: {reached:.0%} of a core; errors within {_TTFT_ERROR_MS:g} ms (TTFT) and {_ITL_ERROR_MS:g} ms (ITL) shown up to {shown:.0%}",
        soft_wrap=True,
    )
    return found


def memory(clients: dict[str, Command]) -> dict[str, list[float]]:
    """Measure the peak memory with few and with many requests; print a table."""
    chosen = {name: command for name, command in clients.items() if not name.startswith(("AIPerf", "bench,"))}
    peaks: dict[str, list[float]] = {name: [] for name in chosen}
    with mock(*LOADS["burst"]) as (grpc, http), tempfile.TemporaryDirectory() as folder:
        for requests in _MEMORY:
            for name, command in chosen.items():
                peaks[name].append(run(command(Job(grpc, http, requests, 32, Path(folder))))[1])
    columns = tuple(f"{requests} requests, MiB" for requests in _MEMORY)
    show("memory: peak, burst", columns, [(name, *(f"{each:.0f}" for each in row)) for name, row in peaks.items()])
    return peaks


def schedule() -> dict[str, Any]:
    """Run an open loop; print the test of its send times, and its lag."""
    with mock("--ttft", "5ms", "--itl", "2ms") as (grpc, _), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        load = ["--rate", str(_RATE), "--duration", f"{_SECONDS}s", "--prompt", "hello", "--output-tokens", "4"]
        run([sys.executable, "-m", "trtbuild", "bench", "--url", grpc, *load, "--allow-invalid", "-q", "--json", "-o", str(out)])  # fmt: skip
        (measured,) = json.loads(out.read_text("utf-8"))["runs"]
    sent = np.sort(np.array(measured["records"]["columns"]["sent_ns"])) / 1e9
    p_value = kolmogorov(sent / _SECONDS)
    lag_ms = measured["client"]["send_lag_p99_ns"] / 1e6
    why = measured["invalid_reasons"]
    show(f"schedule: Poisson, {_RATE} requests/s for {_SECONDS} s", ("requests", "KS p-value", "send lag p99, ms", "valid"), [
        ("bench", str(len(sent)), f"{p_value:.3f}", f"{lag_ms:.2f}", "no" if why else "yes")
    ])  # fmt: skip
    return {
        "requests": len(sent),
        "p_value": p_value,
        "send_lag_p99_ms": lag_ms,
        "valid": measured["valid"],
        "why": why,
    }


def kolmogorov(shares: NDArray[np.float64]) -> float:
    """Return the p-value of the test that sorted values are even between 0 and 1, as arrivals of a Poisson process are.

    Source: Stephens, "EDF statistics for goodness of fit", JASA 69 (1974), for the factor; Kolmogorov's series.
    """
    n = len(shares)
    steps = np.arange(1, n + 1) / n
    distance = float(max(np.max(steps - shares), np.max(shares - steps + 1 / n)))
    x = (np.sqrt(n) + 0.12 + 0.11 / np.sqrt(n)) * distance
    return float(min(1.0, 2 * sum((-1) ** (k - 1) * np.exp(-2 * k * k * x * x) for k in range(1, 101))))


# Tables.


def middle(values: Sequence[float], digits: int = 1) -> str:
    return f"{statistics.median(values):.{digits}f}" if values else "-"


def machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    load = f"load of the machine {os.getloadavg()[0]:.1f}"
    table = Table(title=f"{title}; {load}", title_justify="left")
    for name in ("", *columns):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = stdout_console()
    console.width = 140
    console.print(table)


if __name__ == "__main__":
    main()
