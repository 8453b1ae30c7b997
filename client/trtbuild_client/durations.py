"""Lengths of time as they are written: 5, 0.5, 5s, 500ms, 200us, 2m or 1h. The only parser of them, and the limit that all of them have."""

from __future__ import annotations

import re

#: 24 days: poll(2), on which sockets wait, counts milliseconds in 31 bits (24.8 days), and so does gRPC's keepalive.
LONGEST_S = 24 * 86_400.0
LONGEST = "24 days"
#: How a length of time is written, for messages.
FORMS = "5s, 500ms, 200us, 2m or 1h"
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_FORM = re.compile(rf"\s*([0-9]*\.?[0-9]+)\s*({'|'.join(_UNITS_NS)}|)\s*")


def parse_ns(text: str, *, needs_unit: bool = False, may_be_zero: bool = False) -> float | None:
    """Return nanoseconds, None when the text is no length of time, or one that is too short (below 1 ns) or beyond `LONGEST_S`.

    Args:
        needs_unit: refuse a plain number, which else counts seconds; 0 needs none.
        may_be_zero: take 0.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    time_ns = float(match[1]) * _UNITS_NS[match[2] or "s"]
    if time_ns == 0:
        return 0.0 if may_be_zero else None
    return time_ns if 1 <= time_ns <= LONGEST_S * 1e9 and (match[2] or not needs_unit) else None
