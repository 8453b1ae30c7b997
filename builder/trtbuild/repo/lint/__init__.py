"""Checks a Triton model repository without a server. A rule is a function and a row in the table below it."""

from trtbuild.repo.lint.findings import Finding
from trtbuild.repo.lint.run import Report, check, lint

__all__ = ["Finding", "Report", "check", "lint"]
