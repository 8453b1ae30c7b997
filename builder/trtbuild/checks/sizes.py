"""Numbers that no machine, engine or server has. Knows bounds of kinds of numbers; knows no model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from trtbuild.checks.fault import Fault
from trtbuild.spec import Deployment

_GIB = 2**30
#: Engines, the LLM API and Triton's configs keep counts as int32, and microseconds as uint64 (ModelQueuePolicy of triton's model_config.proto).
_MOST_COUNT = 2**31 - 1
_MOST_LONG = 2**63 - 1
#: The largest GPU on the market has 288 GB (NVIDIA B300); a 26-bit number of bytes is one that was meant in GiB or MiB.
MOST_GPU_BYTES = 2**40
_LEAST_GPU_BYTES = 2**26
#: More memory than a server of eight sockets takes.
_MOST_HOST_BYTES = 64 * 2**40
#: End of a field's name -> its bounds and what they are called.
_BYTES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("hardware", "memory_bytes"): (_LEAST_GPU_BYTES, MOST_GPU_BYTES, "64 MiB to 1 TiB; it is in bytes, e.g. 85899345920 for 80 GiB"),
    ("kv_cache", "host_cache_bytes"): (0, _MOST_HOST_BYTES, "at most 64 TiB; it is in bytes, e.g. 34359738368 for 32 GiB"),
    ("lora", "host_cache_bytes"): (0, _MOST_HOST_BYTES, "at most 64 TiB; it is in bytes, e.g. 1073741824 for 1 GiB"),
}  # fmt: skip
_LONG = ("seed", "_us", "_s")


def size_faults(deployment: Deployment) -> Iterator[Fault]:
    """Yield the numbers that are out of all bounds."""
    for place, value in _numbers(deployment.as_dict()):
        name = ".".join(place)
        if place in _BYTES:
            low, high, words = _BYTES[place]
            if not low <= value <= high:
                yield Fault(f"{name}={value:,} bytes is no size that there is", f"{name}: use {words}")
            continue
        most = _MOST_LONG if place[-1].endswith(_LONG) else _MOST_COUNT
        if value > most:
            yield Fault(f"{name}={value} is too large", f"{name}: use at most {most}")


def _numbers(node: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each whole number of all sections with its place; those of `llm_api.extra` are the LLM API's business."""
    for key, value in node.items():
        inner = (*place, key)
        if inner == ("llm_api", "extra"):
            continue
        if isinstance(value, dict):
            yield from _numbers(value, inner)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not isinstance(number, bool):
                yield inner, number


def size_notes(deployment: Deployment) -> Iterator[str]:
    """Yield what fits no machine like this one, though it may fit the one that will serve."""
    wanted = {
        "kv_cache.host_cache_bytes": deployment.kv_cache.host_cache_bytes,
        "lora.host_cache_bytes": deployment.lora.host_cache_bytes if deployment.lora.adapters else 0,
    }
    here = host_memory_bytes()
    if sum(wanted.values()) > here:
        names = " and ".join(f"{name}={value:,}" for name, value in wanted.items() if value)
        yield (
            f"{names} is more than the {here / _GIB:.1f} GiB of host memory of this machine; the server needs that much, pinned, "
            "beside its own"
        )


def host_memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
