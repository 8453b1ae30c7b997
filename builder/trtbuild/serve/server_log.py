"""Reading tritonserver's log: new lines as they come, and the part of it that says why a server did not start."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

#: Lines kept in memory; a start that fails writes far fewer.
KEPT_LINES = 2000
#: Errors that every server on a machine without a GPU logs.
_HARMLESS = ("CudaDriverHelper", "pinned memory", "pinned system memory", "NVML", "DCGM", "unable to create stream")
#: The server waits for minutes after these, although nothing more can come.
_FATAL = (
    "Failed to preinitialize Python stub",
    "error while loading shared libraries",
    "triton_python_backend_stub: Permission denied",
    "triton_python_backend_stub: cannot execute",
)
_GLOG = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ (?P<source>[\w.]+:\d+)\] +(?P<text>.*)$")
_LOADING = re.compile(r'"loading: (?P<model>.+):\d+"$')
_LOADED = re.compile(r"\"successfully loaded '(?P<model>.+)'\"$")
#: Says the same as what follows it, with less in it.
_REDUNDANT = ("ERROR: Failed to create instance: ",)
_SUMMARY = "error: creating server: Internal - failed to load all models"


class LogTail:
    """Follows a growing file.

    Args:
        path: the file; it may not exist yet.
        offset: where reading begins, bytes.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._partial = b""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)

    def read(self) -> list[str]:
        """Return the lines completed since the last call; they are also kept in `lines`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *complete, self._partial = (self._partial + data).split(b"\n")
        new = [line.decode("utf-8", "replace") for line in complete]
        self.lines.extend(new)
        return new

    def last(self, count: int) -> list[str]:
        """Return the last lines, without the tables that say nothing about errors."""
        kept = [line for line in self.lines if line.strip() and line[0] not in "+|"]
        return kept[-count:]


def is_fatal(line: str) -> bool:
    """Say whether a server that logged this line will not become ready, although it goes on waiting."""
    return any(fragment in line for fragment in _FATAL)


def is_notable(line: str) -> bool:
    """Say whether a person watching wants the line: warnings, errors and what models print, not tables and routine."""
    if not line.strip() or line[0] in "+|" or line.startswith("Signal (") or any(text in line for text in _HARMLESS):
        return False
    match = _GLOG.match(line)
    return match is None or match["level"] != "I"


def loaded_model(line: str) -> str | None:
    """Return the model that the line says was loaded, if it does."""
    match = _LOADED.search(line)
    return match["model"] if match else None


def not_loaded(lines: Iterable[str]) -> list[str]:
    """Return the models that began to load and have not finished, in the order they began."""
    pending: dict[str, None] = {}
    for line in lines:
        if match := _LOADING.search(line):
            pending[match["model"]] = None
        elif model := loaded_model(line):
            pending.pop(model, None)
    return list(pending)


def reasons(lines: Iterable[str]) -> list[str]:
    """Return the server's own error texts, each once, escapes undone; empty when it gave none.

    These are lines of level error and fatal except those that every GPU-less server logs, the parser's complaints, the
    last word of the server (`error: ...`), and what makes it wait in vain.
    """
    found: dict[str, None] = {}
    for line in lines:
        text = _error_text(line)
        if text and not text.startswith(_REDUNDANT):
            found[text] = None
    if len(found) > 1:
        found.pop(_SUMMARY, None)
    return list(found)


def _error_text(line: str) -> str | None:
    if any(fragment in line for fragment in _HARMLESS):
        return None
    match = _GLOG.match(line)
    if match is None:
        is_error = line.startswith(("error:", "[libprotobuf ERROR")) or is_fatal(line)
        return line.strip() if is_error else None
    if match["level"] not in "EF" and not is_fatal(line):
        return None
    return _unescape(match["text"])


def _unescape(text: str) -> str:
    """Undo the quoting of a log message: `"a\\nb"` becomes two lines."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return re.sub(r'\\(n|t|"|\\)', lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text).strip()
