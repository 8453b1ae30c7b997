"""config.json and weights of a Llama model in a GGUF file, as Hugging Face has them.

Knows llama.cpp's names and its order of the rows of q and k. Reads with the `gguf` package; needs neither torch nor
transformers, whose own importer reads the metadata three times and takes four times as long. Refuses what it does not
know instead of guessing: another architecture, scaled RoPE, a tensor it has no name for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.convert.writer import RankWriter
from trtbuild.errors import TrtbuildError
from trtbuild.layout import StoredTensor

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray

#: GGUF name -> Hugging Face name. Source: llama.cpp gguf-py/gguf/constants.py (MODEL_ARCH.LLAMA) and tensor_mapping.py.
TOP: dict[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER: dict[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Projection whose rows llama.cpp stores in pairs -> the metadata key of its number of heads.
INTERLEAVED: dict[str, str] = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


def read_gguf(file: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """Open a GGUF file; returns the reader and the metadata, with "llama." left off its keys.

    Raises:
        TrtbuildError: `gguf` is not installed, the file is no GGUF or is cut off, or it is no plain Llama.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise TrtbuildError(
            "reading a GGUF file needs the Python package gguf, which is not installed",
            hint="install it: pip install 'trtbuild[build]', or pip install gguf",
        ) from error
    try:
        reader = GGUFReader(file)
    except OSError as error:
        raise TrtbuildError(f"cannot read {file}: {error.strerror}", hint="check the path") from error
    except (ValueError, IndexError, KeyError) as error:
        raise TrtbuildError(f"{file} is not a whole GGUF file: {error}", hint="fetch it again") from error
    metadata = {name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise TrtbuildError(
            f"{file} holds the architecture {architecture!r}", hint="the demo reads GGUF files of Llama"
        )
    scaled = [name for name in metadata if name.startswith("rope.scaling.")]
    if scaled:
        raise TrtbuildError(f"{file} has scaled RoPE ({scaled[0]})", hint="the demo reads GGUF files with plain RoPE")
    return reader, metadata


def config(reader: GGUFReader, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json without its token ids, readable by transformers 4 and 5 alike.

    RoPE is given both as `rope_parameters` (5) and as top-level `rope_theta` (4, TensorRT-LLM), the dtype both as `dtype` and
    as `torch_dtype`.
    """
    heads = int(metadata["attention.head_count"])
    theta = float(metadata.get("rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": int(metadata["embedding_length"]) // heads,
        "hidden_act": "silu",
        "hidden_size": int(metadata["embedding_length"]),
        "intermediate_size": int(metadata["feed_forward_length"]),
        "max_position_embeddings": int(metadata["context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(metadata["block_count"]),
        "num_key_value_heads": int(metadata.get("attention.head_count_kv", heads)),
        # Stored as float32; its shortest decimal is the number that was meant (1e-05, not 9.99999975e-06).
        "rms_norm_eps": _shortest(metadata["attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
    }


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a tensor.

    Raises:
        TrtbuildError: there is none.
    """
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    raise TrtbuildError(
        f"GGUF tensor {name} has no place in a Llama model", hint="the demo reads plain Llama files only"
    )


def write_weights(reader: GGUFReader, metadata: Mapping[str, Any], path: Path) -> None:
    """Write all tensors, dequantized and rounded to bfloat16 (half to even), as one safetensors file.

    Memory: one tensor in float32 and bfloat16.
    """
    from gguf import dequantize
    from ml_dtypes import bfloat16

    shapes = {hf_name(tensor.name): tuple(int(size) for size in reversed(tensor.shape)) for tensor in reader.tensors}
    writer = RankWriter(path, [StoredTensor(name, "BF16", shape) for name, shape in shapes.items()], done={})
    try:
        for tensor in reader.tensors:
            values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            if kind in INTERLEAVED:
                values = uninterleave(values, int(metadata[INTERLEAVED[kind]]))
            writer.append(hf_name(tensor.name), values.astype(bfloat16))
        writer.finish()
    finally:
        writer.close()


def uninterleave(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of each head from llama.cpp's order (x0 y0 x1 y1 ...) into Hugging Face's (x0 x1 ... y0 y1 ...).

    Args:
        weight: [heads * head_dim, in], f32.
        heads: number of heads of the projection.
    """
    rows, columns = weight.shape
    pairs: NDArray[np.float32] = weight.reshape(heads, rows // heads // 2, 2, columns)
    ordered: NDArray[np.float32] = pairs.swapaxes(1, 2).reshape(rows, columns)
    return ordered


def _shortest(value: float) -> float:
    import numpy as np

    return float(str(np.float32(value)))
