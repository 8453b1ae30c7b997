"""A GGUF file of a two-layer Llama with a byte-level vocabulary, written with the `gguf` package, and what it should become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, LAYERS = 64, 4, 2, 16, 96, 2
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]


def vocabulary() -> list[str]:
    """Return control tokens, the 256 byte tokens and the results of the merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]
    return [*CONTROL_TOKENS, *characters, *(merge.replace(" ", "") for merge in MERGES)]


def hf_weights(seed: int = 0, *, tied: bool = True) -> dict[str, NDArray[np.float32]]:
    """Return Hugging Face names -> random weights that bfloat16 represents exactly."""
    random = np.random.default_rng(seed)
    vocab, q, kv = len(vocabulary()), HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        part = {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (q, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, q), "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
            "mlp.down_proj": (HIDDEN, WIDE),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in part.items()}
    return {n: random.standard_normal(s).astype(ml_dtypes.bfloat16).astype(np.float32) for n, s in shapes.items()}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name, from its own table."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found is not None, name
    return found


def interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return the rows in llama.cpp's order, one row at a time: row i and row i + half of a head become neighbours."""
    size = weight.shape[0] // heads
    rows = []
    for head in range(heads):
        for pair in range(size // 2):
            rows += [weight[head * size + pair], weight[head * size + size // 2 + pair]]
    return np.stack(rows)


def write(
    path: Path, weights: dict[str, NDArray[np.float32]], *, quantize: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Write the file.

    Args:
        path: the file.
        weights: Hugging Face names -> weights.
        quantize: Hugging Face name -> GGUF type; others are stored as F32.
        **changes: "architecture", "pre", "tokens", "extra_tensor" or "rope_scaling" replace what is written.
    """
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    if "rope_scaling" in changes:
        writer.add_rope_scaling_type(changes["rope_scaling"])
    tokens = changes.get("tokens", vocabulary())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL_TOKENS else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)  # wrong on purpose, as in files seen in the wild
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in weights.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        stored = interleaved(weight, heads) if heads else weight
        kind = (quantize or {}).get(name)
        data = gguf.quantize(stored, kind) if kind is not None else stored
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    if "extra_tensor" in changes:
        writer.add_tensor(changes["extra_tensor"], np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
