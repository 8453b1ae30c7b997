"""Which packages this installation should have, read from its own metadata, and which it has. Imports none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from trtbuild.errors import TrtbuildError

#: The forms that pyproject.toml uses: a name, perhaps extras, perhaps lower and upper bounds, perhaps one extra.
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*?)\s*(?:;\s*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"])?"
)
_BOUND = re.compile(r"(?P<relation>>=|<|==)\s*(?P<version>[0-9.]+)")


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
        """Say whether a version lies within the bounds; only its numbers count, so 2.13.0+cpu is 2.13.0."""
        have = _numbers(found)
        relations = {">=": have.__ge__, "<": have.__lt__, "==": have.__eq__}
        return all(relations[bound["relation"]](_numbers(bound["version"])) for bound in _BOUND.finditer(self.bounds))


def own_requirements(*extras: str) -> list[Requirement]:
    """Return the packages of the base installation and of the extras named, in the order of pyproject.toml.

    Raises:
        TrtbuildError: trtbuild itself is not installed, only importable.
    """
    try:
        lines = requires("trtbuild") or []
    except PackageNotFoundError as error:
        raise TrtbuildError("trtbuild is not installed", hint="run: make, or pip install '.[build]'") from error
    parsed = [parse(line) for line in lines]
    return [requirement for requirement in parsed if requirement.extra in ("", *extras)]


def parse(line: str) -> Requirement:
    """Parse a requirement as pyproject.toml or installed metadata spell it.

    Raises:
        TrtbuildError: it has a form that our pyproject.toml does not use.
    """
    match = _REQUIREMENT.fullmatch(line.strip())
    if match is None:
        raise TrtbuildError(f"cannot read the requirement {line!r}", hint="this is a defect of trtbuild; report it")
    return Requirement(match["name"], match["bounds"], match["extra"] or "")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.match(r"\d+(?:\.\d+)*", text)[0].split(".")]  # type: ignore[index]  # a version begins with a digit
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
