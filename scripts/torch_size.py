"""Warn before pip downloads a CUDA build of torch: how large it is and how to get another.

Arguments: what pip is to install, such as `torch==2.13.0`. Asks pip what it would take; prints nothing when that is no
CUDA build, and leaves complaints to the installation itself when pip cannot say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

#: A CUDA build of torch 2.13 with the libraries it pulls in, seen on x86-64: download and size when installed.
TYPICAL_DOWNLOAD_GB = 3
TYPICAL_INSTALLED_GB = 5.5


def would_install(wanted: list[str]) -> list[dict[str, Any]]:
    """Return pip's report of what it would install; empty when it cannot say."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    answer = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    return json.loads(answer.stdout)["install"] if answer.returncode == 0 else []


def is_cuda_build(items: list[dict[str, Any]]) -> bool:
    """Say whether a report holds CUDA libraries, or a torch that names CUDA in its version."""
    names = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in items}
    return any(name.startswith(("nvidia-", "cuda-")) for name in names) or "+cu" in names.get("torch", "")


def describe(items: list[dict[str, Any]]) -> str:
    """Return what to print about a CUDA build."""
    torch = next(item["metadata"]["version"] for item in items if item["metadata"]["name"].lower() == "torch")
    files = [Path(unquote(urlsplit(item["download_info"]["url"]).path)) for item in items]
    local = all(item["download_info"]["url"].startswith("file:") for item in items)
    size = f"{sum(file.stat().st_size for file in files) / 1e9:.1f}" if local else f"about {TYPICAL_DOWNLOAD_GB}"
    return (
        f"note: there is no GPU here, and pip takes a CUDA build for torch: torch {torch} and {len(items) - 1} more "
        f"packages, {size} GB to fetch, about {TYPICAL_INSTALLED_GB} GB on disk.\n"
        "      It works. For a smaller one interrupt this (Ctrl-C), and name PyTorch's index of CPU builds:\n"
        "      make TORCH='torch --index-url <PyTorch CPU index>'\n"
        "      or use a Python for which torch is installed already: make PYTHON=/path/to/python3\n"
    )


if __name__ == "__main__":
    _items = would_install(sys.argv[1:])
    if is_cuda_build(_items):
        sys.stdout.write(describe(_items))
