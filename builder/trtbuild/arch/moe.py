"""Mixture-of-experts decoders: Mixtral, Qwen2-MoE (with a shared expert) and Qwen3-MoE.

Source: checkpoint specification 1.6.3, 2.4 and 2.5 (tensorrt_llm/layers/moe.py, models/{llama,qwen}/convert.py, 1.x copies): the
router is float32 and whole on every rank; `mlp.fc` stacks up above gate inside every expert, each half cut on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.arch import qwen
from trtbuild.arch.llama import ATTENTION, EMBEDDING, HEAD, HF, IGNORED, LAYER, require_silu
from trtbuild.arch.rules import EXPERT, ArchSpec, WeightRule
from trtbuild.dims import ConfigReader, ModelDims, read_dims
from trtbuild.errors import TrtbuildError
from trtbuild.rope import Rope
from trtbuild.shard import Replicate, Split, SplitExperts

#: `moe.normalization_mode` (1.6.3): soft-max over all experts, then the chosen weights as they are, or divided by their sum.
_NONE, _RENORMALIZE = 0, 1
#: Rotary base where config.json gives none (transformers: MixtralConfig).
_MIXTRAL_THETA = 1_000_000.0


def _experts(block: str, *, gate: str, up: str, down: str) -> tuple[WeightRule, ...]:
    """Return the rules of router and routed experts; block: Hugging Face module; the others: names within an expert."""
    expert = f"{block}.experts.{EXPERT}"
    return (
        WeightRule(
            f"{LAYER}.mlp.router.weight", (f"{block}.gate.weight",),
            lambda d: ((d.num_experts, d.hidden_size),), Replicate(), dtype="F32",
        ),
        WeightRule(
            f"{LAYER}.mlp.fc.weight", (f"{expert}.{up}.weight", f"{expert}.{gate}.weight"),
            lambda d: ((d.moe_intermediate_size, d.hidden_size),) * 2, SplitExperts(0, 2), quantizable=True, scale_group="experts_fc",
        ),
        WeightRule(
            f"{LAYER}.mlp.proj.weight", (f"{expert}.{down}.weight",),
            lambda d: ((d.hidden_size, d.moe_intermediate_size),), SplitExperts(1, 1), quantizable=True, scale_group="experts_proj",
        ),
    )  # fmt: skip


_SHARED = f"{HF}.mlp.shared_expert"
_SHARED_EXPERT: tuple[WeightRule, ...] = (
    WeightRule(
        f"{LAYER}.mlp.shared_expert.fc.weight", (f"{_SHARED}.up_proj.weight", f"{_SHARED}.gate_proj.weight"),
        lambda d: ((d.shared_expert_intermediate_size, d.hidden_size),) * 2, Split(0), quantizable=True, scale_group="shared_fc",
    ),
    WeightRule(
        f"{LAYER}.mlp.shared_expert.proj.weight", (f"{_SHARED}.down_proj.weight",),
        lambda d: ((d.hidden_size, d.shared_expert_intermediate_size),), Split(1), quantizable=True, scale_group="shared_proj",
    ),
    WeightRule(
        f"{LAYER}.mlp.shared_expert_gate.weight", (f"{_SHARED}_gate.weight",), lambda d: ((1, d.hidden_size),), Replicate(),
    ),
)  # fmt: skip

_MIXTRAL_RULES = (
    *EMBEDDING,
    *ATTENTION,
    *_experts(f"{HF}.block_sparse_moe", gate="w1", up="w3", down="w2"),
    *HEAD,
)
_QWEN_EXPERTS = _experts(f"{HF}.mlp", gate="gate_proj", up="up_proj", down="down_proj")


def _moe(dims: ModelDims) -> dict[str, Any]:
    mode = _RENORMALIZE if dims.renormalizes_experts else _NONE
    return {
        "hidden_act": "swiglu",
        "moe": {"num_experts": dims.num_experts, "top_k": dims.experts_per_token, "normalization_mode": mode},
    }


def _mixtral_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    read = ConfigReader(config, where)
    dims = read_dims(
        config,
        architecture=architecture,
        where=where,
        implied={},
        implied_epsilon=1e-5,
        rope=Rope.from_hf_config(config, where=where, theta=_MIXTRAL_THETA),
        num_experts=read.integer("num_local_experts"),
        experts_per_token=read.integer("num_experts_per_tok", 2),
        moe_intermediate_size=read.integer("intermediate_size"),
    )
    return require_silu(dims, where)


def _mixtral_config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    window = source.get("sliding_window")
    kept = {"sliding_window": window} if isinstance(window, int) else {}
    return {"attn_bias": False, "mlp_bias": False, "residual_mlp": False, **kept, **_moe(dims)}


def _mixtral_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "num_local_experts": config["moe"]["num_experts"],
        "num_experts_per_tok": config["moe"]["top_k"],
        "sliding_window": config.get("sliding_window"),
    }


def _even_early_layers(layer: int, limit: int) -> bool:
    return layer % 2 == 0 and layer < limit


def _all_layers(_layer: int, _limit: int) -> bool:
    return True


def _qwen_moe(config: Mapping[str, Any], where: str, slides: qwen.Slides) -> dict[str, Any]:
    """Return the fields of `ModelDims` about experts.

    Raises:
        TrtbuildError: some layers are dense; the model class makes experts in every layer (1.6.2).
    """
    qwen.refuse_windows(config, where, slides)
    read = ConfigReader(config, where)
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if step != 1 or dense:
        raise TrtbuildError(
            f"{where}: decoder_sparse_step = {step!r}, mlp_only_layers = {dense!r}: dense layers between expert layers are not supported",
            hint="TensorRT-LLM's model class for engines makes experts in every layer",
        )
    return {
        "num_experts": read.integer("num_experts", config.get("num_local_experts")),
        "experts_per_token": read.integer("num_experts_per_tok"),
        "moe_intermediate_size": read.integer("moe_intermediate_size"),
        "renormalizes_experts": read.flag("norm_topk_prob", False),
        "rope": Rope.from_hf_config(config, where=where),
    }


def _qwen2_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    read = ConfigReader(config, where)
    if not read.flag("qkv_bias", True):
        raise TrtbuildError(
            f"{where}: qkv_bias = false is not supported here", hint="published Qwen2-MoE models have it"
        )
    shared = read.integer("shared_expert_intermediate_size")
    dims = read_dims(
        config,
        architecture=architecture,
        where=where,
        implied={"intermediate_size": shared},
        qkv_bias=True,
        shared_expert_intermediate_size=shared,
        **_qwen_moe(config, where, _even_early_layers),
    )
    return require_silu(dims, where)


def _qwen3_dims(config: Mapping[str, Any], architecture: str, where: str) -> ModelDims:
    qwen.refuse_qwen3_bias(config, where)
    # transformers' class has no layer_types: a window is one of all layers
    experts = _qwen_moe({**config, "layer_types": None}, where, _all_layers)
    implied = {"intermediate_size": experts["moe_intermediate_size"]}
    dims = read_dims(config, architecture=architecture, where=where, implied=implied, qk_norm=True, **experts)
    return require_silu(dims, where)


def _qwen_config_fields(dims: ModelDims, source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **qwen.config_fields(dims, source),
        **_moe(dims),
        "moe_intermediate_size": dims.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": dims.shared_expert_intermediate_size,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }


def _qwen_hf_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    moe = config["moe"]
    shared = config["moe_shared_expert_intermediate_size"]
    return {
        **qwen.hf_fields(config),
        "hidden_act": "silu",
        "num_experts": moe["num_experts"],
        "num_experts_per_tok": moe["top_k"],
        "norm_topk_prob": moe["normalization_mode"] == _RENORMALIZE,
        "moe_intermediate_size": config["moe_intermediate_size"],
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        **({"shared_expert_intermediate_size": shared, "qkv_bias": True} if shared else {"attention_bias": False}),
    }


MIXTRAL = ArchSpec(
    model_type="mixtral",
    read_dims=_mixtral_dims,
    rules=_MIXTRAL_RULES,
    ignored=IGNORED,
    config_fields=_mixtral_config_fields,
    hf_fields=_mixtral_hf_fields,
)

QWEN2_MOE = ArchSpec(
    model_type="qwen2_moe",
    read_dims=_qwen2_dims,
    rules=(*EMBEDDING, *ATTENTION, *_QWEN_EXPERTS, *_SHARED_EXPERT, *HEAD),
    ignored=IGNORED,
    config_fields=_qwen_config_fields,
    hf_fields=_qwen_hf_fields,
)

QWEN3_MOE = ArchSpec(
    model_type="qwen3_moe",
    read_dims=_qwen3_dims,
    rules=(*EMBEDDING, *ATTENTION, *_QWEN_EXPERTS, *HEAD),
    ignored=IGNORED,
    config_fields=_qwen_config_fields,
    hf_fields=_qwen_hf_fields,
)
