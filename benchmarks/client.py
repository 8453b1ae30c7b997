"""Compare what load-test clients cost, and how right their times are, on one mock server in one run.

    python benchmarks/client.py [--requests 320] [--concurrency 32] [--rounds 3] [--fetch] [--aiperf PATH] [--json]

Rows: `trtbuild bench` over its own transport, over grpcio and over HTTP; perf_analyzer 2.50.0 (the binary of tritonclient's wheel: `--fetch` puts it and what
it needs into the cache, once); tritonclient's synchronous and asyncio streams; AIPerf, where `--aiperf` names its executable. Each is a process of its own that is
measured from outside (getrusage), so that start-up counts. Every contestant runs a small and a large number of requests; the difference gives the CPU per event
without start-up, the rest is start-up. They take turns, round by round; medians are shown. Loads: paced (a token each 20 ms, every message its own wake-up) and burst (all 64
messages of an answer at once). Errors of times are 99th percentiles in milliseconds: the first
token, and gaps between tokens, as seen by the client minus as written by the mock, on the clock of the machine. With `--poisson` the schedule of an open loop of 200
requests/s for 30 s is tested (Kolmogorov-Smirnov), and its send lag shown. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
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
from rich.table import Table

from trtbuild.console import print_json, stdout_console

TOKENS = 64
LOADS = {"paced": ("--ttft", "20ms", "--itl", "20ms"), "burst": ("--ttft", "20ms", "--burst")}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trtbuild" / "perf_analyzer-2.50.0"
_ANALYZER = CACHE / "wheels" / "tritonclient-2.50.0.data" / "data" / "bin" / "perf_analyzer"
#: Of the requests, the small run has this share.
_SMALL = 0.2


@dataclass(frozen=True)
class Server:
    """A mock that runs."""

    grpc: str
    http: str

    def schedule(self) -> list[dict[str, Any]]:
        """Return what it did."""
        with urllib.request.urlopen(f"http://{self.http}/mock/schedule") as answer:  # a server of our own, on loopback
            requests: list[dict[str, Any]] = json.load(answer)["requests"]
            return requests

    def reset(self) -> None:
        """Forget it."""
        urllib.request.urlopen(urllib.request.Request(f"http://{self.http}/mock/reset", method="POST")).close()


@dataclass
class Result:
    """Of one contestant under one load; a list entry per round."""

    us_per_event: list[float] = field(default_factory=list)
    fixed_cpu_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    small_rss_mib: list[float] = field(default_factory=list)
    ttft_error_ms: list[float] = field(default_factory=list)
    itl_error_ms: list[float] = field(default_factory=list)


#: (server, requests, concurrency, folder) -> command, and the file of its records if there is one.
Command = Callable[[Server, int, int, Path], tuple[list[str], Path | None]]


def bench(*options: str, http: bool = False) -> Command:
    """Return the command of `trtbuild bench` with all metrics on."""

    def command(server: Server, requests: int, concurrency: int, folder: Path) -> tuple[list[str], Path | None]:
        url = ["--url", f"http://{server.http}", "--api", "triton-http"] if http else ["--url", server.grpc]
        out = folder / "bench.json"
        load = [
            "--concurrency",
            str(concurrency),
            "--requests",
            str(requests),
            "--prompt",
            "hello",
            "--output-tokens",
            str(TOKENS),
        ]
        slo = ["--slo", "ttft.p95=500ms,itl.p95=40ms"]
        return [
            sys.executable,
            "-m",
            "trtbuild",
            "bench",
            *url,
            *load,
            *slo,
            "--allow-invalid",
            "--json",
            "-q",
            "-o",
            str(out),
            *options,
        ], out

    return command


def analyzer(server: Server, requests: int, concurrency: int, folder: Path) -> tuple[list[str], Path | None]:
    """Return the command of perf_analyzer; with fewer threads than requests in flight several would share a stream."""
    data = folder / "input.json"
    data.write_text(json.dumps({"data": [{"text_input": ["hello"], "max_tokens": [TOKENS], "stream": [True]}]}))
    command = [
        str(_ANALYZER), "-m", "ensemble", "-u", server.grpc, "-i", "grpc", "--streaming", "--async",
        "--concurrency-range", str(concurrency), "--max-threads", str(concurrency), "--request-count", str(requests),
        "--input-data", str(data), "--profile-export-file", str(folder / f"pa-{requests}.json"), "--stability-percentage", "999",
    ]  # fmt: skip
    return command, None


def child(kind: str) -> Command:
    """Return the command of this script as one of tritonclient's clients."""

    def command(server: Server, requests: int, concurrency: int, folder: Path) -> tuple[list[str], Path | None]:
        return [sys.executable, __file__, "--child", kind, server.grpc, str(requests), str(concurrency)], None

    return command


