"""Loading a tokenizer in a server: from a folder, never from the network, never running code of the model's author; what its ids are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np


def load_tokenizer(folder: str) -> Any:
    """Return the tokenizer of a folder.

    Raises:
        ValueError: the folder is not absolute or does not exist; transformers would look a relative name up on the hub.
    """
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        raise ValueError(f"tokenizer_dir '{folder}' must be an absolute path of an existing folder")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    from transformers import AutoTokenizer  # after the environment is set, which the import reads

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def known_ids(tokenizer: Any, vocab_size: int) -> np.ndarray[Any, Any]:
    """Return which ids the tokenizer has a token for, [vocab_size] bool.

    Embedding tables are often padded: ids behind the last token can be generated, but mean nothing.
    """
    known = np.zeros(vocab_size, dtype=bool)
    ids = np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64)
    known[ids[(ids >= 0) & (ids < vocab_size)]] = True
    return known


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids that `skip_special_tokens` leaves out of a text."""
    return [int(token_id) for token_id, token in tokenizer.added_tokens_decoder.items() if token.special]


def end_ids(tokenizer: Any, folder: Path) -> list[int]:
    """Return the ids that end an answer, the one to use as `end_id` first.

    generation_config.json wins over config.json, which wins over the tokenizer, since a chat model's real end of turn
    is often named in the first only. The tokenizer's own comes first if it is among them.

    Raises:
        ValueError: nothing names one; generation would always run to its limit.
    """
    own = tokenizer.eos_token_id
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if named is not None:
            ids = [int(token_id) for token_id in (named if isinstance(named, list) else [named])]
            return list(dict.fromkeys([own, *ids] if own in ids else ids))
    if own is None:
        raise ValueError(
            f"no end-of-sequence id in {folder}: neither generation_config.json nor the tokenizer names one"
        )
    return [int(own)]
