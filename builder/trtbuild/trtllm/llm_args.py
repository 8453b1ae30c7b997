"""The LLM API's arguments of one release: looking a key up, checking what a user wrote, and building the mapping that becomes YAML.

TensorRT-LLM refuses to start on a key that it does not know, at any level (LLM API specification 0.3, fact 2). So nothing is written that was
not looked up in the tables here. Knows no field of trtbuild.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trtbuild.errors import UsageError
from trtbuild.trtllm.llm_arg_tables import NESTED, OLD_NAMES, TOP
from trtbuild.trtllm.llm_arg_types import Arg, Life, row_of
from trtbuild.trtllm.llm_speculative import DECODING_TYPES, fields_of
from trtbuild.trtllm.versions import RELEASES, Feature, Release

#: Keys from the top, e.g. ("kv_cache_config", "dtype").
Path = tuple[str, ...]
SPECULATIVE = "speculative_config"
_DECODING = "decoding_type"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for one argument.

    Attributes:
        path: the argument.
        value: plain data.
        origin: who set it, for messages, e.g. "limits.max_batch_size".
    """

    path: Path
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class LlmArgs:
    """The arguments that one release takes."""

    release: Release

    def build(self, settings: Iterable[Setting]) -> dict[str, Any]:
        """Return nested plain data of some settings; each was looked up.

        Raises:
            UsageError: the release lacks an argument or a value, or two settings set the same argument.
        """
        data: dict[str, Any] = {}
        settings = list(settings)
        decoding = _decoding(settings)
        seen: dict[Path, str] = {}
        for item in settings:
            if item.path in seen:
                raise UsageError(
                    f"{item.origin} and {seen[item.path]} both set {dotted(item.path)} of the LLM API",
                    hint="leave one of them out",
                )
            seen[item.path] = item.origin
            self._check_value(item.path, self._find(item.path, item.origin, decoding), item.value, item.origin)
            node: Any = data
            for key in item.path[:-1]:
                node = node.setdefault(key, {})
                if not isinstance(node, dict):
                    raise UsageError(
                        f"{item.origin} sets {dotted(item.path)} of the LLM API, and {seen[(key,)]} switches {key} off",
                        hint="leave one of them out",
                    )
            node[item.path[-1]] = item.value
        return data

    def check(
        self, data: Mapping[str, Any], *, origin: str, fields: Mapping[Path, str], decoding: str = ""
    ) -> list[Setting]:
        """Return what a user wrote, checked, as settings of single arguments.

        Args:
            data: nested, by the LLM API's own names.
            origin: where it stands, e.g. "llm_api.extra".
            fields: arguments that a field of trtbuild.yaml sets -> that field.
            decoding: the decoding_type, where such a field sets it.

        Raises:
            UsageError: a key is unknown, renamed, of other releases, set by a field of trtbuild.yaml, or its value is not allowed.
        """
        nested = data.get(SPECULATIVE)
        if isinstance(nested, Mapping) and not decoding:
            decoding = str(nested.get(_DECODING, ""))
        return list(self._walk(data, (), origin, fields, decoding))

    def notes(self, settings: Iterable[Setting]) -> list[str]:
        """Return what is doubtful about arguments: those of which no source says that the release has them."""
        found = []
        settings = list(settings)
        decoding = _decoding(settings)
        for item in settings:
            arg = self._arg(item.path, decoding)
            lives = {dotted(item.path): arg.life} if arg is not None else {}
            if item.path == (SPECULATIVE, _DECODING):
                lives[f"{_DECODING} {item.value}"] = DECODING_TYPES[str(item.value)].life
            found += [
                f"unverified: {what} ({item.origin}): nothing that was read says whether TensorRT-LLM {self.release} has it; "
                f"these have it: {_releases_with(life)}"
                for what, life in lives.items()
                if life.state(self.release) == "unclear"
            ]
        if not self.release.has(Feature.LLM_ARGS_READ):
            found.append(f"the arguments of TensorRT-LLM {self.release} are concluded from those of 1.1")
        return found

    def _walk(
        self, data: Mapping[str, Any], path: Path, origin: str, fields: Mapping[Path, str], decoding: str
    ) -> Iterator[Setting]:
        for key, value in data.items():
            here = (*path, str(key))
            where = f"{origin}.{dotted(here)}"
            is_nested = isinstance(value, Mapping) and bool(value)
            if (field := fields.get(here)) is not None and not is_nested:
                raise UsageError(
                    f"{where}: this argument is set by {field} of trtbuild.yaml, and nothing may set it twice",
                    hint=f"set {field} instead",
                )
            arg = self._find(here, where, decoding)
            if arg.kind == "section" and is_nested:
                yield from self._walk(value, here, origin, fields, decoding)
                continue
            inside = sorted({name for taken, name in fields.items() if taken[: len(here)] == here})
            if inside:
                raise UsageError(
                    f"{where} = {value!r} replaces what {', '.join(inside)} of trtbuild.yaml set in it",
                    hint="leave it out",
                )
            self._check_value(here, arg, value, where)
            yield Setting(here, value, where)

    def _arg(self, path: Path, decoding: str) -> Arg | None:
        """Return the row of an argument, of whatever release; None when there is none."""
        table = TOP
        for key in path[:-1]:
            parent = table.get(key)
            if parent is None or parent.kind != "section":
                return None
            table = fields_of(decoding) if parent.section == SPECULATIVE else NESTED[parent.section]
        return row_of(table, path[-1])

    def _find(self, path: Path, where: str, decoding: str) -> Arg:
        """Return the row of an argument that this release has.

        Raises:
            UsageError: it has none, says why and what to write instead.
        """
        arg = self._arg(path, decoding)
        if arg is None:
            raise self._unknown(path, where, decoding)
        if arg.refused:
            raise UsageError(f"{where} cannot be set: {arg.refused}", hint="remove it")
        if arg.life.state(self.release) == "absent":
            raise self._absent(path, where, arg)
        return arg

    def _unknown(self, path: Path, where: str, decoding: str) -> UsageError:
        text = f"{where}: the LLM API has no argument '{dotted(path)}', and would refuse to start"
        if (new := OLD_NAMES.get(dotted(path))) is not None:
            return UsageError(
                f"{where}: this is a name from before 1.0; TensorRT-LLM {self.release} calls it {self._current(new)}",
                hint=f"write {self._current(new)}",
            )
        known = list(self._known(path[:-1], decoding))
        elsewhere = [(name, path[-1]) for name, table in NESTED.items() if path[-1] in table]
        near = [(*path[:-1], name) for name in get_close_matches(path[-1], known, n=1)]
        if nearest := (elsewhere or near):
            return UsageError(text, hint=f"did you mean '{dotted(nearest[0])}'?")
        return UsageError(text, hint=f"known here: {', '.join(known)}")

    def _current(self, name: str) -> str:
        """Return the name that this release has for an argument which has had several; the given one when it has none."""
        names = [name, *(old for old, row in TOP.items() if row.renamed_to == name)]
        return next((each for each in names if self._has((each,))), name)

    def _has(self, path: Path) -> bool:
        arg = self._arg(path, "")
        return arg is not None and arg.life.state(self.release) != "absent"

    def _absent(self, path: Path, where: str, arg: Arg) -> UsageError:
        earlier = [name for name, row in self._table(path[:-1]).items() if row.renamed_to == path[-1]]
        others = [(*path[:-1], name) for name in (*earlier, arg.renamed_to) if name]
        for other in others:
            if self._has(other):
                return UsageError(
                    f"{where}: TensorRT-LLM {self.release} calls this {dotted(other)}", hint=f"write {dotted(other)}"
                )
        return UsageError(
            f"{where}: TensorRT-LLM {self.release} has no such argument, and would refuse to start",
            hint=f"releases that have it: {_releases_with(arg.life)} ({arg.life.span.evidence}); remove it, or choose one of them",
        )

    def _table(self, path: Path) -> Mapping[str, Arg]:
        if not path:
            return TOP
        arg = self._arg(path, "")
        if arg is None or arg.kind != "section":
            return {}
        return fields_of("") if arg.section == SPECULATIVE else NESTED[arg.section]

    def _known(self, path: Path, decoding: str) -> Iterator[str]:
        table = fields_of(decoding) if path == (SPECULATIVE,) else self._table(path)
        return (name for name, arg in table.items() if not arg.refused and arg.life.state(self.release) != "absent")

    def _check_value(self, path: Path, arg: Arg, value: Any, where: str) -> None:
        if problem := arg.problem(value, self.release):
            raise UsageError(f"{where} = {value!r} {problem}", hint=f"it becomes {dotted(path)} of the LLM API")
        if path == (SPECULATIVE, _DECODING):
            self._check_decoding(value, where)

    def _check_decoding(self, name: str, where: str) -> None:
        known = DECODING_TYPES.get(name)
        usable = [
            key
            for key, each in DECODING_TYPES.items()
            if not each.refused and each.life.state(self.release) != "absent"
        ]
        if known is None:
            near = get_close_matches(name, usable, n=1, cutoff=0.5)
            raise UsageError(
                f"{where}: there is no decoding_type '{name}'",
                hint=f"did you mean '{near[0]}'?" if near else f"TensorRT-LLM {self.release} has: {', '.join(usable)}",
            )
        if known.refused:
            raise UsageError(f"{where} = '{name}': {known.refused}", hint=f"use one of {', '.join(usable)}")
        if known.life.state(self.release) == "absent":
            other = known.renamed_to or next(
                (key for key, each in DECODING_TYPES.items() if each.renamed_to == name), ""
            )
            raise UsageError(
                f"{where}: TensorRT-LLM {self.release} has no decoding_type '{name}'"
                + (f"; it calls it '{other}'" if other else ""),
                hint=f"it has: {', '.join(usable)}",
            )


def dotted(path: Path) -> str:
    """Return a path as it is written in messages."""
    return ".".join(path)


def leaves(data: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every argument of built data with its value."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _decoding(settings: Iterable[Setting]) -> str:
    return str(next((item.value for item in settings if item.path == (SPECULATIVE, _DECODING)), ""))


def _releases_with(life: Life) -> str:
    """Return the releases of the table that have something, as text."""
    names = [release.name for release in RELEASES if release.has(Feature.LLM_API) and life.state(release) == "present"]
    return ", ".join(names) or life.span.source
