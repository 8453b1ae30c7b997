"""What the mock server can do wrong on purpose, and to which requests it does so."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild_client.errors import InvalidRequest

#: kind -> what happens, for `--help` and the documentation. "At" is the number of tokens sent before.
KINDS: dict[str, str] = {
    "error": "an error after AT tokens; in a stream its text names the request id, with HTTP it is status 500 at AT 0",
    "error_without_id": "as error, but the frame does not say which request it belongs to",
    "http_200_error": "an error whose HTTP status is 200, before any token",
    "busy": "refused at once: Exceeds maximum queue size",
    "stall": "silence after AT tokens, until the client gives up",
    "reset": "the stream is reset after AT tokens",
    "drop": "the TCP connection breaks after AT tokens",
    "no_final": "all tokens, but nothing says that they were all",
    "duplicate_final": "the end is said twice",
    "cut_utf8": "characters of several bytes are divided between responses",
    "truncated_utf8": "the last character is cut in the middle",
    "truncated": "the answer ends after AT tokens (half of what was asked for, unless given), as if it were complete",
    "slow_accept": "the request is taken up DELAY later",
    "broken_event": "after AT tokens comes what is no message of the protocol",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of `KINDS`.
        at_tokens: tokens sent before it; None for what the kind does by itself.
        delay_ns: of slow_accept.
    """

    kind: str
    at_tokens: int | None = None
    delay_ns: int = 1_000_000_000

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"unknown fault '{self.kind}'", hint=f"Known: {', '.join(KINDS)}.")


@dataclass(frozen=True, slots=True)
class FaultShare:
    """A fault that meets a share of the requests.

    Attributes:
        share: 0 to 1.
    """

    fault: Fault
    share: float


def parse_share(text: str) -> FaultShare:
    """Return what "KIND=SHARE" or "KIND@AT=SHARE" means, such as "reset@5=0.1".

    Raises:
        InvalidRequest: it means nothing.
    """
    match = re.fullmatch(r"([a-z0-9_]+)(?:@(\d+))?=([0-9]*\.?[0-9]+)", text)
    if match is None or not 0 <= float(match[3]) <= 1:
        raise InvalidRequest(
            f"'{text}' is no fault with a share", hint="Write KIND=SHARE or KIND@TOKENS=SHARE, such as reset@5=0.1."
        )
    return FaultShare(Fault(match[1], int(match[2]) if match[2] else None), float(match[3]))


def choose(shares: tuple[FaultShare, ...], rng: random.Random) -> Fault | None:
    """Return the fault that meets a request; shares add up in the order given."""
    if not shares:
        return None
    point = rng.random()
    for each in shares:
        if point < each.share:
            return each.fault
        point -= each.share
    return None


_DIRECTIVE = re.compile(r"\[mock ([^\]]*)\]")


def directives(prompt: str) -> Mapping[str, str]:
    """Return what a prompt asks of the mock: "[mock fault=stall at=3 tokens=8 ttft=20ms itl=5ms chunk=2]" anywhere in it."""
    match = _DIRECTIVE.search(prompt)
    if match is None:
        return {}
    return dict(word.partition("=")[::2] for word in match[1].split())  # [::2]: without the separator


def from_directives(asked: Mapping[str, str]) -> Fault | None:
    """Return the fault that a prompt asks for.

    Raises:
        InvalidRequest: there is no such fault.
    """
    if "fault" not in asked:
        return None
    at = asked.get("at", "")
    return Fault(asked["fault"], int(at) if at.isdecimal() else None)
