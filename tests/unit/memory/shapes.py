"""Models of the sizes that were published, as sparse files with real headers: gigabytes that take kilobytes of disk.

Every shape is typed from the model's own config.json on the Hugging Face hub; the names of tensors are Hugging Face's.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import yaml

GIB = 2**30


def _llama(
    hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, positions: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
        "max_position_embeddings": positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, **more,
    }  # fmt: skip


CONFIGS: dict[str, dict[str, Any]] = {
    "llama2-7b": _llama(4096, 11008, 32, 32, 32, 32000, 4096, torch_dtype="float16"),
    "llama3-8b": _llama(4096, 14336, 32, 32, 8, 128256, 8192),
    "llama3-70b": _llama(8192, 28672, 80, 64, 8, 128256, 8192),
    "llama3-405b": _llama(16384, 53248, 126, 128, 8, 128256, 131072),
    "tinyllama": _llama(2048, 5632, 22, 32, 4, 32000, 2048),
    "llama3-1b": _llama(2048, 8192, 16, 32, 8, 128256, 8192, tie_word_embeddings=True, head_dim=64),
    "mistral-7b": {
        **_llama(4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=4096),
        "architectures": ["MistralForCausalLM"], "model_type": "mistral",
    },
    "qwen1.5-7b": {
        **_llama(4096, 11008, 32, 32, 32, 151936, 32768), "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    },
    "qwen2-0.5b": {
        **_llama(896, 4864, 24, 14, 2, 151936, 32768, tie_word_embeddings=True),
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    },
    "qwen2-1.5b": {
        **_llama(1536, 8960, 28, 12, 2, 151936, 32768, tie_word_embeddings=True),
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    },
    "mixtral-8x7b": {
        **_llama(4096, 14336, 32, 32, 8, 32000, 32768), "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen2.5-7b": {
        **_llama(3584, 18944, 28, 28, 4, 152064, 32768), "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    },
    "gemma3-1b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "sliding_window": 512, "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh", "torch_dtype": "bfloat16",
        "query_pre_attn_scalar": 256,
    },
}  # fmt: skip


def tensors(config: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the name and shape of every tensor of a Llama-like model, Qwen2's biases and Gemma 3's norms included."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    is_gemma, is_qwen = config["model_type"] == "gemma3_text", config["model_type"] == "qwen2"
    found = [("model.embed_tokens.weight", [vocab, hidden])]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, shape in (("q", [q, hidden]), ("k", [kv, hidden]), ("v", [kv, hidden]), ("o", [hidden, q])):
            found.append((f"{prefix}.self_attn.{name}_proj.weight", shape))
            if is_qwen and name != "o":
                found.append((f"{prefix}.self_attn.{name}_proj.bias", shape[:1]))
        experts = config.get("num_local_experts", 0)
        mlp = (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner]))
        if not experts:
            found += [(f"{prefix}.mlp.{name}_proj.weight", shape) for name, shape in mlp]
        else:
            found.append((f"{prefix}.block_sparse_moe.gate.weight", [experts, hidden]))
        for expert in range(experts):
            block = f"{prefix}.block_sparse_moe.experts.{expert}"
            found += [
                (f"{block}.{name}.weight", shape) for name, (_, shape) in zip(("w1", "w3", "w2"), mlp, strict=True)
            ]
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if is_gemma else []
        found += [(f"{prefix}.{name}.weight", [hidden]) for name in norms]
        if is_gemma:
            found += [(f"{prefix}.self_attn.{name}_norm.weight", [dim]) for name in ("q", "k")]
    found.append(("model.norm.weight", [hidden]))
    if not config.get("tie_word_embeddings", is_gemma):
        found.append(("lm_head.weight", [vocab, hidden]))
    return found


def write_sparse(file: Path, entries: list[tuple[str, list[int]]], dtype: str) -> None:
    """Write a safetensors file whose data is a hole."""
    header, position = {}, 0
    for name, shape in entries:
        size = 2
        for axis in shape:
            size *= axis
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    encoded = json.dumps(header).encode()
    with file.open("wb") as handle:
        handle.write(struct.pack("<Q", len(encoded)) + encoded)
        handle.truncate(8 + len(encoded) + position)


def write_model(folder: Path, name: str, **changes: Any) -> Path:
    """Write a model folder by its name in `CONFIGS`, with token ids to calibrate on beside it."""
    config = {**CONFIGS[name], **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    dtype = {"float16": "F16", "bfloat16": "BF16"}[config["torch_dtype"]]
    write_sparse(folder / "model.safetensors", tensors(config), dtype)
    return folder


def write_ids(file: Path) -> Path:
    """Write 2 x 8 token ids: what a scheme that calibrates needs to be planned."""
    header = {"input_ids": {"dtype": "I64", "shape": [2, 8], "data_offsets": [0, 128]}}
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + struct.pack("<16q", *range(16)))
    return file


def write_deployment(file: Path, model: Path, **sections: Any) -> Path:
    """Write a trtbuild.yaml for an engine; the keyword arguments are its sections."""
    data: dict[str, Any] = {"model": {"path": str(model)}, "target": "tensorrt", **sections}
    quantization = dict(data.get("quantization", {}))
    quantization["calibration"] = {"file": str(write_ids(file.with_suffix(".ids.safetensors")))}
    data["quantization"] = quantization
    file.write_text(yaml.safe_dump(data))
    return file
