"""Rules about launch files that give strangers more than a server needs (field report SE05)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.launch_files import LaunchFile
from trtbuild.repo.lint.repository import Repository

_CONTROL = re.compile(r"--model-control-mode[\s=\"',\]\[-]+(explicit|poll)\b")
_RESTRICTED = re.compile(r"--(?:http-restricted-api|grpc-restricted-protocol)[\s=\"',]+\S*model-repository")
#: What gives a container the machine -> how it looks on a command line, in compose files and in Kubernetes.
_POWERS = {
    "privileged": re.compile(r"--privileged\b(?!\s*=\s*false)|^\s*privileged:\s*[\"']?true\b", re.MULTILINE),
    "with the capability SYS_ADMIN": re.compile(r"--cap-add[\s=\"']+(?:ALL|(?:CAP_)?SYS_ADMIN)\b|^\s*(?:cap_add|add):\s*(?:\[[^\]]*|\s*-\s*)[\"']?(?:ALL|(?:CAP_)?SYS_ADMIN)\b", re.MULTILINE),
    "with Docker's socket": re.compile(r"/docker\.sock\b"),
    "among the processes of the machine": re.compile(r"--pid[\s=]+host\b|^\s*(?:pid:\s*[\"']?host|hostPID:\s*[\"']?true)\b", re.MULTILINE),
}  # fmt: skip
_NUMBERS = r"(?:0\.0\.0\.0:|\[::\]:)?(?:\d+|\$\{[^}\n]*\}|\$\w+)(?:-\d+)?:\d+"
_PUBLISHED = re.compile(rf"(?:\s-p|--publish)[\s=]*[\"']?({_NUMBERS})")
_LISTED = re.compile(rf"^\s*-\s*[\"']?({_NUMBERS})(?:-\d+)?(?:/tcp)?[\"']?\s*$", re.MULTILINE)
_PORTS = re.compile(r"(?m)^\s*ports:")
_HOST_NETWORK = re.compile(r"--net(?:work)?[\s=]+[\"']?host\b|^\s*(?:network_mode:\s*[\"']?host|hostNetwork:\s*[\"']?true)\b", re.MULTILINE)  # fmt: skip
_ADDRESS = re.compile(r"--(?:http|grpc)-address\b")
_REPOSITORY = re.compile(r"--model-(?:repository|store)[\s=\"',\[\]-]+(/[^\s\"',\]]*)")
_VOLUME = re.compile(r"(?:(?:\s-v|--volume)[\s=]*|^\s*-\s+)[\"']?([^\s:\"',]+):(/[^\s:\"',]*)(?::([\w,]+))?[\"']?(?=\s|$)", re.MULTILINE)  # fmt: skip
_MOUNT = re.compile(r"--mount[\s=]+[\"']?(type=bind\S*)")


def model_control(repository: Repository) -> Iterator[Problem]:
    """Find launch files that let whoever reaches the port load models."""
    for file in repository.launch_files:
        match = next((each for each in _CONTROL.finditer(file.text) if _opens_port(file.text, each)), None)
        if match is not None and not _RESTRICTED.search(file.text):
            yield Problem(
                file.name,
                f"the server is started with --model-control-mode={match[1]}, and nothing restricts who may load models",
                "use --model-control-mode=none, or add --http-restricted-api=model-repository:KEY=VALUE and --grpc-restricted-protocol likewise",
                file.line(match.start()),
                # Of several ranks all but the first are started like this, and open no port (Triton specification 4.2).
                severity="warning" if "mpirun" in file.text else None,
            )


def _opens_port(text: str, match: re.Match[str]) -> bool:
    """Say whether the server that an option is given to, with those around it, listens to anybody."""
    begin, end = text.rfind("tritonserver", 0, match.start()), text.find("tritonserver", match.end())
    options = text[max(begin, 0) : end if end >= 0 else len(text)]
    return not all(re.search(rf"--allow-{kind}[\s=\"',\]\[-]+(?:false|0)\b", options) for kind in ("http", "grpc"))


def privileged(repository: Repository) -> Iterator[Problem]:
    """Find launch files that give a container the whole machine."""
    for file in repository.launch_files:
        for what, pattern in _POWERS.items():
            if match := pattern.search(file.text):
                yield Problem(
                    file.name,
                    f"the container is started {what}: who gets into the server has the machine",
                    "remove it; --gpus and --shm-size are enough",
                    file.line(match.end()),
                )


def open_port(repository: Repository) -> Iterator[Problem]:
    """Find launch files that open the server's ports to the network."""
    for file in repository.launch_files:
        if not file.starts_server:
            continue
        match = _published(file.text)
        if match is not None:
            yield Problem(
                file.name,
                f"port {match[1]} is open to everybody who reaches this machine",
                f"bind it to loopback, 127.0.0.1:{match[1].removeprefix('0.0.0.0:').removeprefix('[::]:')}, and put a gateway that asks for a token in front",
                file.line(match.start(1)),
            )  # fmt: skip
        elif (host := _HOST_NETWORK.search(file.text)) and not _ADDRESS.search(file.text):
            yield Problem(
                file.name,
                "the container has the machine's network, and the server listens on every address",
                "add --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1, or publish ports on loopback instead",
                file.line(host.end()),
            )


