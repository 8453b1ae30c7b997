"""Which table serves which architecture. Adding one: a file in this package and a line in `ARCHITECTURES`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from trtbuild.arch.config_types import check_types
from trtbuild.arch.rules import ArchSpec
from trtbuild.arch.sized import INSTEAD, SIZED_ONLY
from trtbuild.errors import TrtbuildError
from trtbuild.spellings import check_spellings

logger = logging.getLogger(__name__)

#: Hugging Face architecture -> "module:attribute" of its ArchSpec.
ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "trtbuild.arch.llama:LLAMA",
    "MistralForCausalLM": "trtbuild.arch.llama:MISTRAL",
    "Qwen2ForCausalLM": "trtbuild.arch.qwen:QWEN2",
    "Qwen3ForCausalLM": "trtbuild.arch.qwen:QWEN3",
    "MixtralForCausalLM": "trtbuild.arch.moe:MIXTRAL",
    "Qwen2MoeForCausalLM": "trtbuild.arch.moe:QWEN2_MOE",
    "Qwen3MoeForCausalLM": "trtbuild.arch.moe:QWEN3_MOE",
    "GemmaForCausalLM": "trtbuild.arch.gemma:GEMMA",
    "Gemma2ForCausalLM": "trtbuild.arch.gemma:GEMMA2",
    "Gemma3ForCausalLM": "trtbuild.arch.gemma:GEMMA3",
    "Phi3ForCausalLM": "trtbuild.arch.phi:PHI3",
    "GPT2LMHeadModel": "trtbuild.arch.gpt2:GPT2",
    "GPTNeoXForCausalLM": "trtbuild.arch.gpt_neox:GPT_NEOX",
    "FalconForCausalLM": "trtbuild.arch.falcon:FALCON",
}
#: Hugging Face model type -> architecture, for configs that name no architecture.
MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "falcon": "FalconForCausalLM",
}


def resolve(config: Mapping[str, Any], *, where: str) -> tuple[str, ArchSpec]:
    """Return (architecture, table) for a Hugging Face config.

    Raises:
        TrtbuildError: the architecture is unknown, ambiguous, or cannot be told; or a field that families have is of a wrong type or contradicts its other name.
    """
    check_types(config, where)
    check_spellings(config, where)
    named = config.get("architectures")
    supported = f"supported: {', '.join(ARCHITECTURES)}"
    if named is not None and (not isinstance(named, list) or not all(isinstance(name, str) for name in named)):
        right = f'["{named}"]' if isinstance(named, str) else "one name in a list"
        raise TrtbuildError(
            f"{where}: architectures = {named!r} is not a list of names", hint=f"write architectures as {right}"
        )
    if named and len(named) > 1:
        raise TrtbuildError(
            f"{where}: architectures = {named!r} names more than one", hint="keep the one that the weights are of"
        )
    if named:
        architecture = named[0]
    else:
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
            raise TrtbuildError(
                f"{where}: architectures = {named!r} and model_type = {model_type!r} name no supported architecture",
                hint=supported,
            )
        architecture = MODEL_TYPES[model_type]
        logger.info("%s names no architecture; taking %s from model_type %s", where, architecture, model_type)
    return architecture, lookup(architecture, where=where)


def check_architecture(config: Mapping[str, Any], *, where: str) -> None:
    """Refuse an architecture that is named and not supported, before anything else about the model is looked at.

    Raises:
        TrtbuildError: see `lookup`.
    """
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        lookup(named[0], where=where)


def lookup(architecture: str, *, where: str) -> ArchSpec:
    """Return the table of an architecture.

    Raises:
        TrtbuildError: it is not supported; the nearest supported name is given.
    """
    if architecture in SIZED_ONLY:
        raise TrtbuildError(
            f"{where}: architecture '{architecture}' is not converted: {SIZED_ONLY[architecture]}",
            hint=f"{INSTEAD}; `trtbuild plan --target pytorch` tells what it takes",
        )
    if architecture not in ARCHITECTURES:
        near = get_close_matches(architecture, ARCHITECTURES, n=1, cutoff=0.8)
        raise TrtbuildError(
            f"{where}: architecture '{architecture}' is not supported",
            hint=f"supported: {', '.join(ARCHITECTURES)}" + (f" (nearest: {near[0]})" if near else ""),
        )
    module, _, attribute = ARCHITECTURES[architecture].partition(":")
    spec = getattr(import_module(module), attribute)
    assert isinstance(spec, ArchSpec)
    return spec
