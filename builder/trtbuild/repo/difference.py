"""What differs between two model repositories, by meaning: order, formatting, comments and spelled-out defaults do not count.

Knows how a configuration becomes a flat table of values (`facts`) and how two tables compare. Judges nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from trtbuild.errors import TrtbuildError
from trtbuild.foreign_yaml import plain_yaml
from trtbuild.repo.lint.reading import dead_links_below, files_below
from trtbuild.repo.lint.repository import CONFIG, Model, read_repository
from trtbuild.repo.proto import as_dict

#: Field of ModelConfig -> the aspect it belongs to; all others are "settings".
ASPECTS: dict[str, str] = {
    "input": "tensors",
    "output": "tensors",
    "batch_input": "tensors",
    "batch_output": "tensors",
    "parameters": "parameters",
    "ensemble_scheduling": "ensemble",
    "max_batch_size": "scheduling",
    "dynamic_batching": "scheduling",
    "sequence_batching": "scheduling",
    "instance_group": "scheduling",
    "model_transaction_policy": "scheduling",
    "version_policy": "scheduling",
    "response_cache": "scheduling",
}
#: Lists in which the order carries meaning: shapes, and what is tried one after the other.
_ORDERED = frozenset({"dims", "shape", "preferred_batch_size", "reshape"})
#: Not part of a model: what Python leaves behind, what keeps an empty folder, and hidden files.
_IGNORED_FOLDERS = frozenset({"__pycache__"})
_DIGEST_CHARACTERS = 12
#: What stands for the content of a link that leads nowhere.
_DEAD = "a link that leads nowhere"
_CHUNK_BYTES = 2**20
#: Files that count by what they say -> how they are read, and the largest of them; a larger one is compared as it is.
_SAID: dict[str, Callable[[str], Any]] = {".yaml": plain_yaml, ".yml": plain_yaml, ".json": json.loads}
_MOST_SAID_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same on both sides.

    Attributes:
        model: the model.
        aspect: tensors, parameters, scheduling, ensemble, files, settings, or model for one that is on one side only.
        what: the place inside the model, e.g. `input.INPUT.dims`.
        a, b: the values as text; None: not there.
    """

    model: str
    aspect: str
    what: str
    a: str | None
    b: str | None

    def as_json(self) -> dict[str, str | None]:
        """Return the fields as a JSON object."""
        return asdict(self)


def compare(a: Path, b: Path) -> list[Difference]:
    """Return every difference between two repositories, ordered by model and place.

    Raises:
        TrtbuildError: one of them is no repository, or a configuration cannot be parsed.
    """
    ours, theirs = (_models(path) for path in (a, b))
    links = [{path.name: _DEAD for path in dead_links_below(folder) if path.parent == folder} for folder in (a, b)]
    found = [
        Difference(name, "files", name, links[0].get(name), links[1].get(name))
        for name in sorted({*links[0], *links[1]})
        if links[0].get(name) != links[1].get(name)
    ]
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            present = ("there", None) if name in ours else (None, "there")
            found.append(Difference(name, "model", "the whole model", *present))
            continue
        found.extend(_compare_facts(name, facts(a, ours[name]), facts(b, theirs[name])))
    return found


def _models(path: Path) -> dict[str, Model]:
    return {name: model for name, model in read_repository(path).models.items() if not model.is_stray}


def facts(repository: Path, model: Model) -> dict[tuple[str, str], str]:
    """Return (aspect, place) -> value of everything a model is.

    Raises:
        TrtbuildError: its config.pbtxt is missing or cannot be parsed.
    """
    if model.config is None:
        raise TrtbuildError(f"{repository / model.file}: {model.syntax_error}", hint="`trtbuild lint` explains")
    config = as_dict(model.config)
    config.setdefault("name", model.folder)  # Triton takes the folder's name
    found: dict[tuple[str, str], str] = {}
    for field, value in config.items():
        for place, text in _flatten(field, value, field):
            found[ASPECTS.get(field, "settings"), place] = text
    for version in model.versions:
        found["files", f"version {version}"] = "there"
    for file in sorted(files_below(repository / model.folder)):
        name = file.relative_to(repository / model.folder).as_posix()
        if name != CONFIG and not _is_hidden(name):
            found["files", name] = digest(file)
    for link in dead_links_below(repository / model.folder):
        found["files", link.relative_to(repository / model.folder).as_posix()] = _DEAD
    return found


def digest(file: Path) -> str:
    """Return the first digits of the SHA-256 of a file; of YAML and JSON that can be read, that of what it says.

    Raises:
        TrtbuildError: it cannot be read.
    """
    try:
        if file.suffix in _SAID and (said := _said(file)) is not None:
            return hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        found = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                found.update(chunk)
        return found.hexdigest()[:_DIGEST_CHARACTERS]
    except OSError as error:
        raise TrtbuildError(f"{file} cannot be read: {error.strerror}", hint="check its permissions") from error


def _said(file: Path) -> str | None:
    """Return what a YAML or JSON file says in one spelling; None when it cannot be read as such, and is compared as it is."""
    if file.stat().st_size > _MOST_SAID_BYTES:
        return None
    try:
        return json.dumps(_SAID[file.suffix](file.read_text(encoding="utf-8")), sort_keys=True)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        return None


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part in _IGNORED_FOLDERS for part in name.split("/"))


def _compare_facts(
    model: str, a: Mapping[tuple[str, str], str], b: Mapping[tuple[str, str], str]
) -> Iterator[Difference]:
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            yield Difference(model, *key, a.get(key), b.get(key))


def _flatten(place: str, value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of every leaf; members of a list are called by name where they have one, else by their content."""
    if isinstance(value, dict):
        if not value:
            yield place, "there"
        elif set(value) == {"string_value"}:  # a parameter
            yield place, _normal(value["string_value"])
        for name, inner in value.items() if set(value) != {"string_value"} else ():
            yield from _flatten(f"{place}.{name}", inner, name)
    elif isinstance(value, list) and key not in _ORDERED:
        for label, inner in _labelled(value):
            yield from _flatten(f"{place}.{label}", inner, "")
    else:
        yield place, value if isinstance(value, str) else json.dumps(value)


def _labelled(members: list[Any]) -> Iterable[tuple[str, Any]]:
    """Return (label, member): labels do not depend on the order, and equal members get different ones."""
    used: dict[str, int] = {}
    for member in sorted(members, key=lambda each: json.dumps(each, sort_keys=True)):
        name = (member.get("name") or member.get("model_name") or member.get("kind")) if isinstance(member, dict) else member  # fmt: skip
        label = str(name) if name else "unnamed"
        used[label] = used.get(label, 0) + 1
        yield (label if used[label] == 1 else f"{label}#{used[label]}"), member


def _normal(text: str) -> str:
    """Return the text of a parameter; JSON objects and lists without their formatting."""
    if text[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text
