"""Which fields a request may hold. The rule, in this order:

1. null says the same as leaving the field out.
2. A field that changes nothing about the answer (`IGNORED`) is ignored.
3. A field of OpenAI's API that cannot be honoured (`REFUSED`) is refused, unless its value asks for nothing.
4. Any other field that is not known is refused, with the nearest known name. A misspelt `max_tokens` must not become 1024 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from trtbuild.gateway.errors import refused, unsupported

IGNORED = frozenset(
    {
        "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip

_NO_TOOLS = "tools are not available: the server gives text only"
_TEXT_ONLY = "only text goes in and comes out"
#: field -> values that ask for nothing, and why others are refused.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), _TEXT_ONLY),
    "best_of": ((1,), "the server makes the answers that are asked for with n, and ranks none"),
    "echo": ((False,), "the prompt is not repeated"),
    "function_call": (("none", "auto"), _NO_TOOLS),
    "functions": (([],), _NO_TOOLS),
    "logit_bias": (({},), "biases by token id cannot be sent"),
    "modalities": ((["text"],), _TEXT_ONLY),
    "moderation": ((), "there is no moderation"),
    "prediction": ((), "predicted outputs are not available"),
    "reasoning_effort": (("none",), "the server has no such setting"),
    "suffix": (("",), "text cannot be inserted"),
    "tool_choice": (("none", "auto"), _NO_TOOLS),
    "tools": (([],), _NO_TOOLS),
    "verbosity": (("medium",), "the server has no such setting"),
    "web_search_options": ((), "there is no web search"),
}


def settle(body: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the fields that count.

    Args:
        known: names of the fields of this endpoint.

    Raises:
        ApiError: a field cannot be honoured or is not known.
    """
    names = set(known)
    settled = {}
    for name, value in body.items():
        if value is None or name in IGNORED:
            continue
        if name in names:
            settled[name] = value
        elif name in REFUSED:
            neutral, reason = REFUSED[name]
            # bool is an int: True must not pass for 1.
            if not any(value == each and type(value) is type(each) for each in neutral):
                raise unsupported(f"'{name}': {reason}", param=name)
        else:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(names))}"
            raise refused(f"unknown field '{name[:64]}'; {hint}", param=name[:64], code="unknown_parameter")
    return settled
