"""Which artifacts a machine or a container can load: functions over plain facts, in a table of rules.

An engine is bound to the exact TensorRT and to the kind of GPU that built it, and its config.json to the release that wrote it (Triton
specification 3.2; field reports VC01, VC03, VC04, VC06, VC08, VC09). Knows no files and asks no machine: `artifact.py` and `doctor/` bring the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from trtbuild.errors import TrtbuildError
from trtbuild.trtllm.artifact import GENERATIONS, Artifact, Generation
from trtbuild.trtllm.versions import RELEASES, Container, Release, Version, release_of_tag

Severity = Literal["error", "warning", "notice"]
_REBUILD = "build the engine again where it will be served"


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a library or package that was found.

    Attributes:
        name: of the package or shared object, e.g. "tensorrt" or "libnvinfer.so".
        version: as its metadata or file name says.
        path: where it lies.
    """

    name: str
    version: str
    path: str


@dataclass(frozen=True, slots=True)
class Installed:
    """Facts about what will serve; what is not known is empty.

    Attributes:
        called: how messages name it, e.g. "this machine" or "container 25.08".
        tensorrt_llm: version of the backend.
        tensorrt: version that is loaded.
        transformers: version of the package.
        sms: SM numbers of the GPUs.
        tag: of the container, e.g. "25.08"; a label only, its content is what counts.
        copies: every copy of TensorRT that was found.
    """

    called: str = "this machine"
    tensorrt_llm: str = ""
    tensorrt: str = ""
    transformers: str = ""
    sms: tuple[int, ...] = ()
    tag: str = ""
    copies: tuple[Copy, ...] = ()

    @classmethod
    def of_release(cls, release: Release, *, sms: tuple[int, ...] = ()) -> Installed:
        """Return what a release's container has inside, by the table."""
        called = f"TensorRT-LLM {release.name}" + (f" ({release.container.tag})" if release.container else "")
        return cls(
            called, release.name, release.tensorrt, release.transformers, sms,
            release.container.tag if release.container else "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that does not go together.

    Attributes:
        rule: name of the rule, a key of `RULES`.
        severity: an error stops the server or the build, a warning may, a notice is good to know.
        message: what, with both values.
        remedy: what to do.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str


def compare(artifact: Artifact | None, installed: Installed) -> list[Mismatch]:
    """Return everything that does not go together, by the rules of `RULES`; without an artifact only what contradicts itself."""
    return [found for rule in RULES.values() for found in rule(artifact, installed)]


def require_compatible(artifact: Artifact, installed: Installed) -> list[str]:
    """Return warnings and notices as lines of text.

    Raises:
        TrtbuildError: something cannot be loaded; the message names both versions, the hint the container that fits.
    """
    found = compare(artifact, installed)
    errors = [each for each in found if each.severity == "error"]
    if errors:
        remedies = dict.fromkeys(each.remedy for each in errors)
        raise TrtbuildError("; ".join(each.message for each in errors), hint="; ".join(remedies))
    return [f"{each.message}; {each.remedy}" for each in found]


def same_version(one: str, other: str) -> bool:
    """Say whether two versions of TensorRT agree in every number that both write; "10.9" agrees with "10.9.0.34"."""
    pairs = zip(numbers(one), numbers(other), strict=False)
    return all(left == right for left, right in pairs)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a dotted version in front of any suffix: "10.9.0.post1" and "10.9.0+cu12" are (10, 9, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def containers_with(*, tensorrt_llm: str = "", tensorrt: str = "") -> list[Container]:
    """Return the containers of the table that carry what is given, newest first."""
    version = Version.parse(tensorrt_llm) if tensorrt_llm else None
    return [
        box
        for release in reversed(RELEASES)
        if (not tensorrt_llm or (version is not None and release.version.numbers[:3] == version.numbers[:3]))
        and (not tensorrt or (bool(release.tensorrt) and same_version(release.tensorrt, tensorrt)))
        for box in reversed(release.containers)
    ]


def _fitting(artifact: Artifact) -> str:
    """Return the end of a remedy: the image that fits, or that none is known."""
    boxes = containers_with(tensorrt_llm=artifact.tensorrt_llm, tensorrt=artifact.tensorrt)
    wanted = " and ".join(
        f"{name} {version}"
        for name, version in (("TensorRT-LLM", artifact.tensorrt_llm), ("TensorRT", artifact.tensorrt))
        if version
    )
    return (
        f"serve it with {boxes[0].image}, which carries {wanted}" if boxes else f"no container with {wanted} is known"
    )


def _generation(artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC03: an engine's config.json has the schema that the backend reads."""
    if artifact is None or artifact.generation is None:
        return
    backend = Version.parse(installed.tensorrt_llm) if installed.tensorrt_llm else None
    expected = GENERATIONS[-1] if backend is None else next(each for each in GENERATIONS if _covers(each, backend))
    if artifact.generation != expected:
        built = f"written by TensorRT-LLM {artifact.tensorrt_llm}" if artifact.tensorrt_llm else "of no stated version"
        what = f"TensorRT-LLM {installed.tensorrt_llm}" if backend else "every release that trtbuild knows"
        yield Mismatch(
            "generation", "error",
            f"{artifact.called}/config.json, {built}, has {artifact.generation.key}: the form of {artifact.generation}; {what} reads {expected.key}",
            f"{_REBUILD}, from the checkpoint",
        )  # fmt: skip


def _covers(generation: Generation, backend: Version) -> bool:
    since, until = (Version.parse(text) if text else None for text in (generation.since, generation.until))
    return (since is None or since <= backend) and (until is None or backend < until)


def _backend(artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC08: engine and backend are of one release; major, minor and patch are equal."""
    if artifact is None or artifact.kind != "engine":
        return
    if not artifact.tensorrt_llm:
        yield Mismatch(
            "backend", "warning", f"{artifact.called}/config.json does not say which TensorRT-LLM built the engine",
            "serve it with the container that built it",
        )  # fmt: skip
        return
    if not installed.tensorrt_llm:
        return
    built, runs = Version.parse(artifact.tensorrt_llm), Version.parse(installed.tensorrt_llm)
    if built is None or runs is None or built.numbers[:3] != runs.numbers[:3]:
        yield Mismatch(
            "backend", "error",
            f"{artifact.called} was built by TensorRT-LLM {artifact.tensorrt_llm}, {installed.called} has {installed.tensorrt_llm}",
            f"rebuild the engine with TensorRT-LLM {installed.tensorrt_llm}, or {_fitting(artifact)}",
        )  # fmt: skip
    elif built.numbers[3] != runs.numbers[3]:
        yield Mismatch(
            "backend", "warning",
            f"{artifact.called} was built by TensorRT-LLM {artifact.tensorrt_llm}, {installed.called} has {installed.tensorrt_llm}: candidates of a release differ",
            f"rebuild the engine with TensorRT-LLM {installed.tensorrt_llm} if it does not load",
        )  # fmt: skip


def _tensorrt(artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC01: a plan is loaded by the very TensorRT that built it, down to the last number."""
    if artifact is None or not artifact.tensorrt or not installed.tensorrt:
        return
    if not same_version(artifact.tensorrt, installed.tensorrt):
        yield Mismatch(
            "tensorrt", "error",
            f"{artifact.called} was built by TensorRT {artifact.tensorrt}, {installed.called} has {installed.tensorrt}; an engine needs the very same version",
            f"{_fitting(artifact)}, or {_REBUILD}; never `pip install tensorrt` into a container",
        )  # fmt: skip


def _architecture(artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC04: an engine runs on the kind of GPU that built it."""
    if artifact is None or artifact.sm is None or not installed.sms:
        return
    others = sorted(set(installed.sms) - {artifact.sm})
    if others:
        seen = ", ".join(f"SM{sm}" for sm in others)
        few = artifact.sm in installed.sms
        yield Mismatch(
            "architecture", "warning" if few else "error",
            f"{artifact.called} was built for SM{artifact.sm}, {installed.called} has {'also ' if few else ''}{seen}",
            f"choose the GPUs of SM{artifact.sm} with CUDA_VISIBLE_DEVICES" if few else f"build the engine on a GPU of {seen}",
        )  # fmt: skip


def _label(_artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC06: what a container's label promises is what is inside; if not, the inside counts."""
    release = release_of_tag(installed.tag) if installed.tag else None
    if release is None:
        return
    trtllm = not installed.tensorrt_llm or _same_candidate(release.version, Version.parse(installed.tensorrt_llm))
    tensorrt = same_version(release.tensorrt, installed.tensorrt)
    promised = (
        ("TensorRT-LLM", release.name, installed.tensorrt_llm, trtllm),
        ("TensorRT", release.tensorrt, installed.tensorrt, tensorrt),
    )
    for name, expected, found, agrees in promised:
        if not agrees:
            yield Mismatch(
                "label", "warning", f"the label {installed.tag} stands for {name} {expected}, inside is {found}",
                "what is inside counts: build and serve with the same image",
            )  # fmt: skip


def _same_candidate(one: Version, other: Version | None) -> bool:
    return other is not None and one.numbers[:4] == other.numbers[:4]


def _copies(_artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC06: there is one TensorRT; left-over copies are loaded by accident."""
    groups: list[list[Copy]] = []
    for copy in installed.copies:
        group = next((each for each in groups if same_version(each[0].version, copy.version)), None)
        groups.append([copy]) if group is None else group.append(copy)
    if len(groups) > 1:
        listed = "; ".join(f"{copy.name} {copy.version} at {copy.path}" for group in groups for copy in group)
        loaded = f", loaded is {installed.tensorrt}" if installed.tensorrt else ""
        yield Mismatch(
            "copies", "warning", f"{len(groups)} versions of TensorRT on {installed.called}{loaded}: {listed}",
            "remove those that do not belong to TensorRT-LLM; in a container start again from the image",
        )  # fmt: skip


def _transformers(artifact: Artifact | None, installed: Installed) -> Iterator[Mismatch]:
    """VC09: a model written by newer transformers than the installed ones may have keys those do not know."""
    if artifact is None or not artifact.transformers or not installed.transformers:
        return
    if numbers(artifact.transformers) > numbers(installed.transformers):
        yield Mismatch(
            "transformers", "notice",
            f"{artifact.called}/config.json was written by transformers {artifact.transformers}, {installed.called} has {installed.transformers}",
            "trtbuild reads the file itself and goes on; where transformers is used (tokenizer, calibration, the PyTorch backend) it may be too old",
        )  # fmt: skip


#: Rule -> function over both sides; in the order of reports.
RULES: dict[str, Callable[[Artifact | None, Installed], Iterator[Mismatch]]] = {
    "generation": _generation,
    "backend": _backend,
    "tensorrt": _tensorrt,
    "architecture": _architecture,
    "label": _label,
    "copies": _copies,
    "transformers": _transformers,
}
