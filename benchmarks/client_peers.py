"""The load-test clients that `benchmarks/client.py` measures: their commands, what they need, and tritonclient's two clients.

Run as a script it is one of tritonclient's clients, in whatever interpreter has tritonclient:

    python benchmarks/client_peers.py sync|aio HOST:PORT REQUESTS CONCURRENCY ARRIVALS

ARRIVALS gets the time of every token, nanoseconds of `time.perf_counter_ns`, as 64-bit integers: request after request.
"""

from __future__ import annotations

import array
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENS = 64
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trtbuild" / "perf_analyzer-2.50.0"
ANALYZER = CACHE / "wheels" / "tritonclient-2.50.0.data" / "data" / "bin" / "perf_analyzer"
ANALYZER_LIBRARIES = f"{CACHE}/lib/usr/lib/x86_64-linux-gnu:{CACHE}/wheels/nvidia/cuda_runtime/lib"


@dataclass(frozen=True)
class Job:
    """One run of a client.

    Attributes:
        grpc, http: HOST:PORT of the mock.
        folder: for files of its own.
    """

    grpc: str
    http: str
    requests: int
    concurrency: int
    folder: Path

    @property
    def arrivals(self) -> Path:
        """Where tritonclient's clients write when tokens came."""
        return self.folder / "arrivals"

    @property
    def result(self) -> Path:
        """Where `trtbuild bench` writes its result."""
        return self.folder / "bench.json"


Command = Callable[[Job], list[str]]


def bench(*options: str, is_http: bool = False) -> Command:
    """Return the command of `trtbuild bench` with all metrics on."""

    def command(job: Job) -> list[str]:
        url = ["--url", f"http://{job.http}", "--api", "openai-chat"] if is_http else ["--url", job.grpc]
        load = ["--concurrency", str(job.concurrency), "--requests", str(job.requests), "--prompt", "hello"]
        asked = ["--output-tokens", str(TOKENS), "--slo", "ttft.p95=500ms,itl.p95=40ms", "--allow-invalid"]
        out = ["--json", "-q", "-o", str(job.result)]
        return [sys.executable, "-m", "trtbuild", "bench", *url, *load, *asked, *out, *options]

    return command


def analyzer(job: Job) -> list[str]:
    """Return the command of perf_analyzer; with fewer threads than requests in flight several would share a stream."""
    data = job.folder / "input.json"
    data.write_text(json.dumps({"data": [{"text_input": ["hello"], "max_tokens": [TOKENS], "stream": [True]}]}))
    return [
        str(ANALYZER), "-m", "ensemble", "-u", job.grpc, "-i", "grpc", "--streaming", "--async",
        "--concurrency-range", str(job.concurrency), "--max-threads", str(job.concurrency), "--request-count", str(job.requests),
        "--input-data", str(data), "--profile-export-file", str(job.folder / f"pa-{job.requests}.json"), "--stability-percentage", "999",
    ]  # fmt: skip


def tritonclient(python: str, kind: str) -> Command:
    """Return the command of one of tritonclient's clients in an interpreter that has it."""

    def command(job: Job) -> list[str]:
        return [python, __file__, kind, job.grpc, str(job.requests), str(job.concurrency), str(job.arrivals)]

    return command


def aiperf(executable: str) -> Command:
    """Return the command of AIPerf over HTTP, with a tokenizer of bytes: it may fetch none."""

    def command(job: Job) -> list[str]:
        tokenizer = job.folder / "tokenizer"
        write_tokenizer(tokenizer)
        load = ["--concurrency", str(job.concurrency), "--request-count", str(job.requests)]
        lengths = ["--isl", "8", "--osl", str(TOKENS), "--tokenizer", str(tokenizer), "--use-server-token-count"]
        kind = ["--endpoint-type", "chat", "--streaming", "--url", f"http://{job.http}", "--ui", "none"]
        out = ["--artifact-dir", str(job.folder / "aiperf")]
        return [executable, "profile", "-m", "ensemble", *kind, *load, *lengths, *out]

    return command


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer whose tokens are the bytes of UTF-8, as Hugging Face's tokenizers read it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))  # GPT-2's characters for bytes that cannot be printed
    vocabulary = {chr(byte if byte in plain else next(others)): byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": "<end>", "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    model = {"type": "BPE", "vocab": {**vocabulary, "<end>": 256}, "merges": []}
    document = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": level, "decoder": level, "model": model}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<end>", "eos_token": "<end>"}
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def fetch_analyzer() -> None:
    """Put perf_analyzer, libcudart and libb64 into the cache."""
    if ANALYZER.exists():
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
    ANALYZER.chmod(0o755)


def sync_client(address: str, requests: int, concurrency: int) -> list[list[int]]:
    """Be tritonclient's synchronous client: one stream per worker, text and final flag read in the callback."""
    import threading

    import tritonclient.grpc as triton

    left = iter(range(requests))
    lock = threading.Lock()
    arrivals: list[list[int]] = [[] for _ in range(requests)]

    def work() -> None:
        done = threading.Event()
        seen: list[int] = []

        def take(result: Any, error: Any) -> None:
            now_ns = time.perf_counter_ns()
            if error is not None:
                raise SystemExit(str(error))
            text = result.as_numpy("text_output")
            if text is not None and text.ravel()[0] is not None:
                seen.append(now_ns)
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
                "ensemble", _inputs(triton), request_id=str(number), enable_empty_final_response=True
            )
            done.wait()
            arrivals[number] = seen[:]
            seen.clear()
        client.stop_stream()

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return arrivals


def aio_client(address: str, requests: int, concurrency: int) -> list[list[int]]:
    """Be tritonclient's asyncio client: one stream per request."""
    import asyncio

    import tritonclient.grpc as plain
    import tritonclient.grpc.aio as triton

    left = iter(range(requests))
    arrivals: list[list[int]] = [[] for _ in range(requests)]

    async def work(client: Any) -> None:
        for number in left:

            async def one(number: int = number) -> Any:
                yield {
                    "model_name": "ensemble",
                    "inputs": _inputs(plain),
                    "request_id": str(number),
                    "enable_empty_final_response": True,
                }

            async for result, error in client.stream_infer(one()):
                now_ns = time.perf_counter_ns()
                if error is not None:
                    raise SystemExit(str(error))
                text = result.as_numpy("text_output")
                if text is not None and text.ravel()[0] is not None:
                    arrivals[number].append(now_ns)
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break

    async def everybody() -> None:
        async with triton.InferenceServerClient(address) as client:
            await asyncio.gather(*(work(client) for _ in range(concurrency)))

    asyncio.run(everybody())
    return arrivals


def _inputs(triton: Any) -> list[Any]:
    """Return the tensors of a request."""
    import numpy as np

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


def main() -> None:
    kind, address, requests, concurrency, out = sys.argv[1:]
    run = {"sync": sync_client, "aio": aio_client}[kind]
    arrivals = run(address, int(requests), int(concurrency))
    Path(out).write_bytes(array.array("q", [each for one in arrivals for each in one]).tobytes())


if __name__ == "__main__":
    main()
