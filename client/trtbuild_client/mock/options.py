"""What a mock server is to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock.distributions import Distribution, constant
from trtbuild_client.mock.faults import FaultShare

Variant = Literal["engine", "llmapi"]
_NOW = constant(0)
_ONE = constant(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MockOptions:
    """All options, with defaults that answer at once and without faults.

    Attributes:
        host: address to listen on; everything but loopback must be asked for.
        grpc_port, http_port, metrics_port: 0 takes a free one, None opens none.
        variant: "engine" (ensemble, tensorrt_llm_bls, tensorrt_llm) or "llmapi" (tensorrt_llm with text).
        release: TensorRT-LLM release whose tensor names are served, such as "0.17" or "1.2".
        is_decoupled: with False only one response per request, over ModelInfer.
        has_cumulative_bls: tensorrt_llm_bls repeats all text so far (accumulate_tokens).
        has_final_on_data: the last tokens carry the final flag, as the C++ backend does it; else an empty response.
        seed: of all random numbers.
        ttft_ns: from the time a request is taken up to its first token.
        itl_ns: from token to token.
        tokens_per_response: tokens in one response; it leaves when its last token is there.
        prefill_ns_per_token: added to the time to first token for each prompt token that is not cached.
        cold_ns: added for the very first request.
        has_prompt_cache: a prompt that was seen before costs no prefill.
        is_burst: all responses leave at once, when the first token is due.
        output_tokens: an answer is never longer than this, None for as long as asked.
        max_seq_len: words that prompt and answer may have together, None for any number: a longer prompt is refused, a longer answer
            cut; the models' configurations say so, as those of trtbuild's templates do.
        ready_after_ns: for so long after its start the server is live and not ready.
        max_concurrency: requests worked on at once, None for all.
        max_queue: requests that may wait, None for any number; needs `max_concurrency`.
        faults: faults by share of the requests.
        token: bearer token that every request must carry, None for no check.
        tls_cert, tls_key: PEM files; with both, only TLS is spoken.
        tls_ca: PEM file; with it, a client must show a certificate of this authority.
        kept_requests: how many requests the recorded schedule holds; older ones are forgotten.
    """

    host: str = "127.0.0.1"
    grpc_port: int | None = 0
    http_port: int | None = 0
    metrics_port: int | None = 0
    variant: Variant = "engine"
    release: str = "1.2"
    is_decoupled: bool = True
    has_cumulative_bls: bool = False
    has_final_on_data: bool = False
    seed: int = 0
    ttft_ns: Distribution = _NOW
    itl_ns: Distribution = _NOW
    tokens_per_response: Distribution = _ONE
    prefill_ns_per_token: int = 0
    cold_ns: int = 0
    has_prompt_cache: bool = False
    is_burst: bool = False
    output_tokens: int | None = None
    max_seq_len: int | None = None
    ready_after_ns: int = 0
    max_concurrency: int | None = None
    max_queue: int | None = None
    faults: tuple[FaultShare, ...] = ()
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    kept_requests: int = 20_000

    def __post_init__(self) -> None:
        total = sum(each.share for each in self.faults)
        if total > 1:
            raise InvalidRequest(f"the shares of faults add up to {total:g}", hint="They may add up to 1 at most.")
        twice = [kind for kind, number in Counter(each.fault for each in self.faults).items() if number > 1]
        if twice:
            raise InvalidRequest(f"fault '{twice[0].kind}' is given twice", hint="Give each fault once.")
        for name, least in (
            ("output_tokens", 1),
            ("max_seq_len", 2),
            ("max_concurrency", 1),
            ("max_queue", 0),
            ("kept_requests", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequest(f"{name}={value}", hint=f"It must be at least {least}.")
        if self.max_queue is not None and self.max_concurrency is None:
            raise InvalidRequest(
                f"max_queue={self.max_queue} without max_concurrency",
                hint="No request waits where all are worked on at once: say how many are (--max-concurrency).",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("a TLS server needs a certificate and its key", hint="Give both, or neither.")
        if self.tls_ca is not None and self.tls_cert is None:
            raise InvalidRequest(
                "clients can show certificates only over TLS", hint="Give the server's certificate, too."
            )
