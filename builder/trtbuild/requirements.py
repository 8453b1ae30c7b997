"""Which packages this installation should have, read from its own metadata, and which it has. Imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement as Specification

from trtbuild.errors import TrtbuildError


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that is needed.

    Attributes:
        name: as the package index spells it.
        bounds: such as ">=5.14"; empty when any version will do.
        extra: the extra that needs it; "" for the base installation.
    """

    name: str
    bounds: str
    extra: str

    def installed(self) -> str | None:
        """Return the installed version, None when there is none."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None

    def accepts(self, found: str) -> bool:
        """Say whether a version lies within the bounds."""
        return Specification(f"x{self.bounds}").specifier.contains(found, prereleases=True)


def own_requirements(*extras: str) -> list[Requirement]:
    """Return the packages that this interpreter needs for the base installation and the extras named.

    Raises:
        TrtbuildError: trtbuild itself is not installed, only importable.
    """
    try:
        lines = requires("trtbuild") or []
    except PackageNotFoundError as error:
        raise TrtbuildError("trtbuild is not installed", hint="run: make, or pip install '.[build]'") from error
    found = []
    for specification in map(Specification, lines):
        marker = specification.marker
        extra = next((name for name in ("", *extras) if marker is None or marker.evaluate({"extra": name})), None)
        if extra is not None:
            found.append(Requirement(specification.name, str(specification.specifier), extra))
    return found
