"""Values that stand beside a name that says they are secret, as text has it: YAML, JSON, pbtxt, shells, headers, command lines, XML."""

from __future__ import annotations

import re

from trtbuild.redaction.names import is_secret
from trtbuild.redaction.patterns import REDACTED

_LONGEST = 1000
_WORDS = (
    "api|access|secret|private|auth|account|license|master|shared|storage|encryption|webhook|session|security|client"
)
#: A name and what leads from it to its value. `->` and "is" are prose, a comma follows a quoted name in lists of headers.
_KEY = re.compile(
    rf"(?<![\w.-])(?P<key>-{{0,2}}(?i:(?:{_WORDS})[ \t]){{0,2}}[A-Za-z0-9_][\w.-]{{0,{_LONGEST}}})"
    r"(?P<close>(?:\\*[\"'`]|%22|%27)?\]?)"
    r"(?P<between>\s{0,16}(?::=|=>|->|:(?!:)|=(?!=)|%3[AaDd])[ \t]*(?:\n[ \t]+)?|[ \t]+(?:is|was)(?:[ \t]*:|\b)[ \t]+|\s*,\s*(?=\\*[\"'])|[ \t]+)"
)  # fmt: skip
#: name: HF_TOKEN  value: "..." of Kubernetes and Docker, key: "..." value: { string_value: "..." } of config.pbtxt.
_NAMED = re.compile(
    rf"\b(?:name|key|variable|env)\\*[\"']?\s{{0,16}}[:=]\s{{0,16}}\\*[\"']?(?P<key>[\w.-]{{1,{_LONGEST}}})\\*[\"']?\s{{0,64}}[,;]?\s{{0,64}}"
    r"\\*[\"']?(?:string_)?value\\*[\"']?\s{0,16}[:=]?\s{0,64}(?:{\s{0,64}string_value\s{0,16}:\s{0,64})?",
    re.I,
)  # fmt: skip
_TAG = re.compile(rf"<(?P<key>[\w.:-]{{1,{_LONGEST}}})(?:\s[^<>\n]{{0,{_LONGEST}}})?>")
_VALUE = re.compile(
    r"(?P<quote>[bruf]?\"|[bruf]?'|`)(?:(?!(?P=quote)[\s,;:)}\]&<>/\"'`]|(?P=quote)\Z)(?:\\.|[^\n]))*"  # up to a quote that ends the value
    r"|(?P<escaped>\\+[\"'])(?:(?!(?P=escaped))[^\n])*"
    r"|[|>][+-]?\d?[ \t]*\n(?:[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)+"  # a block of YAML
    r"|(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256)[ \t]+[^\n\"']+"
    r"|[^\s\"']\S*",
    re.I,
)
_TEXT_OF_TAG = re.compile(r"[^<]+")
_REST_OF_LINE = re.compile(r"[^\n]+")
#: Before a name that begins its line, whose value then goes to the end of the line.
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*(?:(?:export|set|setx|ENV|ARG|-|\+|>|#|//)[ \t]+)*[\"']?\Z", re.I)
_HEADER = re.compile(r"authorization|cookie", re.I)
#: Brackets that are not closed within so many characters are those of prose.
_LONGEST_BRACKETS = 2**14
_BRACKETS = frozenset("[{")


def redact_pairs(text: str) -> str:
    """Return text without the values of secret names."""
    for keys in (_TAG, _NAMED, _KEY):
        text = _without_values(text, keys)
    return text


def _without_values(text: str, keys: re.Pattern[str]) -> str:
    parts = []
    done = position = 0
    while match := keys.search(text, position):
        position = match.end()
        if not _means_secret(match):
            # The value may hold a further name: note: password=...
            position = max(match.end("key"), match.start() + 1)
            continue
        if (found := _value(text, match)) is None:
            continue
        parts += [text[done : match.end()], found[0]]
        done = position = found[1]
    return "".join([*parts, text[done:]])


def _means_secret(match: re.Match[str]) -> bool:
    if not is_secret(match["key"]):
        return False
    between = match.groupdict().get("between", ":").strip()
    if between:
        return between != "," or bool(match["close"])
    before = match.string[max(0, match.start() - 4) : match.start()]
    # A blank leads to a value on command lines (--hf-token abc), in SQL and in Dockerfiles (ENV HF_TOKEN abc); prose is left.
    return (
        match["key"].startswith("-")
        or match.string.startswith(('"', "'"), match.end())
        or before.upper() in ("ENV ", "ARG ")
    )


def _value(text: str, match: re.Match[str]) -> tuple[str, int] | None:
    """Return what stands in for the value that begins where the match ends, and where it ends; None when there is none."""
    start = match.end()
    if match.re is _TAG:
        found = _TEXT_OF_TAG.match(text, start)
        return (REDACTED, found.end()) if found else None
    if text[start : start + 1] in _BRACKETS and not text.startswith(REDACTED, start):
        return REDACTED, _end_of_brackets(text, start)
    found = _VALUE.match(text, start)
    if found is None:
        return None
    end = found.end()
    if "\n" in match[0][match.end("key") - match.start() :]:  # everything that is indented below the name
        indent = re.escape(text[text.rindex("\n", 0, start) : start])
        below = re.compile(rf"[^\n]*(?:{indent}[^\n]*)*").match(text, start)
        return REDACTED, below.end() if below else end
    if found[0].endswith("\n"):
        return REDACTED, end - 1
    quote = found["quote"] or found["escaped"]
    if quote:
        mark = quote.lstrip("brufBRUF")
        end += len(mark) if text.startswith(mark, end) else 0
        return f"{mark}{REDACTED}{mark}", end
    is_line = _LINE_START.search(text[max(0, match.start() - 64) : match.start()] or "\n") is not None
    if is_line or _HEADER.search(match["key"]):
        rest = _REST_OF_LINE.match(text, start)
        return REDACTED, max(end, rest.end() if rest else end)
    rest_of_value = found[0].removeprefix(REDACTED)
    kept = len(rest_of_value) - len(rest_of_value.rstrip(",;)}]\"'"))
    return REDACTED, end - kept if kept < len(found[0]) else end


def _end_of_brackets(text: str, start: int) -> int:
    depth = 0
    for position in range(start, min(len(text), start + _LONGEST_BRACKETS)):
        depth += (text[position] in "[{") - (text[position] in "]}")
        if depth == 0:
            return position + 1
    end = text.find("\n", start)
    return len(text) if end < 0 else end
