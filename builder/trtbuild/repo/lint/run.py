"""Runs the rules over a repository."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.repo.lint.facts import gather
from trtbuild.repo.lint.findings import Finding
from trtbuild.repo.lint.repository import Repository, read_repository
from trtbuild.repo.lint.rules import RULES
from trtbuild.trtllm.versions import Release


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        path: of the repository.
        findings: errors first.
        release: that the rules about releases went by, None when nothing says which.
        origin: who says so.
        notes: what was not looked at, and why.
        rules: how many were applied.
        models: how many there are.
        files: how many of theirs were looked at, configurations and what lies in version folders.
        variant: of the templates, as our manifest says; of other people's what runs the language model, empty when none does.
    """

    path: Path
    findings: tuple[Finding, ...]
    release: Release | None
    origin: str
    notes: tuple[str, ...]
    rules: int
    models: int
    files: int
    variant: str

    @property
    def errors(self) -> int:
        """How many errors there are."""
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        """How many warnings there are."""
        return len(self.findings) - self.errors


def check(
    path: Path,
    *,
    release: Release | None = None,
    path_map: tuple[str, str] | None = None,
    gpus: int | None = None,
    beside: Sequence[Path] = (),
    rules: Container[str] | None = None,
    load_tokenizers: bool = False,
) -> Report:
    """Check a model repository.

    Args:
        path: of the repository.
        release: of TensorRT-LLM that will serve it; by default that of its engine, or what our manifest says.
        path_map: (folder here, the same folder as the server sees it), for a server in a container.
        gpus: how many the server sees.
        beside: other repositories that are served on the same GPUs.
        rules: ids of the rules to apply; all by default.
        load_tokenizers: also load tokenizer.json with the library tokenizers, if it is installed.

    Raises:
        TrtbuildError: the folder, or one beside it, is no model repository.
    """
    repository = read_repository(path)
    others = {str(other): read_repository(other).parsed() for other in beside}
    facts = gather(
        path, repository.parsed(), release=release, path_map=path_map, gpus=gpus, beside=others, load_tokenizers=load_tokenizers
    )  # fmt: skip
    repository = replace(repository, facts=facts)
    chosen = {name: rule for name, rule in RULES.items() if rules is None or name in rules}
    skipped = sum(rule.needs_release for rule in chosen.values()) if facts.release is None else 0
    findings = [
        Finding(name, problem.severity or rule.severity, problem.file, problem.message, problem.fix, problem.line, problem.edit)
        for name, rule in chosen.items()
        if facts.release is not None or not rule.needs_release
        for problem in rule.check(repository)
    ]  # fmt: skip
    notes = list(facts.notes)
    if skipped and (repository.engine_models() or facts.notes):
        notes.append(
            f"nothing says which TensorRT-LLM will serve this: {skipped} rules about releases were skipped; name one with --tensorrt-llm"
        )
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    models = [model for model in repository.models.values() if not model.is_stray]
    return Report(
        path,
        tuple(ordered),
        facts.release,
        facts.origin,
        tuple(notes),
        rules=len(chosen) - skipped,
        models=len(models),
        files=sum((model.text is not None) + len(model.files) for model in models),
        variant=facts.variant or _variant(repository),
    )


def _variant(repository: Repository) -> str:
    """Return the name that the templates of the same kind have: what runs the language model decides."""
    if repository.engine_models():
        return "engine"
    is_llmapi = any(isinstance(data, dict) and "triton_config" in data for _, _, data, _ in repository.settings)
    return "llmapi" if is_llmapi else ""


def lint(path: Path) -> list[Finding]:
    """Return what is wrong with a model repository, errors first; an empty list when nothing is.

    Raises:
        TrtbuildError: the folder is no model repository.
    """
    return list(check(path).findings)
