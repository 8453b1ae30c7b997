"""Numbers that servers count: read from whatever a server put in their place, and refused by name where it is none."""

from __future__ import annotations

import reprlib

from trtbuild_client.errors import ServerError

#: The largest count there can be: Triton's outputs of counts are INT32 (tensorrtllm_backend, all_models/inflight_batcher_llm/*/config.pbtxt).
MOST = 2**31 - 1
_DIGITS = len(str(MOST))


def count(name: str, value: object) -> int:
    """Return a count: an integer from 0 to `MOST`, or a text of its digits (the LLM API's model sends statistics as texts).

    Raises:
        ServerError: it is none; the message names it and quotes at most 30 characters.
    """
    number = value
    if isinstance(value, (bytes, str)) and value.isdigit() and value.isascii() and len(value) <= _DIGITS:
        number = int(value)
    if type(number) is int and 0 <= number <= MOST:
        return number
    shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    raise ServerError(f"{name} is {reprlib.repr(shown)}, no count", hint=f"A server counts from 0 to {MOST}.")
