"""Findings as SARIF 2.1.0, the format that code scanning services read."""

from __future__ import annotations

import os
from typing import Any

from trtbuild import __version__
from trtbuild.repo.lint.findings import Finding
from trtbuild.repo.lint.rules import PAGE, RULES, section_of
from trtbuild.repo.lint.run import Report

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "REPOSITORY"


def as_sarif(report: Report) -> dict[str, Any]:
    """Return a report as a SARIF log of one run; files are relative to the repository."""
    root = report.path.absolute().as_uri().rstrip("/") + "/"
    notes = [{"level": "note", "message": {"text": note}} for note in report.notes]
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {"driver": {"name": "trtbuild lint", "version": __version__, "rules": _rules()}},
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
                "originalUriBaseIds": {_ROOT: {"uri": root}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding) for finding in report.findings],
            }
        ],
    }


def _rules() -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "shortDescription": {"text": rule.finds},
            "fullDescription": {"text": rule.why},
            "help": {"text": f"{rule.mend} See {PAGE}, {section_of(name)}."},
            "defaultConfiguration": {"level": rule.severity},
        }
        for name, rule in RULES.items()
    ]


def _result(finding: Finding) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.file), "uriBaseId": _ROOT}}
    if finding.line:
        place["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.severity,
        "message": {"text": f"{finding.message}; {finding.fix}"},
        "locations": [{"physicalLocation": place}],
    }


def _uri(file: str) -> str:
    from urllib.parse import quote

    return quote(os.fsencode(file))
