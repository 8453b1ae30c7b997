"""The environment variables a server is started with: UTF-8, this interpreter first, no secrets, no network lookups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trtbuild.redaction import holds_secret, is_secret

#: Set for every server. The locale matters to the server and to programs that models start; the interpreter embedded
#: in the Python backend ignores its environment and gets UTF-8 from `stub_preface`.
FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def server_environment(
    inherited: Mapping[str, str], *, python_folder: Path, library_path: Path | None
) -> dict[str, str]:
    """Return the environment of a server.

    Args:
        inherited: the environment of this process; secrets (by name, and by value: a proxy's URL with a password), PYTHON* and
            locale settings are left out.
        python_folder: put first in PATH; its `python3` decides which packages models see.
        library_path: put first in LD_LIBRARY_PATH, if any.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not is_secret(name) and not holds_secret(value) and not name.startswith(("PYTHON", "LC_"))
    }
    kept.update(FIXED)
    kept["PATH"] = os.pathsep.join([str(python_folder), kept.get("PATH") or os.defpath])
    if library_path is not None:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(library_path), kept.get("LD_LIBRARY_PATH")]))
    return kept
