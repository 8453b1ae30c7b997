"""Writes a Triton model repository from the templates and a RepoContext.

Rules of the templates: `*.j2` is rendered and loses the suffix, everything else is copied byte for byte, and what begins
with `_` is not output. A file `_shared` in a version folder lists modules of the templates' `_shared/` to copy beside it.
Knows files and Jinja; knows no model and no tensor.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import text_encoding

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.names import DRAFT
from trtbuild.output import check_output, staged_folder
from trtbuild.repo.context import CORE, STANDALONE, RepoContext
from trtbuild.repo.lint import check
from trtbuild.repo.lint.rules import BESIDE, RULES
from trtbuild.repo.locate import templates_dir
from trtbuild.repo.template_environment import TemplateEnvironment

logger = logging.getLogger(__name__)

COMMON = "common"
SHARED = "_shared"
MACROS = "_macros"
KIND = "repository"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A repository that was written.

    Attributes:
        path: its folder.
        variant: the folder of the templates its core model came from.
        files: every file but the manifest, relative to `path`, with its SHA-256.
    """

    path: Path
    variant: str
    files: dict[str, str]

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return sorted({name.partition("/")[0] for name in self.files})


def render(context: RepoContext, output: Path, *, force: bool = False, templates: Path | None = None) -> Rendered:
    """Write a model repository; it appears whole and checked, or not at all.

    Args:
        context: the values.
        output: the repository to write.
        force: replace an existing repository, if it is one that this function wrote; where its manifest is damaged, if it has no file of a
            name that is not rendered now.
        templates: the folder of templates; by default the one that comes with trtbuild.

    Raises:
        TrtbuildError: a template uses a name the context does not have, the output is in the way, or the result
            fails its check.
    """
    templates = templates or templates_dir()
    keep = (templates, Path(context.checkpoint_dir), Path(context.tokenizer_dir))
    check_output(output, force=True, keep=keep)
    files: dict[str, bytes] = {}
    try:
        known = _rendered_before(output)  # before --force is suggested
    except manifest.DamagedManifest as error:
        if not force:
            raise
        files = dict(_rendered_files(context, templates))
        _refuse_foreign(output, files)
        logger.warning("note: %s; whether files were edited by hand is not known", error.message)
        known = {}
    check_output(output, force=force, keep=keep)
    _warn_of_edits(output, known)
    files = files or dict(_rendered_files(context, templates))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    with staged_folder(output) as stage:
        for name, content in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_bytes(content)
        manifest.write(stage, {**manifest.header(KIND), "context": context.as_dict(), "files": digests})
        _check(stage)
    logger.info("rendered %d files, variant %s: %s", len(files), context.variant, output)
    return Rendered(output, context.variant, digests)


def _rendered_files(context: RepoContext, templates: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path in the repository and the content of every file."""
    environment = _environment(templates.resolve())
    common = [] if context.variant in STANDALONE else [templates / COMMON]
    roots = [*common, templates / context.variant]
    sources = [(path, path.relative_to(root).as_posix()) for root in roots for path in _outputs(root)]
    if not (templates / context.variant).is_dir():
        raise TrtbuildError(f"{templates} has no variant '{context.variant}'", hint="reinstall trtbuild")
    values = context.values()
    needed = [root.name for root in roots] + [MACROS]
    environment.check(values, (path for name in needed for path in sorted((templates / name).rglob("*.j2"))))
    printed = [(path, name, values) for path, name in sources]
    if context.draft is not None:
        its = {**values, **context.draft.of_core()}
        core = f"{CORE}/"
        printed += [(path, f"{DRAFT}/{name[len(core) :]}", its) for path, name in sources if name.startswith(core)]
    for path, name, values in printed:
        if path.name == SHARED:
            for module in path.read_text(encoding="utf-8").split():
                yield f"{name.rpartition('/')[0]}/{module}", (templates / SHARED / module).read_bytes()
        elif path.suffix == ".j2":
            template = environment.get_template(path.relative_to(templates).as_posix())
            yield name.removesuffix(".j2"), _tidy(template.render(values)).encode("utf-8")
        else:
            yield name, path.read_bytes()


def _outputs(root: Path) -> Iterator[Path]:
    """Yield the files below a folder of templates that lead to output, in a fixed order."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith("_") for part in parts[:-1]) or "__pycache__" in parts
        if path.is_file() and not hidden and (path.name == SHARED or not path.name.startswith("_")):
            yield path


@lru_cache(maxsize=8)
def _environment(templates: Path) -> TemplateEnvironment:
    return TemplateEnvironment(templates, filters={"pbstr": pbstr})


def pbstr(value: Any) -> str:
    """Return a value as a quoted string of protobuf text, whatever is in it; true and false in lower case."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text_encoding.CEscape(text.encode("utf-8"), as_utf8=True)}"'


def _tidy(text: str) -> str:
    """Return the text without the empty lines that blocks and left-out parameters leave behind."""
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip()) + "\n"


def _check(repository: Path) -> None:
    findings = check(repository, rules=RULES.keys() - BESIDE).findings
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise TrtbuildError(
            "the rendered repository would not serve: "
            + "; ".join(f"{e.file}: {e.message} [{e.rule}]" for e in errors),
            hint=errors[0].fix,
        )


def _rendered_before(output: Path) -> dict[str, str]:
    """Return name -> digest of the files that were rendered into a folder; empty when there is none.

    Raises:
        TrtbuildError: replacing the folder would delete anything that was not rendered.
    """
    if not output.is_dir() or not any(output.iterdir()):
        return {}
    known: dict[str, str] = manifest.read(output, kind=KIND)["files"]
    _refuse_foreign(output, known)
    return known


def _refuse_foreign(output: Path, known: Container[str]) -> None:
    """Raise TrtbuildError if a folder holds files of other names than those that are rendered."""
    foreign = [
        name
        for path in sorted(output.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        if (name := path.relative_to(output).as_posix()) not in known and name != manifest.NAME
    ]
    if foreign:
        raise TrtbuildError(
            f"{output} holds files that were not rendered: {', '.join(foreign)}", hint="move them away first"
        )


def _warn_of_edits(output: Path, known: Mapping[str, str]) -> None:
    for name, digest in known.items():
        file = output / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            logger.warning("note: %s was edited by hand since it was rendered; the edit is lost", file)