def aiperf(executable: str) -> Command:
    """Return the command of AIPerf over HTTP; it fetches its tokenizer, unless one is in its cache."""

    def command(server: Server, requests: int, concurrency: int, folder: Path) -> tuple[list[str], Path | None]:
        load = [
            "--concurrency",
            str(concurrency),
            "--request-count",
            str(requests),
            "--output-tokens-mean",
            str(TOKENS),
            "--isl",
            "8",
        ]
        kind = ["--endpoint-type", "chat", "--streaming", "--url", f"http://{server.http}", "--ui", "none"]
        return [executable, "profile", "-m", "ensemble", *kind, *load, "--artifact-dir", str(folder / "aiperf")], None

    return command


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        {"sync": child_sync, "aio": child_aio}[sys.argv[2]](sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        return
    arguments = parse_arguments()
    if arguments.fetch:
        fetch_analyzer()
    if arguments.poisson:
        poisson()
        return
    contestants: dict[str, Command] = {
        "bench": bench(),
        "bench, HTTP": bench(http=True),
        "bench, grpcio": bench("--transport", "grpcio"),
        "tritonclient sync": child("sync"),
        "tritonclient aio": child("aio"),
    }
    if _ANALYZER.exists():
        contestants["perf_analyzer"] = analyzer
    else:
        print(f"perf_analyzer is skipped: it is not in {CACHE}; --fetch puts it there", file=sys.stderr)
    if arguments.aiperf:
        contestants["AIPerf, HTTP"] = aiperf(arguments.aiperf)
    if arguments.only:
        contestants = {name: command for name, command in contestants.items() if name in arguments.only}
    results = {load: {name: Result() for name in contestants} for load in arguments.loads}
    for load in arguments.loads:
        for _ in range(arguments.rounds):
            for name, command in contestants.items():
                measure(results[load][name], name, command, load, arguments)
    report(results, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=320, help="of the large run; the small one has a fifth")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument(
        "--fetch", action="store_true", help=f"download perf_analyzer and its libraries into {CACHE} (pip, apt-get)"
    )
    parser.add_argument("--aiperf", help="executable of AIPerf in an environment of its own")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to measure, by their names in the table")
    parser.add_argument("--poisson", action="store_true", help="test the schedule of an open loop instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def fetch_analyzer() -> None:
    """Put perf_analyzer, libcudart and libb64 into the cache."""
    if _ANALYZER.exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wheels = ["tritonclient==2.50.0", "nvidia-cuda-runtime-cu12"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *wheels], check=True)
        for wheel in Path(folder).glob("*.whl"):
            shutil.unpack_archive(wheel, CACHE / "wheels", "zip")
        subprocess.run(["apt-get", "download", "-q", "libb64-0d"], check=True, cwd=folder)
        for package in Path(folder).glob("libb64*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(CACHE / "lib")], check=True)
    _ANALYZER.chmod(0o755)


@contextmanager
def mock(*options: str) -> Iterator[Server]:
    """Run a mock in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "trtbuild",
        "mock",
        "--grpc-port",
        "0",
        "--http-port",
        "0",
        "--metrics-port",
        "0",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        try:
            yield Server(addresses["grpc"], addresses["http"])
        finally:
            process.terminate()


def measure(result: Result, name: str, command: Command, load: str, arguments: argparse.Namespace) -> None:
    """Run a contestant with few and with many requests, and add what it took."""
    sizes = [max(arguments.concurrency, round(arguments.requests * _SMALL)), arguments.requests]
    with mock(*LOADS[load]) as server, tempfile.TemporaryDirectory() as folder:
        used, rss = [], []
        for size in sizes:
            server.reset()
            words, records = command(server, size, arguments.concurrency, Path(folder))
            cpu_s, rss_mib = run(words)
            used.append(cpu_s)
            rss.append(rss_mib)
        if records is not None:
            add_errors(result, json.loads(records.read_text("utf-8")), server.schedule())
    per_event = (used[1] - used[0]) / ((sizes[1] - sizes[0]) * TOKENS)
    result.us_per_event.append(1e6 * per_event)
    result.fixed_cpu_s.append(used[0] - per_event * sizes[0] * TOKENS)
    result.small_rss_mib.append(rss[0])
    result.rss_mib.append(rss[1])
    print(f"{load} {name}: {1e6 * per_event:.1f} us per event, {used[1]:.2f} CPU-s", file=sys.stderr)


def run(command: Sequence[str]) -> tuple[float, float]:
    """Return (CPU seconds, peak MiB) of a command and the processes it waited for."""
    libraries = f"{CACHE}/lib/usr/lib/x86_64-linux-gnu:{CACHE}/wheels/nvidia/cuda_runtime/lib"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if command[0] == str(_ANALYZER):
        environment["LD_LIBRARY_PATH"] = libraries
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{command[0]}: {process.returncode}\n{log.read().decode(errors='replace')[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def add_errors(result: Result, value: dict[str, Any], truth: list[dict[str, Any]]) -> None:
    """Add the 99th percentiles of how far off times are: arrivals and gaps, against what the mock wrote down."""
    (measured,) = value["runs"]
    columns, at = measured["records"]["columns"], np.array(measured["records"]["event_ns"])
    start_ns = measured["records"]["started_ns"]
    by_number = {
        int(each["request_id"].rpartition("-")[2]): each
        for each in truth
        if each["request_id"].rpartition("-")[2].isdigit()
    }
    first, gaps = [], []
    for row, number in enumerate(columns["number"]):
        if number not in by_number:
            return  # HTTP: requests carry no id of ours
        sent = np.array(by_number[number]["sent_ns"][: columns["events"][row]])
        seen = at[columns["first_event"][row] :][: columns["events"][row]]
        # The first token as the client saw it, and as the mock wrote it: both on the clock of the machine.
        first.append(start_ns + seen[0] - sent[0])
        gaps.append(np.diff(seen) - np.diff(sent))
    result.ttft_error_ms.append(float(np.percentile(np.abs(first), 99)) / 1e6)
    result.itl_error_ms.append(float(np.percentile(np.abs(np.concatenate(gaps)), 99)) / 1e6)


def report(results: dict[str, dict[str, Result]], arguments: argparse.Namespace) -> None:
    """Print medians."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    if arguments.json:
        print_json(
            {
                "machine": machine,
                "loads": {load: {name: vars(each) for name, each in rows.items()} for load, rows in results.items()},
            }
        )
        return
    for load, rows in results.items():
        table = Table(
            title=f"{load}: {arguments.requests} requests of {TOKENS} events, {arguments.concurrency} in flight ({machine})",
            title_justify="left",
        )
        for column in ("", "us/event", "range", "start, s", "MiB", "MiB, few", "TTFT err", "ITL err"):
            table.add_column(column, justify="left" if not column else "right", no_wrap=True)
        for name, each in rows.items():
            spread = f"{min(each.us_per_event):.0f}-{max(each.us_per_event):.0f}"
            cells = (
                each.us_per_event,
                each.fixed_cpu_s,
                each.rss_mib,
                each.small_rss_mib,
                each.ttft_error_ms,
                each.itl_error_ms,
            )
            texts = [f"{statistics.median(values):.2f}" if values else "-" for values in cells]
            table.add_row(name, texts[0], spread, *texts[1:])
        stdout_console().print(table)


def poisson() -> None:
    """Run an open loop of 200 requests/s for 30 s; print the test of its send times, and its lag."""
    with mock("--ttft", "5ms", "--itl", "2ms") as server, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        load = ["--rate", "200", "--duration", "30s", "--prompt", "hello", "--output-tokens", "4", "--allow-invalid"]
        run([sys.executable, "-m", "trtbuild", "bench", "--url", server.grpc, *load, "-q", "--json", "-o", str(out)])
        (measured,) = json.loads(out.read_text("utf-8"))["runs"]
    sent = np.sort(np.array(measured["records"]["columns"]["sent_ns"])) / 1e9
    n = len(sent)
    distance = float(np.max(np.abs(np.arange(1, n + 1) / n - sent / 30)))
    x = (np.sqrt(n) + 0.12 + 0.11 / np.sqrt(n)) * distance
    p_value = min(1.0, 2 * sum((-1) ** (k - 1) * float(np.exp(-2 * k * k * x * x)) for k in range(1, 101)))
    print(f"{n} requests; Kolmogorov-Smirnov of the send times against a Poisson process: p = {p_value:.3f}")
    print(
        f"send lag p99 {measured['client']['send_lag_p99_ns'] / 1e6:.2f} ms; valid: {measured['valid']} {measured['invalid_reasons']}"
    )


def child_sync(address: str, requests: int, concurrency: int) -> None:
    """Be tritonclient's synchronous client: one stream per worker, text and final flag read in the callback."""
    import threading

    import tritonclient.grpc as triton

    left = iter(range(requests))
    lock = threading.Lock()

    def work() -> None:
        done = threading.Event()
        seen: list[tuple[int, bytes]] = []

        def take(result: Any, error: Any) -> None:
            now_ns = time.perf_counter_ns()
            if error is not None:
                raise SystemExit(str(error))
            text = result.as_numpy("text_output")
            if text is not None:
                seen.append((now_ns, text.ravel()[0]))
            if result.get_response().parameters["triton_final_response"].bool_param:
                done.set()

        client = triton.InferenceServerClient(address)
        client.start_stream(take)
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                break
            done.clear()
            client.async_stream_infer(
                "ensemble", inputs(triton), request_id=str(number), enable_empty_final_response=True
            )
            done.wait()
        client.stop_stream()

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def child_aio(address: str, requests: int, concurrency: int) -> None:
    """Be tritonclient's asyncio client: one stream per request."""
    import asyncio

    import tritonclient.grpc as plain
    import tritonclient.grpc.aio as triton

    async def main_() -> None:
        left = iter(range(requests))
        async with triton.InferenceServerClient(address) as client:

            async def work() -> None:
                for number in left:

                    async def one(number: int = number) -> Any:
                        yield {
                            "model_name": "ensemble",
                            "inputs": inputs(plain),
                            "request_id": str(number),
                            "enable_empty_final_response": True,
                        }

                    seen: list[tuple[int, bytes]] = []
                    async for result, error in client.stream_infer(one()):
                        now_ns = time.perf_counter_ns()
                        if error is not None:
                            raise SystemExit(str(error))
                        text = result.as_numpy("text_output")
                        if text is not None:
                            seen.append((now_ns, text.ravel()[0]))
                        if result.get_response().parameters["triton_final_response"].bool_param:
                            break

            await asyncio.gather(*(work() for _ in range(concurrency)))

    asyncio.run(main_())


def inputs(triton: Any) -> list[Any]:
    """Return the tensors of a request."""
    made = []
    for name, dtype, value in (
        ("text_input", "BYTES", np.array([[b"hello"]], dtype=np.object_)),
        ("max_tokens", "INT32", np.array([[TOKENS]], dtype=np.int32)),
        ("stream", "BOOL", np.array([[True]])),
        ("return_num_output_tokens", "BOOL", np.array([[True]])),
    ):
        tensor = triton.InferInput(name, [1, 1], dtype)
        tensor.set_data_from_numpy(value)
        made.append(tensor)
    return made


if __name__ == "__main__":
    main()
