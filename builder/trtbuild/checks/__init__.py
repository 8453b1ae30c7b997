"""What a trtbuild.yaml asks for and no model is needed to refuse: sizes, addresses, files, and keys without effect.

`spec` knows each field by itself; `targets` and `trtllm` know what a model, a release and a GPU take. Here is what lies between.
"""

from __future__ import annotations

from trtbuild.checks.effects import without_effect
from trtbuild.checks.engines import engine_faults
from trtbuild.checks.fault import require_none
from trtbuild.checks.files import missing_files
from trtbuild.checks.network import network_faults
from trtbuild.checks.sizes import size_faults, size_notes
from trtbuild.errors import TrtbuildError
from trtbuild.spec import Deployment

__all__ = ["check_deployment", "without_effect"]


def check_deployment(deployment: Deployment) -> list[str]:
    """Return what the owner of a deployment should know; looks at files that it names, opens none.

    Raises:
        UsageError: sizes or addresses that nothing can have; all faults are named.
        TrtbuildError: a file or folder is missing.
    """
    require_none([*size_faults(deployment), *network_faults(deployment), *engine_faults(deployment)])
    missing = list(missing_files(deployment))
    if missing:
        raise TrtbuildError("; ".join(missing), hint="correct the path, or leave the key or option out")
    return list(size_notes(deployment))
