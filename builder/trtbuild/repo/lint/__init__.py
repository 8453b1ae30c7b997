"""Checks a Triton model repository without a server. A rule is a function; adding one is that and a line in `rules.py`."""

from trtbuild.repo.lint.engine import lint
from trtbuild.repo.lint.findings import Finding

__all__ = ["Finding", "lint"]
