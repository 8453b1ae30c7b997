"""Section of trtbuild.yaml: where the model comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trtbuild.spec.section import Section


class Model(Section, frozen=True):
    """Where the model comes from."""

    path: Annotated[str, Meta(description="Hugging Face folder; a relative path is relative to trtbuild.yaml.")]
    revision: Annotated[
        str | None, Meta(description="Hub commit the folder was downloaded from; recorded in manifests.")
    ] = None
    merge_lora: Annotated[
        str | None,
        Meta(description="LoRA adapter folder (PEFT) whose weights are added to the model's before anything else."),
    ] = None
    dtype: Annotated[
        Literal["auto", "float16", "bfloat16", "float32"],
        Meta(description="dtype of unquantized tensors; auto keeps the source's (float32 becomes float16)."),
    ] = "auto"
