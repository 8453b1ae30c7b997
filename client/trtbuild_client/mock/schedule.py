"""When the tokens of a request are due and what they say: a function of the options, the number of the request, its prompt."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.mock import distributions, faults
from trtbuild_client.mock.options import MockOptions

#: Tokens of every answer, in turn; some are of several bytes, as real vocabularies have them. A token's id is its place.
WORDS = (
    " the", " sky", " is", " blue", " because", " air", " scatters", " short", " waves", " more", " than", " long",
    " ones", ",", " für", " alle", ".", "\n", " 家", " 🙂", " ñandú", " and", " so", " on",
)  # fmt: skip
_ENCODED = tuple(word.encode() for word in WORDS)
#: Spreads the seeds of successive requests; any large odd number does.
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Piece:
    """One response.

    Attributes:
        due_ns: after the request was taken up.
        tokens: how many.
        first: number of its first token in the answer.
        text: UTF-8, of these tokens alone.
    """

    due_ns: int
    tokens: int
    first: int
    text: bytes

    @property
    def token_ids(self) -> range:
        """Places of the tokens in `WORDS`, before taking the remainder."""
        return range(self.first, self.first + self.tokens)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The answer to one request.

    Attributes:
        pieces: responses in order.
        fault: what goes wrong, None for nothing.
    """

    pieces: tuple[Piece, ...]
    fault: faults.Fault | None

    @property
    def tokens(self) -> int:
        """Tokens of the whole answer."""
        return sum(piece.tokens for piece in self.pieces)


def token_text(number: int) -> bytes:
    """Return the text of the token of that number."""
    return _ENCODED[number % len(_ENCODED)]


def plan(
    options: MockOptions, index: int, prompt: str, *, max_tokens: int, input_tokens: int, is_cached: bool
) -> Schedule:
    """Return the schedule of a request.

    Args:
        index: its number; the same number, seed and length give the same schedule.
        prompt: may hold directives, see `faults.directives`.
        max_tokens: tokens asked for.
        input_tokens: tokens of the prompt.
        is_cached: the prompt is in the cache.

    Raises:
        InvalidRequest: the prompt asks for what does not exist, or is longer than `max_seq_len` allows.
    """
    if options.max_seq_len is not None:
        if input_tokens >= options.max_seq_len:
            raise InvalidRequest(
                f"the prompt has {input_tokens} tokens, and prompt and answer together at most {options.max_seq_len}"
            )
        max_tokens = min(max_tokens, options.max_seq_len - input_tokens)
    asked = faults.directives(prompt)
    rng = random.Random(options.seed * _SPREAD + index)
    fault = faults.from_directives(asked) or faults.choose(options.faults, rng)
    ttft = (distributions.parse_ns(asked["ttft"]) if "ttft" in asked else options.ttft_ns).sampler(rng)
    itl = (distributions.parse_ns(asked["itl"]) if "itl" in asked else options.itl_ns).sampler(rng)
    chunk = (distributions.parse_counts(asked["chunk"]) if "chunk" in asked else options.tokens_per_response).sampler(
        rng
    )
    length = min(max_tokens, _count(asked["tokens"]) if "tokens" in asked else options.output_tokens or max_tokens)
    if fault is not None and fault.kind == "truncated":
        length = min(length, max_tokens // 2 if fault.at_tokens is None else fault.at_tokens)
    due = ttft() + (options.cold_ns if index == 0 else 0)
    due += 0 if is_cached else options.prefill_ns_per_token * input_tokens
    pieces: list[Piece] = []
    sent = 0
    while sent < length:
        tokens = min(int(chunk()), length - sent)
        # The first token of the answer is at `due`; every further one is an inter-token time later.
        due += sum(itl() for _ in range(tokens - (not pieces)))
        text = b"".join(token_text(number) for number in range(sent, sent + tokens))
        pieces.append(Piece(round(pieces[0].due_ns if options.is_burst and pieces else due), tokens, sent, text))
        sent += tokens
    return Schedule(_bent(pieces, fault), fault)


def _bent(pieces: list[Piece], fault: faults.Fault | None) -> tuple[Piece, ...]:
    """Apply the faults that concern bytes of text."""
    if fault is not None and fault.kind == "cut_utf8":
        whole = b"".join(piece.text for piece in pieces)
        borders, at = [0], 0
        for piece in pieces[:-1]:
            at += len(piece.text)
            # One byte early or late, whichever lies within a character; else where the text is divided anyway.
            inside = next((near for near in (at - 1, at + 1) if near < len(whole) and whole[near] & 0xC0 == 0x80), at)
            borders.append(max(inside, borders[-1]))
        borders.append(len(whole))
        pieces = [replace(p, text=whole[borders[i] : borders[i + 1]]) for i, p in enumerate(pieces)]
    elif fault is not None and fault.kind == "truncated_utf8" and pieces:
        pieces = [*pieces[:-1], replace(pieces[-1], text=pieces[-1].text + "🙂".encode()[:2])]
    return tuple(pieces)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise InvalidRequest(f"'tokens={text}' in the prompt is no number", hint="Write [mock tokens=8].")
    return int(text)
