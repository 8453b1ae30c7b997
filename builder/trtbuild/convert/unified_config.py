"""The JSON files of a unified Hugging Face folder: config.json, hf_quant_config.json, the index, and the tokenizer's repairs.

What TensorRT-LLM <= 1.2 (transformers 4) cannot read of a folder that transformers 5 wrote is written in the older spelling too; nothing
is taken away that a newer reader needs. Knows no tensors' contents.
Source: unified checkpoint specification 2.1, 2.2, 4.2, 5.1 and 7.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtbuild import __version__
from trtbuild.dtypes import TO_CONFIG
from trtbuild.quant.scheme import Form
from trtbuild.rank_config import QUANT_CFG, layer_entry
from trtbuild.safetensors_file import refuse_lfs_pointer
from trtbuild.source import INDEX, SourceCheckpoint, read_json
from trtbuild.unified_layout import QUANT_CONFIG, SINGLE, UnifiedLayout

#: Class names of transformers 5 -> one that both lines know (4.2).
_TOKENIZER_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}
_TOKENIZER_CONFIG, _GENERATION = "tokenizer_config.json", "generation_config.json"
#: Keys of a rotary block that are top-level fields in transformers 4.
_ROTARY_FIELDS = ("rope_theta", "partial_rotary_factor")
#: Kind of layer -> top-level field of its base in transformers 4 (Gemma 3).
_THETA_BY_KIND = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
#: Names of the number of layers in config.json.
_LAYER_COUNTS = ("num_hidden_layers", "n_layer")
_PRODUCER = {"name": "trtbuild", "version": __version__}


def hf_quant_config(unified: UnifiedLayout) -> dict[str, Any] | None:
    """Return what hf_quant_config.json says, None when nothing is quantized (2.1)."""
    kv_format, form = unified.layout.kv_format, unified.form
    if unified.quant_algo is None and kv_format is None:
        return None
    layers = _layers(unified)
    return {
        "producer": _PRODUCER,
        "quantization": {
            "quant_algo": unified.quant_algo,
            "kv_cache_quant_algo": kv_format.quant_algo if kv_format else None,
            **({"quantized_layers": layers} if unified.layout.is_mixed else form.config),
            "exclude_modules": unified.exclude_modules,
        },
    }


def quantization_config(unified: UnifiedLayout) -> dict[str, Any] | None:
    """Return `quantization_config` of config.json, None when nothing is quantized (2.2)."""
    if hf_quant_config(unified) is None:
        return None
    form, is_mixed = unified.form, unified.layout.is_mixed
    groups = (
        _groups(unified)
        if is_mixed
        else {"group_0": {**form.description, "targets": ["Linear"]}}
        if form.is_described_alone
        else None
    )
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"} if unified.layout.kv_format else None
    return {
        **({"config_groups": groups} if groups else {}),
        **({"quantized_layers": _layers(unified)} if is_mixed else {}),
        "ignore": unified.exclude_modules,
        "quant_algo": unified.quant_algo,
        **({"kv_cache_scheme": scheme} if scheme else {}),
        "producer": _PRODUCER,
        "quant_method": "modelopt",
    }


def _layers(unified: UnifiedLayout) -> dict[str, Any]:
    """Return the entry of every quantized linear."""
    return {weight.part.module: layer_entry(weight.form) for weight in unified.weights if weight.form}


def _groups(unified: UnifiedLayout) -> dict[str, Any]:
    """Return `config_groups` of linears with several schemes: those of one scheme are a group, named one by one."""
    modules: dict[Form, list[str]] = {}
    for weight in unified.weights:
        if weight.form:
            modules.setdefault(weight.form, []).append(weight.part.module)
    return {
        f"group_{number}": {**(form.description or {"quant_algo": form.quant_algo}), "targets": sorted(found)}
        for number, (form, found) in enumerate(modules.items())
    }


def config(source: Mapping[str, Any], unified: UnifiedLayout) -> dict[str, Any]:
    """Return config.json: the source's own, with dtype and quantization of what is written, in the spelling of both transformers.

    Args:
        source: config.json of the source; the fields of a nested text model are on top already.
        unified: what is written.
    """
    dtype = TO_CONFIG[unified.layout.dtype]
    kept = {key: value for key, value in source.items() if key not in ("text_config", "quantization_config")}
    quantization = quantization_config(unified)
    return {
        **_first_layers(kept, unified.layout.dims.num_layers),
        **{key: value for key, value in rotary_fields(source).items() if source.get(key) is None},
        "architectures": [unified.layout.dims.architecture],
        "dtype": dtype,
        "torch_dtype": dtype,
        **({"quantization_config": quantization} if quantization else {}),
    }


def _first_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return a config of the first layers: a trial converts no more of them."""
    kinds = config.get("layer_types")
    return {
        **config,
        **{key: layers for key in _LAYER_COUNTS if key in config},
        **({"layer_types": kinds[:layers]} if isinstance(kinds, list) else {}),
    }


