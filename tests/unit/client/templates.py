"""The public tensors as the renderer declares them for the newest release, for comparison."""

from __future__ import annotations

from trtbuild.repo.signatures import signatures
from trtbuild.trtllm.versions import find_release


def template_inputs(model: str) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """Return name -> (data type, dims, optional) of ensemble or tensorrt_llm_bls."""
    rows = signatures(find_release("1.2"), "TYPE_FP32")[model]["inputs"]
    return {
        row["name"]: (
            "BYTES" if row["type"] == "TYPE_STRING" else row["type"].removeprefix("TYPE_"),
            tuple(row["dims"]),
            row["optional"],
        )
        for row in rows
    }
