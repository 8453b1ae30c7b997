"""Text of a token stream, piece by piece: no half characters, no lost spaces, and always the text of the whole.

Decoding each piece alone loses the leading space of metaspace tokens and cuts characters that span tokens. Here every
token is decoded behind the tokens before it, and what the text has gained is returned, once it can no longer change.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
#: An unfinished character has at most three bytes, which tokenizers decode to one to three replacement characters.
MAX_UNFINISHED = 3
#: Tokens looked back at when a text never comes to a clean end; bounds the work per token.
MAX_WINDOW = 64
KEPT_OF_WINDOW = 16


class Detokenizer:
    """The text of one stream of tokens.

    Tokens are taken one by one however they arrive, so the text never depends on how a stream was cut into pieces. A
    character that the last tokens leave unfinished is held back until it is complete, and never put out if it never is.
    So is an id that ends answers, until another token follows: the last ones are the mark of the end and no text of it.
    The work per token is bounded: two decodes of at most `MAX_WINDOW` tokens.

    Args:
        decode: ids to text, the same as for a whole answer.
        end_ids: the ids that end answers.
    """

    def __init__(self, decode: Decode, end_ids: Collection[int] = ()) -> None:
        self._decode = decode
        self._end_ids = end_ids
        self._ends: list[int] = []  # those that came since the last other token
        self._window: list[int] = []
        self._returned = 0  # characters of the window's text that were returned
        self._group = 0  # where in the window the tokens since the last clean end begin

    def push(self, ids: Sequence[int]) -> str:
        """Add tokens; return the text they complete."""
        return "".join(self._push_one(token_id) for token_id in self._that_something_follows(ids))

    def _that_something_follows(self, ids: Sequence[int]) -> Iterator[int]:
        for token_id in ids:
            self._ends.append(token_id)
            if token_id not in self._end_ids:
                yield from self._ends
                self._ends.clear()

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        settled = len(text) - _unfinished(text, tokens=len(self._window) - self._group)
        gained = text[self._returned : settled]
        self._returned = max(self._returned, settled)
        if self._returned == len(text):
            self._drop(self._group, unreturned=0)
        elif len(self._window) > MAX_WINDOW:
            self._drop(len(self._window) - KEPT_OF_WINDOW, unreturned=max(len(text) - self._returned, 0))
        return gained

    def _drop(self, count: int, *, unreturned: int) -> None:
        """Forget the first tokens of the window, unless what is left shows no text to decode the next token behind."""
        kept = self._window[count:]
        text = self._decode(kept)
        if text or len(self._window) > MAX_WINDOW:
            self._window = kept
            self._returned = max(len(text) - unreturned, 0)
            self._group = len(kept)


class Streams:
    """The detokenizers of running streams, by a key such as the request id. Nobody says when a stream ends, so the
    longest unused one goes when there are too many, and every one that was not used for a while.

    Args:
        make: makes a detokenizer for a new stream.
        capacity: streams kept at most.
        idle_seconds: a stream unused for longer starts anew.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        make: Callable[[], Detokenizer],
        *,
        capacity: int,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._streams: OrderedDict[Hashable, tuple[Detokenizer, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def of(self, key: Hashable) -> Detokenizer:
        """Return the detokenizer of a stream, a new one if the stream is not known."""
        now = self._clock()
        while self._streams and now - next(iter(self._streams.values()))[1] > self._idle_seconds:
            self._streams.popitem(last=False)
        detokenizer, _ = self._streams.pop(key, (None, now))
        if detokenizer is None:
            detokenizer = self._make()
        self._streams[key] = (detokenizer, now)
        while len(self._streams) > self._capacity:
            self._streams.popitem(last=False)
        return detokenizer


def _unfinished(text: str, *, tokens: int) -> int:
    """Return how many characters at the end may still turn into others.

    Args:
        text: a decoded text.
        tokens: how many tokens it has had since its last clean end. With byte fallback a single unfinished byte makes
            replacement characters of finished ones before it, so all of them are waited for; but not for longer than a
            character can take.
    """
    replacements = len(text) - len(text.rstrip(REPLACEMENT))
    return replacements if tokens <= MAX_UNFINISHED else min(replacements, MAX_UNFINISHED)
