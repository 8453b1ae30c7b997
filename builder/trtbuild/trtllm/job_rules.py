"""All rules of engines, applied to a job."""

from __future__ import annotations

from trtbuild.targets.base import Job
from trtbuild.trtllm import attention_rules, build_rules, serving_rules
from trtbuild.trtllm.build_options import requested
from trtbuild.trtllm.rules import check_rules

ERRORS = (*build_rules.ERRORS, *attention_rules.ERRORS, *serving_rules.ERRORS, *serving_rules.ADAPTERS)
NOTES = (*build_rules.NOTES, *serving_rules.NOTES)


def check_job(job: Job) -> list[str]:
    """Return notes about a job; reads the headers of adapters, nothing else.

    Raises:
        UsageError: the release builds no engines, or trtllm-build would refuse the job or build something else.
        TrtbuildError: an adapter cannot be read.
    """
    notes = check_rules(job, ERRORS, NOTES)
    requested(job)
    return notes
