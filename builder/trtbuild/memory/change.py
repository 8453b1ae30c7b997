"""A deployment with some keys of trtbuild.yaml set otherwise, and its plan: what what-ifs and suggestions are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild import spec
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.run import check_formats, plan_opened
from trtbuild.convert.work import Conversion, Copy, Work, work_of
from trtbuild.errors import UsageError
from trtbuild.spec import Deployment

#: Sections whose keys change which file is opened; everything else is planned from the model that is open already.
_OPENING = ("model", "quantization.dequantize", "target")
#: Sections whose keys change what is written.
CONVERTING = (*_OPENING, "quantization", "parallel", "hardware.gpu")


def changed(deployment: Deployment, settings: Mapping[str, Any], *, origin: str) -> Deployment:
    """Return a deployment with dotted keys set.

    Args:
        deployment: the base.
        settings: e.g. {"parallel.tp_size": 4}.
        origin: for messages.

    Raises:
        UsageError: a key or value is not allowed.
    """
    data = deployment.as_dict()
    for key, value in settings.items():
        *sections, last = key.split(".")
        node: Any = data
        for section in sections:
            if not isinstance(node, dict) or not isinstance(node.get(section), dict):
                raise UsageError(f"{origin}: unknown key '{key}'", hint="`trtbuild schema` lists all keys")
            node = node[section]
        node[last] = value
    return spec.parse(data, origin=origin)


def planned(deployment: Deployment, base: Work, settings: Mapping[str, Any], *, is_done: bool) -> Work:
    """Return what makes the checkpoint of a changed deployment, from the model that the base has open where that is the same.

    Args:
        deployment: the changed one.
        base: what makes the checkpoint of the one before.
        settings: what was changed.
        is_done: it will be carried out, so what a calibration needs must be there.

    Raises:
        TrtbuildError: the model cannot be converted like this.
    """
    if isinstance(base, Copy):
        return work_of(deployment, is_done=is_done)
    if not any(key.startswith(CONVERTING) for key in settings):
        return Conversion(base.plan, deployment)
    opens_other = any(key.startswith(_OPENING) for key in settings)
    if opens_other or (base.plan.known is not None and any(key.startswith("quantization") for key in settings)):
        return work_of(deployment, is_done=is_done)
    check_formats(deployment)
    opened = OpenedSource(base.plan.source, base.plan.known)
    return Conversion(plan_opened(deployment, opened, is_done=is_done), deployment)
