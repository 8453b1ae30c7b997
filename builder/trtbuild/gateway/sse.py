"""Server-sent events and JSON as bytes. https://html.spec.whatwg.org/multipage/server-sent-events.html"""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def document(value: Any) -> bytes:
    """Return JSON as UTF-8.

    A lone surrogate, which JSON can carry and UTF-8 cannot, becomes a question mark: it can only come from names that a request gave.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def event(value: Any) -> bytes:
    """Return one event. JSON escapes line breaks, so that its data is always one line."""
    return b"data: " + document(value) + b"\n\n"
