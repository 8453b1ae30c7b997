"""What TensorRT-LLM's config.json says, read back: the layout of the rank files, the Hugging Face config; and its `quantization` object.

Source: checkpoint specification 1.2 to 1.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from trtbuild.arch.registry import lookup
from trtbuild.dtypes import FROM_CONFIG
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.layout import Layout
from trtbuild.parallel import Parallel
from trtbuild.quant.kv_cache import KV_CACHE_FORMATS, KvCacheFormat
from trtbuild.quant.scheme import EXCLUDE_MODULES, Form, QuantScheme, load_scheme, scheme_of_algo

MIXED = "MIXED_PRECISION"
QUANT_CFG = "quant_cfg.json"
_LAYER_KEYS = ("group_size", "has_zero_point", "pre_quant_scale")
_HINT = "convert the model again with `trtbuild convert`"


def rank_quantization(layout: Layout) -> dict[str, Any]:
    """Return the algorithm, its options and the modules to leave alone.

    With a list of exclusions the load-time quantizer of weight-only algorithms would match other names (2.8): those get none.
    """
    form = layout.scheme.ranks
    if layout.is_mixed:
        return {"quant_algo": MIXED}
    if form is None:
        return {"quant_algo": None}
    excluded = {"exclude_modules": [*EXCLUDE_MODULES, *excluded_modules(layout)]} if form.writes_exclusions else {}
    return {"quant_algo": form.quant_algo, **form.config, **excluded}


def rank_quant_cfg(layout: Layout) -> dict[str, Any] | None:
    """Return quant_cfg.json, which says what each module of a mixed checkpoint is; None for others (1.4.3).

    Modules that are absent stay unquantized. The loader folds the two entries of an MoE block into one for Mixtral alone.
    """
    if not layout.is_mixed:
        return None
    return {
        "quant_algo": MIXED,
        "kv_cache_quant_algo": layout.kv_format.quant_algo if layout.kv_format else None,
        "quantized_layers": {
            slot.module: layer_entry(form)
            for slot in layout.slots
            if (form := layout.form_of(slot)) and layout.is_quantized(slot)
        },
    }


def layer_entry(form: Form) -> dict[str, Any]:
    """Return the entry of a module in `quantized_layers`: the keys that the loader hands to a constructor, no others."""
    return {"quant_algo": form.quant_algo, **{key: form.config[key] for key in _LAYER_KEYS if key in form.config}}


def excluded_modules(layout: Layout) -> list[str]:
    """Return TensorRT-LLM's names of the linears that an override leaves unquantized, as the loader numbers layers (from 0 per stage)."""
    found = {slot.module for slot in layout.slots if slot.rule.quantizable and not layout.is_quantized(slot)}
    return sorted(found) if layout.overrides else []


def overridden(quantization: Mapping[str, Any]) -> frozenset[str]:
    """Return the excluded linears of a config that this package wrote: what is in its list beyond the usual patterns."""
    return frozenset(quantization.get("exclude_modules") or ()) - frozenset(EXCLUDE_MODULES)


def hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Hugging Face config.json for a TensorRT-LLM config.json, in the spelling of both transformers 4 and 5."""
    arch = lookup(config["architecture"], where="config.json")
    rotary: dict[str, Any] = {}
    if "rotary_base" in config:
        theta, scaling = config["rotary_base"], config["rotary_scaling"]
        rotary = {
            "rope_theta": theta,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
        }
    fields = {
        "architectures": [config["architecture"]],
        "model_type": arch.model_type,
        "dtype": config["dtype"],
        "torch_dtype": config["dtype"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_key_value_heads"],
        "head_dim": config["head_size"],
        "vocab_size": config.get("trtbuild", {}).get("vocab_size", config["vocab_size"]),
        "max_position_embeddings": config["max_position_embeddings"],
        "hidden_act": config["hidden_act"],
        "rms_norm_eps": config["norm_epsilon"],
        **rotary,
        "tie_word_embeddings": config["tie_word_embeddings"],
        **arch.hf_fields(config),
    }
    return {key: value for key, value in fields.items() if key not in arch.hf_absent}


def layout_of(config: Mapping[str, Any], where: str, quant_cfg: Mapping[str, Any] | None = None) -> Layout:
    """Return the layout that TensorRT-LLM's config.json describes.

    Args:
        config: its content.
        where: its path, for messages.
        quant_cfg: content of quant_cfg.json, for mixed checkpoints.

    Raises:
        TrtbuildError: it says something that this package does not write.
        KeyError: a field is missing.
    """
    arch = lookup(config["architecture"], where=where)
    mapping, quantization = config["mapping"], config["quantization"]
    if mapping.get("cp_size", 1) != 1:
        raise TrtbuildError(
            f"{where}: cp_size = {mapping['cp_size']}: context parallelism is not supported", hint=_HINT
        )
    hidden = config["use_parallel_embedding"] and config.get("embedding_sharding_dim", 0) == 1
    dims = arch.read_dims(hf_config(config), config["architecture"], where)
    try:
        parallel = Parallel(
            mapping["tp_size"],
            mapping["pp_size"],
            moe_ep_size=mapping.get("moe_ep_size", 1),
            vocab_embedding=config["use_parallel_embedding"] and not hidden,
            hidden_embedding=hidden,
        )
        parallel.check(dims)
    except UsageError as error:  # of a file, not of what was typed
        raise TrtbuildError(f"{where}: {error.message}", hint=_HINT) from error
    layers = (quant_cfg or {}).get("quantized_layers", {}) if quantization["quant_algo"] == MIXED else {}
    scheme = load_scheme("none") if layers else read_scheme(quantization, where)
    by_module = {name: read_scheme(entry, where) for name, entry in layers.items()}
    layout = Layout(arch, dims, parallel, scheme, _kv(quantization, where), FROM_CONFIG[config["dtype"]])
    by_module |= dict.fromkeys(overridden(quantization), load_scheme("none"))
    patterns = {
        part.module: by_module[slot.module]
        for slot in layout.slots
        if slot.rule.quantizable and slot.module in by_module
        for part in slot.parts
    }
    layout = replace(layout, overrides=tuple(patterns.items()))
    return replace(layout, parallel=replace(parallel, vocab_multiple=layout.vocab_multiple))


def read_scheme(entry: Mapping[str, Any], where: str, layout: Literal["ranks", "unified"] = "ranks") -> QuantScheme:
    """Return the scheme of an object with `quant_algo` and, where there are groups, `group_size`.

    Raises:
        TrtbuildError: this package writes no such algorithm.
    """
    algo = entry.get("quant_algo")
    scheme = scheme_of_algo(algo, layout=layout, group_size=entry.get("group_size") or 128)
    if scheme is None:
        raise TrtbuildError(f"{where}: quant_algo {algo!r} cannot be read by this version", hint=_HINT)
    return scheme


def _kv(quantization: Mapping[str, Any], where: str) -> KvCacheFormat | None:
    algo = quantization["kv_cache_quant_algo"]
    formats = {kv.quant_algo: kv for kv in KV_CACHE_FORMATS.values() if kv}
    if algo is not None and algo not in formats:
        raise TrtbuildError(f"{where}: kv_cache_quant_algo {algo!r} cannot be read by this version", hint=_HINT)
    return formats[algo] if algo else None
