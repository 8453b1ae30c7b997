"""The public tensors of one release in the form that templates print: one row per input or output of each model."""

from __future__ import annotations

from typing import Any, Literal

from trtbuild.trtllm.tensors import ENGINE_MODELS, Side, Tensor
from trtbuild.trtllm.versions import Release

#: Tensor -> what a template prints of it: name, type, dims, optional, ragged, scalar.
Row = dict[str, Any]
Signatures = dict[str, dict[str, list[Row]]]
LogitsType = Literal["TYPE_FP32", "TYPE_FP16"]
#: Public inputs that the ensemble hands to preprocessing as well, under their own names, which checks them before the core gets them.
#: NVIDIA's preprocessing has no such inputs; no client sees the difference.
CHECKED = (
    "min_tokens", "min_length", "top_k", "top_p", "temperature", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "length_penalty", "beam_width", "num_return_sequences",
)  # fmt: skip


def signatures(release: Release, logits: LogitsType) -> Signatures:
    """Return model -> {"inputs", "outputs"} -> rows of a release's models.

    Args:
        release: whose tensors.
        logits: Triton's type of the logits; the other types a deployment could choose are the usual ones, since stock ensembles
            declare `prompt_embedding_table` as FP16 whatever the core says (Triton specification 1.7).
    """
    models = {
        name: {f"{side}s": [_row(tensor, logits) for tensor in model.of(release, side).values()] for side in _SIDES}
        for name, model in ENGINE_MODELS.items()
    }
    models["preprocessing"]["inputs"] += [row for row in models["ensemble"]["inputs"] if row["name"] in CHECKED]
    return models


_SIDES: tuple[Side, ...] = ("input", "output")


def _row(tensor: Tensor, logits: LogitsType) -> Row:
    return {
        "name": tensor.name,
        "type": logits if tensor.dtype == "LOGITS" else f"TYPE_{tensor.dtypes[0]}",
        "dims": list(tensor.dims),
        "optional": tensor.optional,
        "ragged": tensor.ragged,
        "scalar": tensor.scalar,
    }
