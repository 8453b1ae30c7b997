"""A closed-loop latency probe: a fixed number of requests, each worker sending its next one when the last is answered."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtbuild_client import defaults
from trtbuild_client.client import Client
from trtbuild_client.errors import ClientError, InvalidRequest
from trtbuild_client.parameters import Options
from trtbuild_client.records import RequestRecord
from trtbuild_client.report import Report, summarize
from trtbuild_client.request import wire_name_of
from trtbuild_client.stream import Stream
from trtbuild_client.workers import run_interruptibly

_log = logging.getLogger(__name__)
#: Threads that a machine runs beside each other without their waiting for a core being most of what is measured.
_MOST_CONCURRENT = 10_000


@dataclass(frozen=True, slots=True)
class Probe:
    """What to send.

    Args:
        requests: measured requests.
        concurrency: requests in flight at once; may not exceed `requests`, or it would never be reached.
        warmup: requests sent before; they are in the records, marked, and in no statistic.
        prompts: used in turn.
        has_unique_prompts: number the prompts, so that no two share cached blocks of the KV cache.
        is_streaming: ask for tokens as they come; without it only end-to-end times exist.
        options: sampling parameters and max_tokens. Unless min_tokens is given, it is sent as max_tokens to a server that
            knows it: answers of one length make latencies comparable.
        tensors: further inputs of the model by the server's own names.
        has_server_times: ask for the server's own measurements, where the model can give them; they change no text.

    Raises:
        InvalidRequest: a count that cannot be.
    """

    requests: int = 16
    concurrency: int = 1
    warmup: int = 2
    prompts: tuple[str, ...] = (defaults.PROMPT,)
    has_unique_prompts: bool = False
    is_streaming: bool = True
    options: Options = field(default_factory=Options)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    has_server_times: bool = True

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("concurrency", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise InvalidRequest(f"{name}={getattr(self, name)}", hint=f"It must be at least {least}.")
        if self.concurrency > _MOST_CONCURRENT:
            raise InvalidRequest(
                f"concurrency={self.concurrency}",
                hint=f"Each is a thread: at most {_MOST_CONCURRENT:,}; `trtbuild bench` takes more.",
            )
        if self.concurrency > self.requests:
            raise InvalidRequest(
                f"concurrency={self.concurrency} would never be reached with {self.requests} requests",
                hint=f"Send at least {self.concurrency} requests.",
            )
        if not self.prompts:
            raise InvalidRequest("there is no prompt", hint="Give at least one.")

    def run(self, client: Client, on_done: Callable[[int], None] = lambda amount: None) -> Report:
        """Send everything and return the report; interrupting it cancels what is running.

        The clock of a request starts when it is written: waiting for a free worker is in no latency.

        Args:
            client: its address, model and deadlines are used.
            on_done: called with 1 after each request.

        Raises:
            ConnectError, ModelNotFound, NotReady: the server does not serve the model now; nothing was sent.
            StreamingUnsupported: streaming from a model that is not decoupled.
        """
        client.check_ready()
        self._request(client, self.prompts[0])  # what cannot be built is found before anything is sent
        records: list[RequestRecord] = []
        for label, number in (("warm-up", self.warmup), ("request", self.requests)):
            phase = self._phase(client, self._prompts(label, number), min(self.concurrency, number), on_done)
            records += [replace(record, warmup=label == "warm-up") for record in phase]
        return summarize(
            records,
            address=client.address,
            model=client.model,
            streamed=self.is_streaming,
            concurrency=self.concurrency,
            has_unique_prompts=self.has_unique_prompts,
        )

    def _prompts(self, label: str, number: int) -> Iterator[str]:
        run = uuid.uuid4().hex[:8]  # earlier runs must not have warmed the cache either
        for index in range(number):
            prompt = self.prompts[index % len(self.prompts)]
            yield f"[{run} {label} {index}] {prompt}" if self.has_unique_prompts else prompt

    def _request(self, client: Client, prompt: str) -> Stream:
        options = Options(**self.options)
        if wire_name_of(client.info, "min_tokens") is not None:
            options.setdefault("min_tokens", options.get("max_tokens", defaults.MAX_TOKENS))
        name = wire_name_of(client.info, "return_perf_metrics")
        if self.has_server_times and name is not None and name not in self.tensors:
            options.setdefault("return_perf_metrics", True)
        return client.request(prompt, is_streaming=self.is_streaming, tensors=self.tensors, **options)

    def _phase(
        self, client: Client, prompts: Iterator[str], workers: int, on_done: Callable[[int], None]
    ) -> list[RequestRecord]:
        """Send all prompts; return the records in the order of sending."""
        lock = threading.Lock()  # a generator serves one thread at a time
        records: list[RequestRecord] = []

        def work(is_interrupted: threading.Event) -> None:
            while not is_interrupted.is_set():
                with lock:
                    prompt = next(prompts, None)
                if prompt is None:
                    return
                stream = self._request(client, prompt)
                try:
                    for _ in stream:
                        pass
                except ClientError as error:
                    _log.info("request %s failed: %s", stream.request_id, error.message)  # its record says so too
                records.append(stream.generation.record)
                on_done(1)

        run_interruptibly(work, workers, cancel=client.cancel_all)
        return sorted(records, key=lambda record: record.sent_ns)
