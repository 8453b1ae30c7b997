"""Rules about chat templates: they are code of a model's publisher, and run wherever prompts are made (field report SE02)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.paths import tokenizer_folders
from trtbuild.repo.lint.reading import is_file, read_lenient
from trtbuild.repo.lint.repository import Repository
from trtbuild.repo.tokenizer import CHAT_TEMPLATE
from trtbuild.source import read_json

#: Largest chat template that is read.
_MOST_BYTES = 2**20
#: What a template does that only makes sense to reach Python behind it, or to take all of its time -> how it looks.
SUSPECT = {
    "reaches into Python's objects": re.compile(r"__\w+__|\|\s*attr\s*\(|\.(?:mro|gi_frame|f_globals)\b"),
    "changes the list of messages that it was given": re.compile(r"\bmessages\.(?:append|insert|extend|pop|clear|remove)\s*\("),
    "counts further than any prompt": re.compile(r"\brange\s*\([^)]*(?:\*\*|\d{7,})"),
}  # fmt: skip


def suspicious(repository: Repository) -> Iterator[Problem]:
    """Find chat templates that do what no prompt needs."""
    seen: set[Path] = set()
    for file, line, folder in tokenizer_folders(repository):
        if folder in seen:
            continue
        seen.add(folder)
        for name, text in _templates(folder):
            for what, pattern in SUSPECT.items():
                if match := pattern.search(text):
                    yield Problem(
                        file,
                        f"the chat template in {folder / name} {what}: '{match[0]}'",
                        "read it before it is served, and take it from the model's first publisher",
                        line,
                    )


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    if own := read_lenient(folder / CHAT_TEMPLATE, most_bytes=_MOST_BYTES):
        yield CHAT_TEMPLATE, own
    file = folder / "tokenizer_config.json"
    try:
        config: Any = read_json(file) if is_file(file) else {}
    except TrtbuildError:
        return  # another rule says that it cannot be read
    inline = config.get("chat_template")
    entries = inline if isinstance(inline, list) else [{"template": inline}]
    for entry in entries:
        text = entry.get("template") if isinstance(entry, dict) else None
        if isinstance(text, str):
            yield "tokenizer_config.json", text


RULES: dict[str, Rule] = {
    "chat-template": Rule(
        "warning", suspicious, "chat templates that do what no prompt needs: Python's internals, changed messages, endless loops",
        "A template is code. Where it runs in a plain Jinja environment it can reach Python itself (CVE-2024-34359). trtbuild's preprocessing and transformers run it in a sandbox; "
        "whoever else reads the folder may not (field report SE02).",
        "Read it, and take it from the model's first publisher.",
    ),
}  # fmt: skip
