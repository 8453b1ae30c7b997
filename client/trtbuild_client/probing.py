"""A whole probe: health, the main run with the server's metrics beside it, what was asked for besides, and the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from trtbuild_client import scenarios, thresholds
from trtbuild_client.client import Client
from trtbuild_client.errors import ConnectError, InvalidRequest
from trtbuild_client.probe import Probe
from trtbuild_client.probe_result import ProbeResult
from trtbuild_client.server_metrics import Watcher, compare

#: Ports of a Triton server that was told nothing else; the metrics are then where they usually are.
_USUAL_PORTS = ("8000", "8001")
_METRICS_PORT = "8002"


@dataclass(frozen=True, slots=True)
class Extras:
    """What is found out beside the main run.

    Attributes:
        metrics_address: HOST:PORT of the server's metrics; "" looks at port 8002 where the server has its usual port, and
            is content without; None looks nowhere.
        has_cache: send prompts twice, and compare.
        prompt_lengths: in words.
        thresholds: limits on the main run.
    """

    metrics_address: str | None = ""
    has_cache: bool = False
    prompt_lengths: Sequence[int] = ()
    thresholds: Sequence[thresholds.Threshold] = ()

    def number(self, probe: Probe) -> int:
        """Return how many requests all of it takes."""
        cached = 2 * scenarios.CACHE_ROUNDS if self.has_cache else 0
        return probe.warmup + probe.requests + cached + len(self.prompt_lengths) * scenarios.LENGTH_ROUNDS


def run(
    client: Client, probe: Probe, extras: Extras, on_done: Callable[[int], None] = lambda amount: None
) -> ProbeResult:
    """Send everything and return what was found; interrupting it cancels what is running.

    Raises:
        InvalidRequest: what is asked for cannot be; nothing was sent.
        ConnectError, ModelNotFound, NotReady: the server does not serve the model now.
    """
    thresholds.refuse_unmeasurable(extras.thresholds, is_streaming=probe.is_streaming)
    scenarios.check_lengths(extras.prompt_lengths)
    if (extras.has_cache or extras.prompt_lengths) and not probe.is_streaming:
        raise InvalidRequest("the time to first token needs streaming", hint="Leave out --no-stream.")
    began_ns = time.perf_counter_ns()
    client.check_ready()
    info = client.info
    ready_ns = time.perf_counter_ns() - began_ns
    metrics, note = None, ""
    with ExitStack() as stack:
        watcher, note = _watcher(client.address, extras.metrics_address)
        if watcher is not None:
            try:
                stack.enter_context(watcher)
            except ConnectError as error:
                if extras.metrics_address:
                    raise
                watcher, note = None, f"{error.message}: the server's queue and KV cache are not known (--metrics-url)"
        report = probe.run(client, on_done)
    if watcher is not None:
        metrics = compare(
            watcher.before, watcher.after, watcher.peaks, model=client.model, is_decoupled=info.is_decoupled
        )
    more: list[scenarios.Scenario] = []
    tensors = dict(probe.tensors)
    if extras.has_cache:
        more += scenarios.cache(client, tensors, on_done)
    more += scenarios.lengths(client, extras.prompt_lengths, scenarios.LENGTH_ROUNDS, tensors, on_done)
    checks = thresholds.check(extras.thresholds, report.latencies_ns, has_failures=report.counts.failed > 0)
    return ProbeResult(report, ready_ns, more, metrics, note, checks)


def _watcher(address: str, wanted: str | None) -> tuple[Watcher | None, str]:
    """Return what watches the metrics, or why nothing does."""
    if wanted is None:
        return None, ""
    if wanted:
        return Watcher(wanted), ""
    host, _, port = address.rpartition(":")
    if port not in _USUAL_PORTS:
        return None, "the server's metrics were not read: give their address with --metrics-url"
    return Watcher(f"{host}:{_METRICS_PORT}"), ""
