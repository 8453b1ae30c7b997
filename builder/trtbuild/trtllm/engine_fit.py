"""Whether an engine belongs to a deployment and to the checkpoint beside it: what its config.json repeats of both.

Whoever built it: an engine that plain trtllm-build wrote in a container is held to the same as our own. What config.json does not repeat, the
weights themselves above all, nobody can tell. Layout: checkpoint specification 4.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.spec import Deployment
from trtbuild.trtllm.build_check import different_build, worded
from trtbuild.trtllm.build_options import OPTIONS
from trtbuild.trtllm.engine import Engine

#: Keys of a checkpoint's config.json that the builder hands on as they are (1.2; the C++ runtime reads them, 4.10).
_HANDED_ON: tuple[tuple[str, ...], ...] = (
    ("architecture",), ("dtype",), ("vocab_size",), ("hidden_size",), ("intermediate_size",), ("num_hidden_layers",),
    ("num_attention_heads",), ("num_key_value_heads",), ("head_size",), ("mapping", "tp_size"), ("mapping", "pp_size"),
    ("quantization", "quant_algo"), ("quantization", "kv_cache_quant_algo"),
)  # fmt: skip
#: Sections whose fields are fixed in an engine. Limits can be lowered when it is served; `engine_settings` compares them.
_FIXED_IN_ENGINE = ("engine", "kv_cache", "lora")


def require_fit(engine: Engine, deployment: Deployment, checkpoint: Mapping[str, Any]) -> None:
    """Refuse an engine of another model or cut, or one that was built with other settings than those that the deployment states.

    Args:
        engine: the engine.
        deployment: what will serve it.
        checkpoint: config.json of its rank files; empty when there is none.

    Raises:
        TrtbuildError: something differs; all that does is named.
    """
    found = [*different_model(engine, checkpoint), *_different_deployment(engine, deployment)]
    if found:
        raise TrtbuildError(
            f"{engine.path} is not the engine of this deployment: {'; '.join(dict.fromkeys(found))}",
            hint="name the engine that was built for it, correct trtbuild.yaml, or build the engine again",
        )


def different_model(engine: Engine, checkpoint: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an engine says otherwise than the checkpoint that it should be of; what one of them leaves out is not compared."""
    for place in _HANDED_ON:
        asked, found = _at(checkpoint, place), _at(engine.pretrained, place)
        if asked is not _MISSING and found is not _MISSING and asked != found:
            yield _difference(place[-1], asked, found)


_MISSING = object()


def _at(config: Mapping[str, Any], place: tuple[str, ...]) -> object:
    node: object = config
    for key in place:
        if not isinstance(node, Mapping) or key not in node:
            return _MISSING
        node = node[key]
    return node


def _different_deployment(engine: Engine, deployment: Deployment) -> Iterator[str]:
    for name in ("tp_size", "pp_size"):
        asked, found = getattr(deployment.parallel, name), engine.mapping[name]
        if asked != found:
            yield _difference(name, asked, found)
    yield from different_build(
        _stated(deployment),
        engine,
        dtype=str(engine.pretrained.get("dtype", "")),
        has_drafts=deployment.speculative.mode != "none",
    )


def _stated(deployment: Deployment) -> dict[str, Any]:
    """Return option of trtllm-build -> value of the fields that are not left at their default, which may be another one elsewhere."""
    found = {}
    for option in OPTIONS:
        section, _, name = option.place.partition(".")
        if section in _FIXED_IN_ENGINE:
            values = getattr(deployment, section)
            if (value := getattr(values, name)) != getattr(type(values)(), name):
                found[option.name] = value
    return found


def _difference(name: str, asked: object, found: object) -> str:
    return f"{name} was to be {worded(asked)}, and is {worded(found)}"
