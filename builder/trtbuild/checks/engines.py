"""Keys of `serving` that only engines have: with another target they ask for what no server would do."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.checks.fault import Fault
from trtbuild.spec import Deployment

_OF_ENGINES = ("gpu_device_ids", "participant_ids", "guided_decoding")


def engine_faults(deployment: Deployment) -> Iterator[Fault]:
    """Yield at most one fault that names all such keys."""
    if deployment.target == "tensorrt":
        return
    given = [f"serving.{name}" for name in _OF_ENGINES if getattr(deployment.serving, name) is not None]
    given += ["serving.mode"] if deployment.serving.mode != "leader" else []
    if given:
        yield Fault(
            f"{', '.join(given)}: only engines have that, and the target is {deployment.target}",
            "leave it out, or use --target tensorrt; for guided decoding with target pytorch see llm_api.guided_decoding",
        )
