"""Everything a user can say about a load test, and the plans that follow from it. Knows no command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.arrivals import Arrivals
from trtbuild_client.load.dataset_files import read
from trtbuild_client.load.datasets import Dataset, Lengths, Synthetic
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.tokens import Counter, open_counter
from trtbuild_client.load.validity import Allowed
from trtbuild_client.load.workload import Limits

#: Requests of a run for which neither a number nor a duration was given.
DEFAULT_REQUESTS = 400
#: Prompts that are made up when neither a number of requests nor of prompts says how many are needed.
DEFAULT_PROMPTS = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent, and when; times in seconds, None for not given.

    Attributes:
        concurrency: one run for each, closed loop.
        rates: one run for each, open loop; conversations per second.
        ramp: (from, to): one open loop whose rate changes evenly over the duration.
        arrivals, burstiness: see `arrivals.Arrivals`.
    """

    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    ramp: tuple[float, float] | None = None
    arrivals: str = "poisson"
    burstiness: float = 1.0
    requests: int | None = None
    duration_s: float | None = None
    warmup_requests: int = 0
    warmup_s: float = 0.0
    ramp_up_s: float = 0.0
    processes: int = 1
    seed: int = 0
    is_streaming: bool = True
    timeout_s: float | None = 300.0
    first_token_s: float | None = None
    stall_s: float | None = None
    drain_s: float | None = None
    allowed: Allowed = field(default_factory=Allowed)

    def plans(self, dataset: Dataset) -> Iterator[Plan]:
        """Yield the runs.

        Raises:
            InvalidRequest: several kinds of load at once.
        """
        kinds = [name for name in ("concurrency", "rates", "ramp") if getattr(self, name)]
        if dataset.starts is not None:
            kinds.append("trace")
        if len(kinds) > 1:
            raise InvalidRequest(
                f"{' and '.join(kinds)} at once",
                hint="Give one of --concurrency, --rate, --ramp, or a trace as --dataset.",
            )
        base = self._base(is_trace=dataset.starts is not None)
        if self.ramp is not None:
            yield replace(base, arrivals=self._arrivals(self.ramp[0], self.ramp[1]))
        elif self.rates:
            for rate in self.rates:
                yield replace(base, arrivals=self._arrivals(rate))
        elif dataset.starts is not None:
            yield base
        else:
            for concurrency in self.concurrency or (1,):
                yield replace(base, concurrency=concurrency)

    def at_rate(self, rate: float, *, seed: int) -> Plan:
        """Return an open loop of one rate."""
        return replace(self._base(is_trace=False), arrivals=replace(self._arrivals(rate), seed=seed))

    def _base(self, *, is_trace: bool) -> Plan:
        requests = self.requests
        if requests is None and self.duration_s is None and not is_trace:
            requests = DEFAULT_REQUESTS
        if requests is not None:
            requests += self.warmup_requests
        return Plan(
            limits=Limits(
                requests=requests,
                duration_ns=_ns(self.duration_s),
                drain_ns=_ns(self.drain_s),
                total_ns=_ns(self.timeout_s),
                first_token_ns=_ns(self.first_token_s),
                stall_ns=_ns(self.stall_s),
            ),
            warmup_requests=self.warmup_requests,
            warmup_s=self.warmup_s,
            ramp_s=self.ramp_up_s,
            processes=self.processes,
            is_streaming=self.is_streaming,
            allowed=self.allowed,
        )

    def _arrivals(self, rate: float, end_rate: float | None = None) -> Arrivals:
        return Arrivals(rate, self.arrivals, self.burstiness, end_rate, self.seed)


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is sent.

    Attributes:
        path: a file, None for made-up prompts.
        text: one prompt for all requests.
        tokenizer: folder of the model's tokenizer.
        speed: a trace is replayed so many times as fast; None for as it is.
        number: different made-up conversations, None for as many as requests, at most `DEFAULT_PROMPTS`.
        max_seq_len: tokens that prompt and answer may have together, None for what is not known.
    """

    path: Path | None = None
    text: str | None = None
    tokenizer: Path | None = None
    input_tokens: Lengths = field(default_factory=lambda: Lengths(128))
    output_tokens: Lengths = field(default_factory=lambda: Lengths(64))
    prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    think_s: float = 0.0
    speed: float | None = None
    number: int | None = None
    max_seq_len: int | None = None
    seed: int = 0

    def dataset(self, requests: int | None) -> Dataset:
        """Return the conversations.

        Args:
            requests: that will be sent at most, None for an unknown number.

        Raises:
            InvalidRequest: a file that cannot be read, a speed without a trace, or a prompt that is longer than the model takes.
        """
        counter = open_counter(self.tokenizer)
        dataset = self._dataset(counter, requests)
        if self.speed is not None and dataset.starts is None:
            raise InvalidRequest(
                f"speed {self.speed:g} without a trace",
                hint="Only requests with timestamps can be replayed faster or slower: give a trace with --dataset, or leave out --speed.",
            )
        self._check_lengths(dataset, counter)
        return dataset

    def _dataset(self, counter: Counter, requests: int | None) -> Dataset:
        think_ns = round(self.think_s * 1e9)
        if self.path is not None:
            return read(
                self.path, counter, self.output_tokens, seed=self.seed, speed=self.speed or 1.0, think_ns=think_ns
            )
        if self.text is not None:
            from trtbuild_client.load.workload import Turn

            if not self.text.strip():
                raise InvalidRequest("the prompt is blank", hint="Give some text with --prompt.")
            turn = Turn(self.text, self.output_tokens.mean, counter.count(self.text))
            return Dataset([(turn,)], "one prompt")
        number = self.number or min(requests or DEFAULT_PROMPTS, DEFAULT_PROMPTS)
        synthetic = Synthetic(
            self.input_tokens, self.output_tokens, self.prefix_tokens, self.prefix_groups, self.turns, think_ns
        )
        return synthetic.make(number, counter, self.seed)

    def _check_lengths(self, dataset: Dataset, counter: Counter) -> None:
        if self.max_seq_len is None:
            return
        for session in dataset.sessions:
            total = 0
            for number, turn in enumerate(session, 1):
                total += turn.planned_tokens + turn.max_tokens
                if total > self.max_seq_len:
                    where = f", as turn {number} of a conversation," if number > 1 else ""
                    raise InvalidRequest(
                        f"a prompt of {turn.planned_tokens} {counter.unit} with {turn.max_tokens} tokens of answer{where} makes {total}, "
                        f"and the model takes {self.max_seq_len}",
                        hint="Lower --input-tokens, --output-tokens or --turns: the server would refuse or cut it.",
                    )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
