"""From a deployment to one with a scheme for every linear: plan, measure, choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.console import progress
from trtbuild.convert.calibration_set import calibration_set
from trtbuild.convert.run import plan_deployment
from trtbuild.errors import UsageError
from trtbuild.names import GROUP_SIZES, GROUPED
from trtbuild.quant.scheme import SchemeOptions, load_scheme
from trtbuild.sensitivity.choose import Choice, Group, choose
from trtbuild.spec import Deployment, Quantization, replaced


@dataclass(frozen=True, slots=True)
class Mixture:
    """What was measured and chosen.

    Attributes:
        groups: one entry per scale group.
        choice: of them.
        deployment: with the chosen schemes.
    """

    groups: tuple[Group, ...]
    choice: Choice
    deployment: Deployment

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "bits_per_weight": self.choice.bits_per_weight,
            "error": self.choice.error,
            "groups": [
                {
                    "layer": group.layer,
                    "modules": list(group.modules),
                    "weights": group.weights,
                    "bits": dict(group.bits),
                    "errors": dict(group.errors),
                    "scheme": scheme,
                }
                for group, scheme in zip(self.groups, self.choice.schemes, strict=True)
            ],
            "quantization": self.deployment.quantization.as_dict(),
        }


def mix(deployment: Deployment, names: Sequence[str], budget: float, *, memory_bytes: int, quiet: bool) -> Mixture:
    """Measure a model and choose a scheme for every scale group.

    Args:
        deployment: names the model, the target and the calibration data; its own scheme is replaced.
        names: schemes to choose from.
        budget: bits per weight over all linears of the decoder layers, scales included.
        memory_bytes: for second moments and activations.
        quiet: show no progress.

    Raises:
        UsageError: a scheme does not fit the model or the target, or the budget is too small.
        TrtbuildError: model or calibration data are unusable.
    """
    if by_loader := [name for name in names if name.endswith("_weight_only")]:
        raise UsageError(
            f"{by_loader[0]} is made by the loader for all linears alike and cannot be mixed with others",
            hint="choose from the other schemes",
        )
    sizes = {name: _fitting_group_size(deployment, name) for name in names}
    group_size = min((size for size in sizes.values() if size), default=0)
    plain = _with(deployment, Quantization(calibration=deployment.quantization.calibration))
    plan = plan_deployment(plain)
    schemes = [load_scheme(name, SchemeOptions(group_size=group_size or GROUP_SIZES[-1])) for name in names]
    samples, _ = calibration_set(plan.source, deployment.quantization.calibration, plan.dims)
    from trtbuild.sensitivity.measure import measure  # torch is needed from here on only

    with progress("measuring", samples.tokens * plan.dims.num_layers, quiet=quiet, unit="tokens") as advance:
        groups = measure(plan, schemes, samples, memory_bytes=memory_bytes, advance=advance)
    choice = choose(groups, budget)
    weights: Counter[str] = Counter()
    for group, name in zip(groups, choice.schemes, strict=True):
        weights[name] += group.weights
    common = max(names, key=lambda name: weights[name])
    overrides = {
        module: name
        for group, name in zip(groups, choice.schemes, strict=True)
        for module in group.modules
        if name != common
    }
    chosen = replaced(
        deployment.quantization,
        scheme=common,
        overrides=overrides,
        exclude=(),
        group_size=group_size if {common, *overrides.values()} & set(GROUPED) else None,
    )
    mixture = Mixture(tuple(groups), choice, _with(deployment, chosen))
    plan_deployment(mixture.deployment)  # what was chosen can be built
    return mixture


def _with(deployment: Deployment, quantization: Quantization) -> Deployment:
    return replaced(deployment, quantization=quantization)


def _fitting_group_size(deployment: Deployment, name: str) -> int:
    """Return the group size a scheme would have for the whole model, 0 without groups.

    Raises:
        UsageError: it does not fit.
    """
    given = deployment.quantization.group_size if name in GROUPED else None
    whole = replaced(deployment.quantization, scheme=name, overrides={}, exclude=(), group_size=given)
    return plan_deployment(_with(deployment, whole)).layout.scheme.group_size if name != "none" else 0
