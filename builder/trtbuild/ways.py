"""Ways out of an error: tried before they are named. The nearest possible choice is possible for this model, target, release and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError, Way
from trtbuild.names import GROUPED
from trtbuild.spec import Deployment, Quantization

#: Option of `quantization` -> the schemes that it applies to.
_OPTIONS_OF: dict[str, tuple[str, ...]] = {
    "group_size": tuple(GROUPED),
    "act_order": ("int4_gptq",),
    "smoothquant_alpha": ("int8_smoothquant",),
    "smoothquant_mode": ("int8_smoothquant",),
}


@contextmanager
def only_ways_that_work(
    deployment: Deployment, *, is_built: bool = True, check: Callable[[Deployment], object] | None = None
) -> Iterator[None]:
    """Take the ways that do not work out of the hint of a UsageError that the block raises.

    A way works when the deployment with its settings passes every check of `plan` but those of memory and of calibration data: who asks for a
    scheme that calibrates has them, or is told of them next.

    Args:
        deployment: what the block is about.
        is_built: the checks of its target count as well; a checkpoint alone may be for another loader.
        check: raises TrtbuildError for what does not work, instead of the checks of a model that is converted.
    """
    try:
        yield
    except UsageError as error:
        if not error.ways:
            raise
        checks = check or partial(_check, is_built=is_built)
        raise error.keeping(lambda way: _works(deployment, way, checks)) from error


def _works(deployment: Deployment, way: Way, check: Callable[[Deployment], object]) -> bool:
    from trtbuild.memory.change import changed

    try:
        check(changed(deployment, {**_reset(way.settings), **way.settings}, origin="a hint"))
    except TrtbuildError:
        return False
    return True


def _check(deployment: Deployment, *, is_built: bool) -> None:
    from trtbuild.checks import check_deployment
    from trtbuild.convert.work import work_of
    from trtbuild.targets.base import check_job

    check_deployment(deployment)
    work = work_of(deployment, is_done=False)
    if is_built:
        check_job(work.job())


def _reset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of other schemes at their defaults, where settings choose a scheme: who takes another one leaves them out."""
    scheme = settings.get("quantization.scheme")
    if scheme is None:
        return {}
    plain = Quantization()
    return {
        f"quantization.{name}": getattr(plain, name) for name, schemes in _OPTIONS_OF.items() if scheme not in schemes
    }
