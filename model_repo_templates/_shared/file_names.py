"""Names of files beyond ASCII, in the interpreter that Triton's Python backend embeds.

That interpreter ignores the environment and never sets a locale, so its encoding of file names is ASCII, whatever LANG and PYTHONUTF8 say;
`Path("/models/müller").is_dir()` is then False. The encoding cannot be changed afterwards. Its error handler can: Python asks the handler
that is registered as `surrogateescape` for the bytes of what ASCII does not have. Imports the standard library only.

Source: PyConfig_InitIsolatedConfig in pybind11's embed.h (2.10 and later); "Python UTF-8 Mode" and `codecs.register_error` in Python's
documentation. Tried with Python 3.10 to 3.13.
"""

from __future__ import annotations

import codecs
import sys

_HANDLER = "surrogateescape"
_escape = codecs.lookup_error(_HANDLER)


def use_utf8() -> None:
    """Make UTF-8 the encoding of file names where Python took ASCII; call it before a file is opened."""
    if sys.getfilesystemencoding() == "ascii":
        codecs.register_error(_HANDLER, in_utf8)


def in_utf8(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what stands for the part of a text that could not be encoded or decoded, and where to go on: a handler for `codecs`.

    Raises:
        UnicodeError: the part is no text of UTF-8, or another encoding than ASCII failed.
    """
    if isinstance(error, UnicodeEncodeError) and error.encoding == "ascii":
        return error.object[error.start : error.end].encode("utf-8", _HANDLER), error.end
    return _escape(error)
