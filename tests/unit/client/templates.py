"""The public tensors as the repository's templates declare them, for comparison."""

from __future__ import annotations

import re
from pathlib import Path

_MACROS = Path(__file__).parents[3] / "model_repo_templates" / "_macros" / "text.pbtxt.j2"


def template_inputs(model: str) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """Return name -> (data type, dims, optional) of ensemble or tensorrt_llm_bls."""
    body = _MACROS.read_text(encoding="utf-8").partition("macro inputs")[2].partition("{% endmacro %}")[0]
    if model == "ensemble":
        body = re.sub(r"\{% if bls %\}.*?\{% endif %\}", "", body, flags=re.S)
    rows = re.findall(r'\{\{ (required|optional)\("(\w+)", "TYPE_(\w+)", \[([^\]]*)\]', body)
    return {
        name: (
            "BYTES" if dtype == "STRING" else dtype,
            tuple(int(dim) for dim in dims.split(",")),
            kind == "optional",
        )
        for kind, name, dtype, dims in rows
    }