def _published(text: str) -> re.Match[str] | None:
    """Return the first port that is published on every address: an option, or an entry of `ports:`."""
    return _PUBLISHED.search(text) or (_LISTED.search(text) if _PORTS.search(text) else None)


def writable_repository(repository: Repository) -> Iterator[Problem]:
    """Find launch files that let a container write its own repository."""
    for file in repository.launch_files:
        served = _REPOSITORY.search(file.text)
        if served is None:
            continue
        for target, is_writable, offset in _mounts(file):
            if is_writable and PurePosixPath(served[1]).is_relative_to(target):
                yield Problem(
                    file.name,
                    f"{target}, which holds the repository, can be written inside the container",
                    "mount it read-only: `:ro`, `readonly`, or `read_only: true`",
                    file.line(offset),
                )


def _mounts(file: LaunchFile) -> Iterator[tuple[str, bool, int]]:
    for match in _VOLUME.finditer(file.text):
        yield match[2], "ro" not in (match[3] or "").split(","), match.start(2)
    for match in _MOUNT.finditer(file.text):
        options = dict(part.partition("=")[::2] for part in match[1].strip("\"'").split(","))
        target = next((options[key] for key in ("target", "dst", "destination") if key in options), "")
        if target:
            is_read_only = any(options.get(key, "false") in ("", "true", "1") for key in ("readonly", "ro"))
            yield target, not is_read_only, match.start(1)


RULES: dict[str, Rule] = {
    "model-control": Rule(
        "error", model_control, "launch files beside the repository that let whoever reaches the port load models",
        "`--model-control-mode=explicit` or `poll` together with a repository that can be written means code execution for strangers (field report SE05). Looked at are scripts, "
        "compose files, unit files and Dockerfiles in the repository's folder and in the one above.",
        "Use `none`, which is the default, mount the repository read-only, and bind ports to 127.0.0.1.",
    ),
    "privileged": Rule(
        "warning", privileged, "launch files beside the repository that give a container the machine: privileged, SYS_ADMIN, Docker's socket, the machine's processes",
        "A server needs GPUs and shared memory, not the machine (field report SE05).", "Remove it; `--gpus` and `--shm-size` are enough.",
    ),
    "open-port": Rule(
        "warning", open_port, "launch files beside the repository that open the server's ports to the network",
        "Triton asks nobody who they are: whoever reaches a port sends requests, reads the statistics and, unless model control is `none`, loads models. `-p 8000:8000` and "
        "`--network host` open it on every address of the machine, past most firewalls (field report SE05).",
        "Publish on loopback, `-p 127.0.0.1:8000:8000`, with a gateway in front; `--ignore open-port` where the network is closed.",
    ),
    "writable-repository": Rule(
        "warning", writable_repository, "launch files beside the repository that mount it so that the container can write it",
        "A model's code runs in the server; what can write the repository can change what runs next (field report SE05).",
        "Mount it read-only.",
    ),
}  # fmt: skip
