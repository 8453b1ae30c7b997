"""How the memory of a conversion is shared out: threads, row blocks, and what is kept of a group. Knows no tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trtbuild.errors import UsageError

#: Memory of a conversion above that of the interpreter, bytes.
DEFAULT_MEMORY_BYTES = 2**30
#: More threads than this only wait for the disk.
_MOST_WORKERS = 8
LARGEST_BLOCK_BYTES, SMALLEST_BLOCK_BYTES = 4 * 2**20, 2**18
#: Groups of so many blocks are kept while they are gone through twice; larger ones are read again, from the page cache as a rule.
_KEPT_BLOCKS = 2
#: A worker holds a raw block, its float32 form, a quotient, codes and a rank's copy, and what it keeps: this many times the raw block.
_BLOCKS_PER_WORKER = 10
#: What one worker takes with the smallest blocks.
SMALLEST_MEMORY_BYTES = _BLOCKS_PER_WORKER * SMALLEST_BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Budget:
    """What a conversion works with.

    Attributes:
        workers: threads; fewer than there are cores where the memory is small.
        block_bytes: source bytes of a row block.
        cache_bytes: source bytes of a group that may be kept.
    """

    workers: int
    block_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, memory_bytes: int) -> Budget:
        """Share out what may be used above the interpreter.

        Raises:
            UsageError: it is less than one worker takes.
        """
        require_enough(memory_bytes)
        workers = min(os.cpu_count() or 1, _MOST_WORKERS, memory_bytes // SMALLEST_MEMORY_BYTES)
        block = min(memory_bytes // (workers * _BLOCKS_PER_WORKER), LARGEST_BLOCK_BYTES)
        return cls(workers=workers, block_bytes=block, cache_bytes=_KEPT_BLOCKS * block)


def require_enough(memory_bytes: int) -> None:
    """Raise UsageError when a budget is below what the smallest row blocks take."""
    if memory_bytes < SMALLEST_MEMORY_BYTES:
        raise UsageError(
            f"a memory budget of {memory_bytes:,} bytes is too small: row blocks take {SMALLEST_MEMORY_BYTES:,} bytes at least",
            hint=f"--memory {SMALLEST_MEMORY_BYTES / 2**20:g}MiB is the least; more is faster",
        )
