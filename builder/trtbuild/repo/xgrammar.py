"""The file that tells XGrammar what a tokenizer's tokens are; the C++ backend reads it for guided decoding."""

from __future__ import annotations

from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.source import read_json

#: Keys that the backend reads (Triton specification 1.8).
KEYS = ("encoded_vocab", "tokenizer_str", "stop_token_ids")


def check_tokenizer_info(file: Path) -> None:
    """Check that a file has what the backend reads.

    Raises:
        TrtbuildError: it is missing, no JSON, or lacks a key.
    """
    hint = "make it from the tokenizer as the guided decoding page of TensorRT-LLM says"
    if not file.is_file():
        raise TrtbuildError(f"serving.xgrammar_tokenizer_info: {file} does not exist", hint=hint)
    missing = [key for key in KEYS if key not in read_json(file)]
    if missing:
        raise TrtbuildError(f"serving.xgrammar_tokenizer_info: {file} has no {', '.join(missing)}", hint=hint)
