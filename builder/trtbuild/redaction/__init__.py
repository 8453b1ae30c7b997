"""Keeping secrets and personal names out of what leaves this machine, and out of programs that have no use for them."""

from trtbuild.redaction.names import is_secret
from trtbuild.redaction.patterns import REDACTED, holds_secret
from trtbuild.redaction.redactor import Redactor

__all__ = ["REDACTED", "Redactor", "holds_secret", "is_secret"]
