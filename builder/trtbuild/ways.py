"""Ways out of an error: tried before they are named. The nearest possible choice is possible for this model, target, release and GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtbuild.errors import TrtbuildError, UsageError, Way
from trtbuild.spec import Deployment


@contextmanager
def only_ways_that_work(deployment: Deployment, *, is_built: bool = True) -> Iterator[None]:
    """Take the ways that do not work out of the hint of a UsageError that the block raises.

    A way works when the deployment with its settings passes every check of `plan` but those of memory and of calibration data: who asks for a
    scheme that calibrates has them, or is told of them next.

    Args:
        deployment: what the block is about.
        is_built: the checks of its target count as well; a checkpoint alone may be for another loader.
    """
    try:
        yield
    except UsageError as error:
        if not error.ways:
            raise
        raise error.keeping(lambda way: _works(deployment, way, is_built=is_built)) from error


def _works(deployment: Deployment, way: Way, *, is_built: bool) -> bool:
    from trtbuild.checks import check_deployment
    from trtbuild.convert.work import work_of
    from trtbuild.memory.change import changed
    from trtbuild.targets.base import check_job

    try:
        other = changed(deployment, way.settings, origin="a hint")
        check_deployment(other)
        work = work_of(other, is_done=False)
        if is_built:
            check_job(work.job())
    except TrtbuildError:
        return False
    return True
