"""File descriptors: every connection takes one, and most systems begin with room for 1,024."""

from __future__ import annotations

import resource

#: Beside connections: files, pipes, libraries.
_SPARE = 64


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; return how many connections there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**31 if hard == resource.RLIM_INFINITY else max(hard - _SPARE, 0)
