"""What the reference target needs from its environment, checked in one place with one clear error."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trtbuild.errors import Lacking

MINIMUM = {"torch": (2, 5), "transformers": (5, 24), "psutil": (5,)}
"""Oldest versions that work: transformers 5.24 is the first whose attention layers take their paged cache as `cache`
and whose allocators hand out page views (`get_cache_for_block_table`). It sizes the paged cache with psutil."""


def require_environment() -> None:
    """Check that torch, transformers and psutil are new enough.

    Raises:
        Lacking: one of them is missing or older than `MINIMUM`.
    """
    for package, minimum in MINIMUM.items():
        wanted = ".".join(map(str, minimum))
        try:
            found = version(package)
        except PackageNotFoundError as error:
            raise Lacking(
                f"the reference target needs {package} >= {wanted}, which is not installed",
                hint="pip install 'trtbuild[build]'",
            ) from error
        if _numbers(found)[: len(minimum)] < minimum:
            raise Lacking(
                f"the reference target needs {package} >= {wanted}, found {found}",
                hint=f"pip install '{package}>={wanted}'",
            )


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading dotted numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
