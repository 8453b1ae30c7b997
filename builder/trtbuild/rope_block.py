"""One block of rotary settings out of the spellings of config.json: `rope_theta` and `rope_scaling` (transformers 4), `rope_parameters` (5).

A file may have both. transformers 5 takes a `rope_scaling` that is not empty in place of the whole `rope_parameters` (5.24,
modeling_rope_utils.py, `convert_rope_params_to_dict`), transformers 4 (4.57, that of TensorRT-LLM 1.2) knows no `rope_parameters`; of a
base at the top and another one inside, 5 takes the inner and 4 the outer. So `rope_scaling` is followed where `rope_parameters` has
no scaling of its own; whatever else is said twice must be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.spellings import require_same

OLD, NEW = "rope_scaling", "rope_parameters"
DEFAULT_THETA = 10000.0
#: Field of a block -> what the top level of config.json calls it. Families with other names say so.
TOP_FIELDS: dict[str, str] = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
_ORIGINAL = "original_max_position_embeddings"


def merged(
    config: Mapping[str, Any],
    *,
    where: str,
    theta: float = DEFAULT_THETA,
    pct: float = 1.0,
    top_fields: Mapping[str, str] = TOP_FIELDS,
) -> dict[str, Any]:
    """Return the rotary settings: `rope_type` ("default" where none is given), `rope_theta`, `partial_rotary_factor`, keys of the scaling.

    Args:
        config: the (text) config, with blocks that hold for all layers.
        where: file name for messages.
        theta: base that the family implies.
        pct: share of a head that the family rotates where config.json is silent.
        top_fields: field of a block -> its name at the top level.

    Raises:
        TrtbuildError: a block is malformed or differs per layer type, or two spellings contradict each other.
    """
    blocks = {name: _block(config, name, where) for name in (OLD, NEW)}
    top = {inner: config[outer] for inner, outer in top_fields.items() if config.get(outer) is not None}
    for name, block in blocks.items():
        for inner, outer in {**top_fields, _ORIGINAL: _ORIGINAL}.items():
            require_same(
                {outer: config.get(outer), f"{name}.{inner}": block.get(inner)}, where, "keep the one that is meant"
            )
    implied = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": pct, **top}
    old, new = ({**implied, **block} for block in blocks.values())
    if blocks[OLD] and blocks[NEW] and not _agree(old, new, config):
        raise TrtbuildError(
            f"{where}: rope_scaling means {_shown(old)}, rope_parameters {_shown(new)}",
            hint="remove the one that is not meant; programs differ in which they read",
        )
    return old if blocks[OLD] else new


def scaling_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the block that scales, in whichever spelling, of a model that nothing else is checked of; None without."""
    found = (_whole(config.get(name)) for name in (OLD, NEW))
    return next((block for block in found if _kind(block) not in (None, "default")), None)


def is_replaced(config: Mapping[str, Any]) -> bool:
    """Say whether a scaling in `rope_scaling` is taken although `rope_parameters` beside it has none."""
    old, new = (_whole(config.get(name)) for name in (OLD, NEW))
    return bool(old and new) and _kind(old) != _kind(new)


def _whole(block: object) -> Mapping[str, Any] | None:
    """Return the settings of the layers that attend to everything, None where there are none."""
    full = block.get("full_attention", block) if isinstance(block, Mapping) else None
    return full if isinstance(full, Mapping) else None


def _kind(block: Mapping[str, Any] | None) -> object:
    return None if block is None else block.get("rope_type") or block.get("type") or "default"


def _block(config: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a block with the kind under `rope_type`, without what is null; empty when there is none."""
    block = config.get(name)
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise TrtbuildError(f"{where}: {name} = {block!r} is not an object", hint="repair config.json")
    if any(isinstance(value, Mapping) for value in block.values()):
        raise TrtbuildError(
            f"{where}: {name} differs per layer type ({', '.join(map(str, block))}), which this architecture cannot express",
            hint="only one set of rotary settings for all layers is supported",
        )
    given = {key: value for key, value in block.items() if value is not None}
    kinds = {f"{name}.{key}": given.get(key) for key in ("rope_type", "type")}
    require_same(kinds, where, "keep rope_type; programs differ in which they read")
    kind = given.pop("type", None)
    return {**given, "rope_type": kind} if kind is not None else given


def _agree(old: Mapping[str, Any], new: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Say whether both blocks mean the same, or the newer one only lacks the scaling of the older."""
    if new["rope_type"] == "default":
        return all(old.get(key) == value for key, value in new.items() if key != "rope_type")
    positions = config.get(_ORIGINAL) or config.get("max_position_embeddings")
    return {_ORIGINAL: positions, **old} == {_ORIGINAL: positions, **new}


def _shown(block: Mapping[str, Any]) -> str:
    values = {key: f"[{len(value)} numbers]" if isinstance(value, list) else value for key, value in block.items()}
    return ", ".join(f"{key} {value}" for key, value in values.items())
