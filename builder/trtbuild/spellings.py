"""Facts that config.json may state under several names: they must agree, because programs differ in which name they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.errors import TrtbuildError

#: Names of one fact, in every family: the newer one first (transformers 4.56 renamed `torch_dtype`; attribute maps of the configs of experts).
ANYWHERE: tuple[tuple[str, ...], ...] = (("dtype", "torch_dtype"), ("num_experts", "num_local_experts"))


def require_same(spellings: Mapping[str, Any], where: str, hint: str) -> None:
    """Raise TrtbuildError, which names all, when a fact is given under several names with different values; null is not given."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if any(value != next(iter(given.values())) for value in given.values()):
        values = " and ".join(f"{name} = {value!r}" for name, value in given.items())
        raise TrtbuildError(f"{where}: {values} contradict each other", hint=hint)


def check_spellings(config: Mapping[str, Any], where: str) -> None:
    """Raise TrtbuildError when names that every family knows contradict each other.

    Args:
        config: parsed config.json.
        where: its path, for the message.
    """
    for names in ANYWHERE:
        values = {name: config.get(name) for name in names}
        bare = {
            name: value.removeprefix("torch.") if isinstance(value, str) else value for name, value in values.items()
        }
        require_same(bare, where, "keep the one that is meant; programs differ in which they read")
