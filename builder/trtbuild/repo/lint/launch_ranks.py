"""Rules about launch files and the engine: as many ranks as it has, and an image that can run it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.launch_files import LaunchFile
from trtbuild.repo.lint.repository import Repository
from trtbuild.trtllm.versions import RELEASES

_WORLD = re.compile(r"--world[_-]size[\s=\"',]+(\d+)")
_MPI = re.compile(r"\b(?:mpirun|mpiexec)\b([^\n]*\btritonserver\b[^\n]*)")
_COUNT = re.compile(r"\s-(?:np?|c)\s+(\d+)\b")
#: What starts workers by itself: then the server is one rank (Triton specification 4.3).
_ORCHESTRATOR = re.compile(r"TRTLLM_ORCHESTRATOR\b|--multi-model\b|--no-mpi\b|--disable-mpi\b")
_IMAGE = re.compile(r"\btritonserver:(\d\d\.\d\d)-([\w.-]+)")
#: A file that installs TensorRT-LLM into an image by itself.
_INSTALLS = re.compile(r"pip3?\s+install[^\n]*tensorrt")


def ranks(repository: Repository) -> Iterator[Problem]:
    """Find launch files that start another number of ranks than the engine has."""
    engines = [each.artifact for each in repository.facts.engines.values() if each.artifact is not None]
    worlds = {artifact.world_size for artifact in engines if artifact.world_size is not None}
    if len(worlds) != 1:
        return
    [world] = worlds
    for file in (each for each in repository.launch_files if each.names_repository):
        if _ORCHESTRATOR.search(file.text):
            continue
        for started, offset in _started(file):
            if started != world:
                yield Problem(
                    file.name,
                    f"it starts {started} rank(s), and the engine has {world}",
                    f"start {world}: tp_size times pp_size of the engine",
                    file.line(offset),
                )


def image(repository: Repository) -> Iterator[Problem]:
    """Find launch files with an image that cannot run the engine, or has no TensorRT-LLM."""
    llmapi = any(isinstance(data, dict) and "triton_config" in data for _, _, data, _ in repository.settings)
    if not (repository.engine_models() or llmapi):
        return
    carried = {container.tag: release for release in RELEASES for container in release.containers}
    release = repository.facts.release
    for file in (each for each in repository.launch_files if not _INSTALLS.search(each.text)):
        for match in _IMAGE.finditer(file.text):
            tag, kind = match.groups()
            if "sdk" in kind:
                continue
            if "trtllm" not in kind:
                yield Problem(
                    file.name,
                    f"the image tritonserver:{tag}-{kind} has no TensorRT-LLM",
                    f"use tritonserver:{tag}-trtllm-python-py3",
                    file.line(match.start()),
                )
            elif release is not None and tag in carried and carried[tag].version != release.version:
                right = release.container.image if release.container is not None else f"an image with {release}"
                yield Problem(
                    file.name,
                    f"the image of {tag} has TensorRT-LLM {carried[tag]}, and {repository.facts.origin} says {release}",
                    f"use {right}",
                    file.line(match.start()),
                    severity="warning" if "inferred" in (carried[tag].evidence, release.evidence) else None,
                )


def _started(file: LaunchFile) -> Iterator[tuple[int, int]]:
    """Yield the number of ranks that a file starts, and the offset at which it says so."""
    if match := _WORLD.search(file.text):
        yield int(match[1]), match.start()
    for match in _MPI.finditer(re.sub(r"\\\r?\n", lambda found: " " * len(found[0]), file.text)):
        counts = [int(each) for each in _COUNT.findall(match[1])]
        if counts:
            yield sum(counts), match.start()


RULES: dict[str, Rule] = {
    "launch-ranks": Rule(
        "error", ranks, "launch files beside the repository that start another number of ranks than the engine has",
        "`mpiSize == tp * pp`: the server exits, or hangs (Triton specification 4.3, 8; field report LM01). Looked at are files that name the repository; in orchestrator mode the "
        "server is one rank.",
        "Start as many ranks as the engine has: `launch_triton_server.py --world_size N`, `mpirun -n N`.",
    ),
    "launch-image": Rule(
        "error", image, "launch files beside the repository whose image has no TensorRT-LLM, or another release than the engine's",
        "`unable to find backend library for backend 'tensorrtllm'` in plain images; an engine runs with the release that built it only (Triton specification 3.1, 8; field report VC01). "
        "A warning where what a container holds was only concluded.",
        "Use the image that the message names.",
    ),
}  # fmt: skip
