"""Tokenizer files of a GGUF file with a byte-level BPE vocabulary, as Hugging Face has them.

BOS, EOS, PAD and UNK are those of ChatML whatever the file says, since they decide whether an answer ends; the class name
is one that transformers 4 and 5 both load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.errors import TrtbuildError

#: Token type of control tokens. Source: llama.cpp gguf-py/gguf/constants.py, TokenType.
CONTROL = 3
#: Role -> text of the token. ChatML ends a turn with <|im_end|>; without it generation never stops.
SPECIAL: dict[str, str] = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
#: "tokenizer.ggml.pre" -> pre-tokenizer. Source: llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM; the
#: tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
}


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return file name -> content (JSON value, or text) of the tokenizer.

    Raises:
        TrtbuildError: it is not a byte-level BPE with ChatML's tokens.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise TrtbuildError(
            f"the GGUF file has a tokenizer of kind {kind!r} with pre-tokenizer {pre!r}",
            hint=f"the demo reads gpt2 with one of: {', '.join(PRE_TOKENIZERS)}",
        )
    ids = {text: number for number, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    absent = sorted({text for text in SPECIAL.values() if text not in ids})
    if absent:
        raise TrtbuildError(f"the GGUF file has no token {', '.join(absent)}", hint="the demo needs a ChatML model")
    return {
        "tokenizer.json": _tokenizer(metadata, ids),
        "tokenizer_config.json": {
            "add_prefix_space": False,
            **SPECIAL,
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(metadata["context_length"]),
            "tokenizer_class": "GPT2Tokenizer",
        },
        "special_tokens_map.json": dict(SPECIAL),
        "chat_template.jinja": metadata["tokenizer.chat_template"],
        "generation_config.json": {role.replace("_token", "_token_id"): ids[SPECIAL[role]] for role in _GENERATION},
    }


_GENERATION = ("bos_token", "eos_token", "pad_token")


def _tokenizer(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    control = [
        {
            "id": ids[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for text, kind in zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
        if kind == CONTROL
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": control,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]],
        "post_processor": {**_BYTE_LEVEL, "trim_offsets": False},
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": dict(ids),
            # The one-string form of a merge is read by every release of tokenizers; pairs are not.
            "merges": list(metadata["tokenizer.ggml.merges"]),
        },
    }
