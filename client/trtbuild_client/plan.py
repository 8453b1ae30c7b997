"""What is known of a request before it is sent, and what is made of it afterwards. Shared by threads and event loops."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from trtbuild_client import arguments, defaults
from trtbuild_client.answer import Answer
from trtbuild_client.connection import Retry
from trtbuild_client.deadlines import seconds
from trtbuild_client.errors import ClientError, ConnectError, DeadlineExceeded, InvalidRequest, Phase
from trtbuild_client.faults import lost
from trtbuild_client.parameters import settle, validate
from trtbuild_client.records import Generation, Outcome, RequestRecord
from trtbuild_client.request import build
from trtbuild_client.text import ASSEMBLERS, TextMode
from trtbuild_client.wire import ModelInfo, WireRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of a client's requests, seconds; None for no limit.

    Attributes:
        total_s: request sent to end of the answer.
        first_token_s: request sent to first token.
        between_tokens_s: token to token.
    """

    total_s: float | None = defaults.TIMEOUT_S
    first_token_s: float | None = None
    between_tokens_s: float | None = None

    def __post_init__(self) -> None:
        seconds(self.total_s, "timeout_s")
        seconds(self.first_token_s, "first_token_timeout_s")
        seconds(self.between_tokens_s, "between_tokens_timeout_s")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is to be read.

    Attributes:
        values: the checked parameters it was sent with.
        is_streaming: whether tokens were asked for as they come.
        warnings: found while the request was made.
    """

    request_id: str
    model: str
    address: str
    values: dict[str, Any]
    text_mode: TextMode
    is_streaming: bool
    limits: Limits
    retry: Retry
    warnings: tuple[str, ...]

    def answer(self) -> Answer:
        """Return an empty answer to be filled."""
        return Answer(self.values, ASSEMBLERS[self.text_mode]())

    def late(self, phase: Phase) -> DeadlineExceeded:
        """Return the error for a deadline between replies that passed."""
        limit_s = self.limits.first_token_s if phase == "first_token" else self.limits.between_tokens_s
        assert limit_s is not None
        what = "first" if phase == "first_token" else "further"
        return DeadlineExceeded(
            f"no {what} token from model '{self.model}' on {self.address} within {limit_s:g} s",
            phase=phase,
            timeout_s=limit_s,
            hint=f"Raise {phase}_timeout_s, or look at the server's load.",
        )

    def lost(self, error: ClientError, answer: Answer) -> ClientError:
        """Return the error as it is, or, where an answer had begun and its connection broke, one that says so."""
        if isinstance(error, ConnectError) and error.reason and answer.has_begun:
            return lost(self.address, error, sum(event.tokens for event in answer.events))
        return error

    def conclude(
        self, answer: Answer, outcome: Outcome, failure: ClientError | None, *, sent_ns: int, end_ns: int
    ) -> Generation:
        """Return what came of it."""
        record = RequestRecord(
            request_id=self.request_id,
            model=self.model,
            streamed=self.is_streaming,
            max_tokens=self.values["max_tokens"],
            sent_ns=sent_ns,
            end_ns=end_ns,
            events=tuple(answer.events),
            outcome=outcome,
            counted_by=answer.counted_by,
            input_tokens=answer.input_tokens,
            error=None if failure is None else type(failure).__name__,
            error_message=None if failure is None else failure.message,
            server=answer.server,
        )
        return answer.generation(record, self.warnings)


def prepare(
    info: ModelInfo,
    prompt: str,
    options: Mapping[str, Any],
    *,
    address: str,
    is_streaming: bool,
    text_mode: TextMode | None,
    tensors: Mapping[str, Any] | None,
    request_id: str | None,
    timeout_s: float | None,
    limits: Limits,
    retry: Retry,
) -> tuple[Plan, WireRequest]:
    """Return how a request is read, and the request.

    Raises:
        InvalidRequest: it cannot be made.
    """
    values, warnings = settle(validate({"max_tokens": defaults.MAX_TOKENS, **options}))
    mode: TextMode = text_mode or ("cumulative" if info.is_cumulative else "delta")
    if mode not in get_args(TextMode):
        raise InvalidRequest(f"text_mode={mode!r}", hint=f"It must be one of {', '.join(get_args(TextMode))}.")
    if not isinstance(prompt, str):
        raise InvalidRequest(f"the prompt is of type {type(prompt).__name__}", hint="It must be str.")
    if not prompt.strip():
        raise InvalidRequest(
            "the prompt is blank", hint="Give some text: without any, a server may have no token to begin with."
        )
    if request_id is not None:
        arguments.text("request_id", request_id)
    if tensors is not None:
        arguments.of_type("tensors", tensors, Mapping, "a mapping of names to values, or None")
        for name in tensors:
            arguments.of_type("a name in tensors", name, str, "str")
    request = WireRequest(
        model=info.name,
        request_id=request_id or str(uuid.uuid4()),
        tensors=build(info, prompt, values, tensors or {}, is_streaming=is_streaming),
        timeout_s=seconds(timeout_s, "timeout_s") or limits.total_s,
    )
    plan = Plan(
        request_id=request.request_id,
        model=info.name,
        address=address,
        values=values,
        text_mode=mode,
        is_streaming=is_streaming,
        limits=limits,
        retry=retry,
        warnings=tuple(warnings),
    )
    return plan, request
