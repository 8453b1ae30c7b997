"""Phi-3, Phi-3.5 and Phi-4: q, k, v in one source tensor, gate and up in another.

Source: checkpoint specification 1.6.5 and 2.4 (tensorrt_llm/models/phi3/{config,convert}.py, 1.x copies). There is no `mlp.gate`:
`mlp.fc` holds up above gate, and under tensor parallelism each rank its slice of both halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.arch.llama import ATTENTION, EMBEDDING, HEAD, HF, IGNORED, LAYER, MLP, require_silu
from trtbuild.arch.rules import ArchSpec, View, WeightRule, rows_of
from trtbuild.dims import ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.rope_block import NEW, OLD, merged
from trtbuild.shard import Split, SplitQKV

#: Keys that would change the attention factor which both sides derive from the two position limits.
_FACTORS = ("attention_factor", "short_mscale", "long_mscale", "factor")


def _qkv_views(dims: ModelDims) -> tuple[View, ...]:
    q, kv = dims.q_size, dims.kv_size
    shape = (q + 2 * kv, dims.hidden_size)
    return rows_of(shape, 0, q), rows_of(shape, q, kv), rows_of(shape, q + kv, kv)


def _gate_up_views(dims: ModelDims) -> tuple[View, ...]:
    width = dims.intermediate_size
    shape = (2 * width, dims.hidden_size)
    return rows_of(shape, width, width), rows_of(shape, 0, width)


_QKV = f"{HF}.self_attn.qkv_proj.weight"
_GATE_UP = f"{HF}.mlp.gate_up_proj.weight"
_FUSED = (
    WeightRule(
        f"{LAYER}.attention.qkv.weight", (_QKV,) * 3,
        lambda d: ((d.q_size, d.hidden_size), (d.kv_size, d.hidden_size), (d.kv_size, d.hidden_size)), SplitQKV(),
        quantizable=True, scale_group="qkv", views=_qkv_views,
    ),
    WeightRule(
        f"{LAYER}.mlp.fc.weight", (_GATE_UP,) * 2, lambda d: ((d.intermediate_size, d.hidden_size),) * 2, Split(0),
        quantizable=True, scale_group="gate_up", views=_gate_up_views,
    ),
)  # fmt: skip
_REPLACED = (
    "attention.qkv.weight",
    "attention.qkv.bias",
    "mlp.fc.weight",
    "mlp.fc.bias",
    "mlp.gate.weight",
    "mlp.gate.bias",
)
_RULES = (
    *EMBEDDING,
    *(rule for rule in (*ATTENTION, *MLP) if not rule.target.endswith(_REPLACED)),
    *_FUSED,
    *HEAD,
)


def _rope_block(config: Mapping[str, Any], where: str = "config.json") -> dict[str, Any]:
    # transformers reads all three kinds as the same (Phi3Config).
    alike = {
        name: {**block, "rope_type": "longrope", "type": None}
        for name in (OLD, NEW)
        if isinstance(block := config.get(name), Mapping)
        and (block.get("rope_type") or block.get("type")) in ("su", "yarn", "longrope")
    }
    return merged({**config, **alike}, where=where)


def _dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    block = _rope_block(config, where)
    if block["rope_type"] == "longrope":
        given = [key for key in _FACTORS if block.get(key) is not None]
        if given or not all(isinstance(block.get(key), list) for key in ("short_factor", "long_factor")):
            raise TrtbuildError(
                f"{where}: longrope settings with {', '.join(given) or 'no short_factor and long_factor'} are not supported",
                hint="only short_factor and long_factor lists, with the factor implied by the position limits, can be expressed",
            )
        plain = {"rope_type": "default", "rope_theta": block["rope_theta"]}
    elif block["rope_type"] == "default":
        plain = block
    else:
        raise TrtbuildError(
            f"{where}: rope scaling '{block['rope_type']}' is not supported for Phi-3", hint="only longrope is"
        )
    implied = {"num_key_value_heads": config.get("num_attention_heads")}
    dims = read_dims(
        config,
        architecture=architecture,
        where=where,
        implied=implied,
        implied_epsilon=1e-5,
        rope=Rope.from_block(plain, config, where=where),
        rotary_pct=float(block["partial_rotary_factor"]),
    )
    return require_silu(dims, where)


def _config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"hidden_act": "swiglu", "rotary_pct": dims.rotary_pct}
    window = source.get("sliding_window")
    if isinstance(window, int):
        fields["sliding_window"] = window  # a run-time setting of the server; kept, the loader warns about it
    block = _rope_block(source)
    if block["rope_type"] == "longrope":
        fields |= {
            "position_embedding_type": "long_rope",
            "original_max_position_embeddings": source.get("original_max_position_embeddings", 4096),
            "longrope_scaling_short_factors": block["short_factor"],
            "longrope_scaling_long_factors": block["long_factor"],
        }
    return fields


def _hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "hidden_act": "silu",
        "partial_rotary_factor": config["rotary_pct"],
        "sliding_window": config.get("sliding_window"),
        # transformers' own defaults are numbers of another vocabulary
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    parameters = {"rope_theta": config["rotary_base"], "partial_rotary_factor": config["rotary_pct"]}
    if "longrope_scaling_short_factors" not in config:
        scaling = config["rotary_scaling"] or {"rope_type": "default"}
        return {**fields, "rope_parameters": {**parameters, **scaling}}
    scaling = {
        "rope_type": "longrope",
        "short_factor": config["longrope_scaling_short_factors"],
        "long_factor": config["longrope_scaling_long_factors"],
    }
    return {
        **fields,
        "original_max_position_embeddings": config["original_max_position_embeddings"],
        "rope_scaling": scaling,
        "rope_parameters": {**parameters, **scaling},
    }


PHI3 = ArchSpec(
    model_type="phi3",
    read_dims=_dims,
    rules=_RULES,
    ignored=IGNORED,
    config_fields=_config_fields,
    hf_fields=_hf_fields,
    has_pipeline=False,
    unverified="Phi-3 with tp > 1: no tool of NVIDIA writes it; the order of halves follows from the graph and was not run on a GPU",
)
