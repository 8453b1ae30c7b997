"""A deployment with some keys of trtbuild.yaml set otherwise, and its plan: what what-ifs and suggestions are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild import spec
from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import check_formats, plan_deployment, plan_opened
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


def planned(deployment: Deployment, base: ConversionPlan, settings: Mapping[str, Any]) -> ConversionPlan:
    """Return the conversion plan of a changed deployment, from the model that the base has open where that is the same.

    Raises:
        TrtbuildError: the model cannot be converted like this.
    """
    if not any(key.startswith(CONVERTING) for key in settings):
        return base
    opens_other = any(key.startswith(_OPENING) for key in settings)
    if opens_other or (base.known is not None and any(key.startswith("quantization") for key in settings)):
        return plan_deployment(deployment)
    check_formats(deployment)
    return plan_opened(deployment, OpenedSource(base.source, base.known))
