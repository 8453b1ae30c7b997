"""Whether a folder holds a tokenizer that a server can load: offline, without running code of the model's author."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.safetensors_file import refuse_lfs_pointer
from trtbuild.source import TOKENIZER_ANY, TOKENIZER_FILES, read_json

CHAT_TEMPLATE = "chat_template.jinja"


def check_tokenizer(folder: Path, *, chat_template: bool, has_config: bool = True) -> None:
    """Check a tokenizer folder by its files.

    Args:
        folder: the folder.
        chat_template: whether a chat template is needed.
        has_config: a config.json there will be there for the server, too; rank files take the tokenizer's own files along, no other.

    Raises:
        UsageError: it has no chat template where one is needed.
        TrtbuildError: the folder is missing or no tokenizer, needs remote code, or names no end-of-sequence token.
    """
    if not folder.is_dir():
        raise TrtbuildError(
            f"the tokenizer folder {folder} does not exist",
            hint="convert the model again; a name that is no folder would be looked up on the hub by the server",
        )
    present = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not any(name in TOKENIZER_ANY for name in present):
        raise TrtbuildError(
            f"{folder} holds no tokenizer: none of {', '.join(TOKENIZER_ANY)}",
            hint="put the model's tokenizer files there, or convert a model folder that has them",
        )
    for name in present:
        refuse_lfs_pointer(folder / name)
    config = read_json(folder / "tokenizer_config.json") if "tokenizer_config.json" in present else {}
    _refuse_remote_code(folder, config)
    if chat_template and not _has_chat_template(folder, config):
        raise UsageError(
            f"serving.chat_template is on, and {folder} has no chat template ({CHAT_TEMPLATE} or tokenizer_config.json)",
            hint=f"put the model's template there as {CHAT_TEMPLATE}, or set serving.chat_template: false",
        )
    if not _names_end(folder, config, has_config=has_config):
        raise TrtbuildError(
            f"no end-of-sequence token is named in {folder}: every answer would run to max_tokens",
            hint="add eos_token to tokenizer_config.json, or eos_token_id to generation_config.json",
        )


def _refuse_remote_code(folder: Path, config: dict[str, Any]) -> None:
    if "auto_map" in config:
        raise TrtbuildError(
            f"the tokenizer in {folder} needs code of its author (auto_map: {config['auto_map']})",
            hint="trtbuild runs no such code; save the tokenizer as tokenizer.json without it",
        )


def _has_chat_template(folder: Path, config: dict[str, Any]) -> bool:
    """Look where transformers looks: the file, then the configuration, where it is a text or a list of named ones."""
    if (folder / CHAT_TEMPLATE).is_file():
        return True
    inline = config.get("chat_template")
    if isinstance(inline, list):
        named = (entry for entry in inline if isinstance(entry, dict))
        return any(entry.get("name") == "default" and entry.get("template") for entry in named)
    return bool(inline)


def _names_end(folder: Path, config: dict[str, Any], *, has_config: bool) -> bool:
    named = [config.get("eos_token")]
    places = [("special_tokens_map.json", "eos_token"), ("generation_config.json", "eos_token_id")]
    for name, key in [*places, *([("config.json", "eos_token_id")] if has_config else [])]:
        if (folder / name).is_file():
            named.append(read_json(folder / name).get(key))
    return any(value not in (None, "", []) for value in named)
