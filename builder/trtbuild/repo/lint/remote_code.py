"""Rules about code of strangers that a server runs (field report SE03)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.code import MOST_BYTES
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.llmapi import settings
from trtbuild.repo.lint.paths import tokenizer_folders
from trtbuild.repo.lint.reading import is_file, read_lenient
from trtbuild.repo.lint.repository import Repository
from trtbuild.source import read_json

_REMOTE_PY = re.compile(r"^(?!\s*#).*\btrust_remote_code[\"']?\s*[=:]\s*(?:True\b|1\b)", re.MULTILINE)


def remote_code(repository: Repository) -> Iterator[Problem]:
    """Find models that run code which comes with a tokenizer or a checkpoint."""
    for model in repository.models.values():
        for name in (each for each in model.files if each.endswith(".py")):
            text = read_lenient(repository.path / name, most_bytes=MOST_BYTES)
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
            if is_file(folder / name) and (code := _auto_map(folder / name)):
                yield Problem(
                    file,
                    f"{folder / name} has auto_map: {code}: it needs code of its author",
                    "save the tokenizer without it, as tokenizer.json",
                    line,
                    severity="error" if name == "tokenizer_config.json" else None,
                )


def _auto_map(file: Path) -> str:
    try:
        return str(read_json(file).get("auto_map") or "")
    except TrtbuildError:
        return ""


RULES: dict[str, Rule] = {
    "remote-code": Rule(
        "warning", remote_code, "models that run code which comes with a tokenizer or a checkpoint",
        "Whoever can change the model's folder, or the name on the hub, runs code inside the server. NVIDIA's preprocessing and postprocessing switch it on for every model "
        "(field reports SE03, CR11). An error where the tokenizer has such code.",
        "Load with trust_remote_code=False; save the tokenizer as tokenizer.json.",
    ),
}  # fmt: skip