def rotary_fields(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the top-level fields that say in transformers 4 what `rope_parameters` says in transformers 5."""
    block = source.get("rope_parameters")
    if not isinstance(block, Mapping):
        return {}
    kinds = {kind: block[kind] for kind in _THETA_BY_KIND if isinstance(block.get(kind), Mapping)}
    fields = {
        _THETA_BY_KIND[kind]: settings["rope_theta"] for kind, settings in kinds.items() if "rope_theta" in settings
    }
    main = kinds.get("full_attention", {}) if kinds else block
    fields |= {key: main[key] for key in _ROTARY_FIELDS if key in main}
    if main.get("rope_type", "default") != "default":
        # Read back by transformers 5, this block replaces rope_parameters: it must lose nothing.
        fields["rope_scaling"] = {key: value for key, value in main.items() if key != "rope_theta"}
    return fields


def index(unified: UnifiedLayout) -> dict[str, Any]:
    """Return model.safetensors.index.json."""
    return {"metadata": {"total_size": unified.nbytes}, "weight_map": dict(sorted(unified.file_of.items()))}


def write_beside(source: SourceCheckpoint, unified: UnifiedLayout, folder: Path) -> None:
    """Write everything but the tensors and the manifest.

    Raises:
        TrtbuildError: a file of the source's tokenizer cannot be used.
    """
    write_json(folder / "config.json", config(source.config, unified))
    quantization = hf_quant_config(unified)
    if quantization is not None:
        write_json(folder / QUANT_CONFIG, quantization)
        if unified.layout.is_mixed:  # releases around 1.0 insist on a file of their own (2.3)
            write_json(folder / QUANT_CFG, quantization["quantization"])
    if list(unified.files) != [SINGLE]:
        write_json(folder / INDEX, index(unified))
    write_tokenizer(source, folder)


def write_tokenizer(source: SourceCheckpoint, folder: Path) -> None:
    """Write tokenizer and generation settings, repaired where transformers 4 needs it.

    Raises:
        TrtbuildError: a file of the source's tokenizer cannot be used.
    """
    files = source.tokenizer_files()
    if not files and (source.path / _GENERATION).is_file():
        refuse_lfs_pointer(source.path / _GENERATION)
        files = [source.path / _GENERATION]
    for file in files:
        given = read_json(file) if file.name == _TOKENIZER_CONFIG else {}
        if (repaired := tokenizer_config(given)) != given:
            write_json(folder / file.name, repaired)
        else:
            shutil.copyfile(file, folder / file.name)


def tokenizer_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json that transformers 4 loads as well: class name and list of special tokens in the older spelling."""
    repaired = dict(given)
    name = repaired.get("tokenizer_class")
    if isinstance(name, str):
        repaired["tokenizer_class"] = _TOKENIZER_CLASSES.get(name, name)
    if isinstance(repaired.get("extra_special_tokens"), list):
        extra = repaired.pop("extra_special_tokens")
        repaired.setdefault("additional_special_tokens", extra)
    return repaired


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of a folder under construction."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
