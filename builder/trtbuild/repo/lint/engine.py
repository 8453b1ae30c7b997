"""Runs every rule over a repository."""

from __future__ import annotations

from pathlib import Path

from trtbuild.repo.lint.findings import Finding
from trtbuild.repo.lint.repository import read_repository
from trtbuild.repo.lint.rules import RULES


def lint(path: Path) -> list[Finding]:
    """Return what is wrong with a model repository, errors first; an empty list when nothing is.

    Raises:
        TrtbuildError: the folder is no model repository.
    """
    repository = read_repository(path)
    findings = [
        Finding(rule, severity, problem.file, problem.message, problem.fix)
        for rule, (severity, check) in RULES.items()
        for problem in check(repository)
    ]
    return sorted(findings, key=lambda finding: finding.severity != "error")
