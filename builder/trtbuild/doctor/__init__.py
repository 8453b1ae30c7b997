"""Checks of this machine: what the demo needs, what an artifact needs, and an archive for a bug report.

finding      one line of the report
host         what `trtbuild demo` needs
nvidia, software, system     facts, each behind a seam that tests can take
survey       the facts together
overview     what is said of them without an artifact: nothing of it fails
damage       what is wrong with a folder on any machine
subject      what a folder needs that a machine can lack
suitability  whether this machine has it
redact, bundle               the archive, without secrets
"""

from __future__ import annotations

from pathlib import Path

from trtbuild.doctor.finding import Finding, Section, Status
from trtbuild.doctor.survey import Survey, survey
from trtbuild.errors import TrtbuildError

__all__ = ["Finding", "Section", "Status", "Survey", "examine", "examine_for", "survey"]


def examine(facts: Survey | None = None) -> list[Finding]:
    """Return what the demo needs, then what is here; only the former can fail."""
    from trtbuild.doctor import host
    from trtbuild.doctor.overview import overview

    facts = facts or survey()
    return [*(finding for check in host.CHECKS for finding in check()), *overview(facts)]


def examine_for(path: Path, facts: Survey | None = None, *, even_if_broken: bool = False) -> list[Finding]:
    """Return whether this machine can run what is in a folder, then what is here.

    Args:
        path: a build, checkpoint, engine or model folder, or a repository.
        facts: of this machine; None: read them.
        even_if_broken: a folder that cannot be read is a finding that fails, for the archive of a bug report.

    Raises:
        TrtbuildError: the folder is none of these, or unreadable; a damaged one is a finding that fails.
    """
    from trtbuild.doctor.damage import damaged
    from trtbuild.doctor.overview import overview
    from trtbuild.doctor.subject import read_subject
    from trtbuild.doctor.suitability import damage_findings, suit

    facts = facts or survey()
    problems = damaged(path)
    try:
        subject = read_subject(path)
    except TrtbuildError as error:
        if not path.is_dir() or not (even_if_broken or problems):
            raise
        unreadable = Finding("artifact", "fail", error.message, error.hint, "artifact")
        return [unreadable, *damage_findings(problems), *overview(facts)]
    return [*damage_findings(problems), *suit(subject, facts), *overview(facts)]
