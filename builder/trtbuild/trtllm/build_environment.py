"""The environment that trtllm-build gets: variables that are known to matter, and those that the user names.

What it does not get it cannot print, and its log goes into bug reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from trtbuild.errors import UsageError
from trtbuild.redaction.redactor import secret_values
from trtbuild.variables import PROCESS, SETUP, pick

#: Names further variables, as patterns with commas between.
FURTHER = "TRTBUILD_BUILDER_ENV"


def builder_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the builder: the listed variables, those that TRTBUILD_BUILDER_ENV names, and output that is not held back.

    Raises:
        UsageError: TRTBUILD_BUILDER_ENV names everything.
    """
    return {**pick(inherited, (*SETUP, *PROCESS)), **_further(inherited), "PYTHONUNBUFFERED": "1"}


def secrets_of_builder(inherited: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that must not stand in the builder's log: of the variables that were passed on by name although they are secret."""
    return secret_values(_further(inherited))


def _further(inherited: Mapping[str, str]) -> dict[str, str]:
    patterns = [word.strip() for word in inherited.get(FURTHER, "").split(",") if word.strip()]
    if all_of_them := [pattern for pattern in patterns if not pattern.strip("*?")]:
        raise UsageError(
            f"{FURTHER} names every variable: {all_of_them[0]!r}",
            hint="name those that trtllm-build needs, as NAME or NAME_*, with commas between",
        )
    return {name: value for name, value in inherited.items() if any(fnmatchcase(name, each) for each in patterns)}
