"""What is worth saying about a model folder beside this Python's packages. Imports none of them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtbuild.source import read_json
from trtbuild.trtllm.artifact import Artifact
from trtbuild.trtllm.compatibility import Installed, require_compatible


def transformers_notices(model: Path) -> list[str]:
    """Return a notice when a model folder was written by newer transformers than are installed here (field report VC09).

    No obstacle: trtbuild reads config.json itself.
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return []
    wrote = read_json(model / "config.json").get("transformers_version")
    artifact = Artifact(str(model), "model", transformers=wrote if isinstance(wrote, str) else "")
    return require_compatible(artifact, Installed("this Python", transformers=installed))
