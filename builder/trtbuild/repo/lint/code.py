"""Rules about the Python files of a model: whether they are all there, and whether Python can load them. Nothing of them is run."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator

from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.reading import Unreadable, exists, is_folder, read_bytes
from trtbuild.repo.lint.repository import Model, Repository

#: Largest Python file that is read.
MOST_BYTES = 4 * 2**20
_SAID_ELSEWHERE = frozenset(["model.py", ".keep"])
_CLASS = re.compile(
    rb"(?m)^\s*(?:class\s+TritonPythonModel\b|TritonPythonModel\s*=|from\s+\S+\s+import\s+[^\n]*(?:TritonPythonModel|\*|\())"
)


def rendered_file(repository: Repository) -> Iterator[Problem]:
    """Find files that trtbuild wrote and that are gone; of configurations, versions and model.py other rules say it."""
    for name in repository.facts.rendered:
        folder, _, file = name.rpartition("/")
        if file in _SAID_ELSEWHERE or not is_folder(repository.path / folder) or "/" not in folder:
            continue
        if not exists(repository.path / name):
            yield Problem(
                name, "trtbuild rendered this file, and it is gone", "render the repository again, or copy all of it"
            )


def python_code(repository: Repository) -> Iterator[Problem]:
    """Find Python models whose code cannot be loaded."""
    for model in repository.parsed():
        if model.config.backend != "python":
            continue
        for name in (each for each in model.files if each.endswith(".py")):
            yield from _problems(repository, model, name)


def _problems(repository: Repository, model: Model, name: str) -> Iterator[Problem]:
    try:
        code = read_bytes(repository.path / name, most_bytes=MOST_BYTES)
    except (FileNotFoundError, Unreadable) as error:
        yield Problem(name, f"it cannot be read: {error}", "check the file")
        return
    if hashlib.sha256(code).hexdigest() == repository.facts.rendered.get(name):
        return  # ours, as it was rendered
    wanted = model.config.default_model_filename or "model.py"
    if name.split("/")[2:] == [wanted] and not _CLASS.search(code):
        yield Problem(
            name, "it defines no class TritonPythonModel", "put the model's code there; an empty file is a failed copy"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        yield Problem(
            name, f"Python cannot read it: {error.msg}", "correct the line, or copy the file again", error.lineno or 0
        )
    except (ValueError, RecursionError, MemoryError) as error:
        yield Problem(name, f"Python cannot read it: {error}", "copy the file again")


RULES: dict[str, Rule] = {
    "rendered-file": Rule(
        "error", rendered_file, "files that trtbuild rendered and that are gone",
        "The Python models import the files beside them, and fail with ModuleNotFoundError when they load.",
        "Render the repository again, or copy all of it.",
    ),
    "python-code": Rule(
        "error", python_code, "code of Python models that cannot be loaded",
        "`Internal: SyntaxError` and `has no attribute 'TritonPythonModel'`, and the server exits (seen with Triton 2.51). Files are compiled by the Python that runs this command, "
        "never run; those that are as trtbuild rendered them are not looked at.",
        "Correct the file, or copy it again.",
    ),
}  # fmt: skip
