"""Rules about what makes a server run code of strangers: in the repository, and in launch files beside it (field reports SE03, SE05)."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.llmapi import settings
from trtbuild.repo.lint.paths import tokenizer_folders
from trtbuild.repo.lint.repository import Repository
from trtbuild.source import read_json

#: Launch files are looked for in the repository's folder and in the one above; more files than this nobody put there by hand.
_MOST_FILES, _MOST_BYTES = 500, 256 * 1024
_LAUNCH = re.compile(
    r"(?i).*\.(?:sh|ya?ml|service|slurm|sbatch)|(?:docker|container)file.*|.*\.dockerfile|makefile|procfile"
)
_REMOTE_PY = re.compile(r"^(?!\s*#).*\btrust_remote_code\s*[=:]\s*(?:True\b|1\b)", re.MULTILINE)
_CONTROL = re.compile(r"--model-control-mode[\s=\"',\]\[-]+(explicit|poll)\b")
_RESTRICTED = re.compile(r"--(?:http-restricted-api|grpc-restricted-protocol)[\s=\"',]+\S*model-repository")
_PRIVILEGED = re.compile(r"--privileged\b(?!\s*=\s*false)|^\s*privileged:\s*[\"']?true\b", re.MULTILINE)
_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")


def remote_code(repository: Repository) -> Iterator[Problem]:
    """Find models that run code which comes with a tokenizer or a checkpoint."""
    for model in repository.models.values():
        for name in (each for each in model.files if each.endswith(".py")):
            text = _read(repository.path / name)
            if "trust_remote_code" in text and (match := _REMOTE_PY.search(text)):
                yield Problem(
                    name,
                    "it loads with trust_remote_code=True: Python files beside the tokenizer run inside the server",
                    "set it to False, or keep a reviewed copy of the model's folder that nobody else can write",
                    text.count("\n", 0, match.end()) + 1,
                )
    for _, name, data, _ in settings(repository):
        if isinstance(data, dict) and data.get("trust_remote_code"):
            yield Problem(name, "trust_remote_code is on: Python files of the model run inside the server", "remove it")
    seen: set[Path] = set()
    for file, line, folder in tokenizer_folders(repository):
        if folder in seen:
            continue
        seen.add(folder)
        for name in ("tokenizer_config.json", "config.json"):
            if (folder / name).is_file() and (code := _auto_map(folder / name)):
                yield Problem(
                    file,
                    f"{folder / name} has auto_map: {code}: it needs code of its author",
                    "save the tokenizer without it, as tokenizer.json",
                    line,
                    severity="error" if name == "tokenizer_config.json" else None,
                )


def model_control(repository: Repository) -> Iterator[Problem]:
    """Find launch files that let whoever reaches the port load models."""
    for name, text in _launch_files(repository):
        match = _CONTROL.search(text)
        if match is not None and not _RESTRICTED.search(text):
            yield Problem(
                name,
                f"the server is started with --model-control-mode={match[1]}, and nothing restricts who may load models",
                "use --model-control-mode=none, or add --http-restricted-api=model-repository:KEY=VALUE and --grpc-restricted-protocol likewise",
                text.count("\n", 0, match.start()) + 1,
            )


def privileged(repository: Repository) -> Iterator[Problem]:
    """Find launch files that give a container the whole machine."""
    for name, text in _launch_files(repository):
        if match := _PRIVILEGED.search(text):
            yield Problem(
                name,
                "the container is started privileged: who gets into the server has the machine",
                "remove it; --gpus and --shm-size are enough",
                text.count("\n", 0, match.end()) + 1,
            )


def _launch_files(repository: Repository) -> Iterator[tuple[str, str]]:
    """Yield the name, relative to the repository, and the text of launch files; comments are blanked out."""
    for folder in (repository.path, repository.path.absolute().parent):
        try:
            with os.scandir(folder) as entries:
                names = [
                    entry.name
                    for entry in itertools.islice(entries, _MOST_FILES)
                    if _LAUNCH.fullmatch(entry.name) and entry.is_file()
                ]
        except OSError:
            continue
        for name in sorted(names):
            file = folder / name
            if file.stat().st_size <= _MOST_BYTES:
                shown = name if folder == repository.path else f"../{name}"
                yield shown, _COMMENT.sub(lambda match: " " * len(match[0]), _read(file))


def _auto_map(file: Path) -> str:
    try:
        return str(read_json(file).get("auto_map") or "")
    except TrtbuildError:
        return ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


RULES: dict[str, Rule] = {
    "remote-code": Rule(
        "warning", remote_code, "models that run code which comes with a tokenizer or a checkpoint",
        "Whoever can change the model's folder, or the name on the hub, runs code inside the server. NVIDIA's preprocessing and postprocessing switch it on for every model "
        "(field reports SE03, CR11). An error where the tokenizer has such code.",
        "Load with trust_remote_code=False; save the tokenizer as tokenizer.json.",
    ),
    "model-control": Rule(
        "error", model_control, "launch files beside the repository that let whoever reaches the port load models",
        "`--model-control-mode=explicit` or `poll` together with a repository that can be written means code execution for strangers (field report SE05). Looked at are scripts, "
        "compose files, unit files and Dockerfiles in the repository's folder and in the one above.",
        "Use `none`, which is the default, mount the repository read-only, and bind ports to 127.0.0.1.",
    ),
    "privileged": Rule(
        "warning", privileged, "launch files beside the repository that start a privileged container", "A server needs GPUs and shared memory, not the machine (field report SE05).",
        "Remove it; `--gpus` and `--shm-size` are enough.",
    ),
}  # fmt: skip
