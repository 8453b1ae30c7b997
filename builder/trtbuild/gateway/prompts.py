"""The tokenizer folder: chats to prompts, numbers of tokens, tokens of an answer. Works in one thread beside the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from trtbuild.errors import TrtbuildError
from trtbuild.gateway.errors import refused, unsupported
from trtbuild.gateway.shipped import RequestError, chat_template

T = TypeVar("T")


class Tokenizer:
    """The tokenizer of a model, and its chat template if it has one.

    One thread does the work, so that neither a long template nor a long text stops streams; a template is bounded in time
    and size by the code that renders it.

    Args:
        folder: of the tokenizer.

    Raises:
        TrtbuildError: it cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load(folder)
        try:
            self._template = chat_template().of(self._tokenizer, folder, system_prompt="")
        except ValueError:  # it has none: completions and counting work all the same
            self._template = None
        except Exception as error:  # Jinja's syntax errors, which only its module names
            raise TrtbuildError(
                f"the chat template of {folder} cannot be used: {error}", hint="Repair chat_template.jinja."
            ) from error
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="gateway-tokenizer")

    @property
    def has_template(self) -> bool:
        """Whether chats can be made prompts."""
        return self._template is not None

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt of a chat.

        Raises:
            ApiError: the template refuses it.
        """
        assert self._template is not None
        try:
            return await self._do(lambda: str(self._template.render_messages(messages)))
        except RequestError as error:
            raise refused(str(error), param="messages") from None

    async def count(self, text: str, *, is_prompt: bool) -> int:
        """Return the number of tokens of a text."""
        return await self._do(lambda: len(self._ids(text, is_prompt=is_prompt)))

    async def tokens(self, text: str) -> list[str]:
        """Return the tokens of an answer as texts that joined give it; of a character cut over tokens, the first has it all.

        Raises:
            ApiError: this kind of tokenizer does not say where its tokens lie.
        """
        if not self._tokenizer.is_fast:
            raise unsupported(
                "logprobs need a tokenizer.json: this tokenizer cannot place its tokens", param="logprobs"
            )

        def cut() -> list[str]:
            spans = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            ends = [end for _, end in spans[:-1]] + [len(text)] * bool(spans)
            pieces, at = [], 0
            for end in ends:
                pieces.append(text[at:end])
                at = max(at, end)
            return pieces

        return await self._do(cut)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _ids(self, text: str, *, is_prompt: bool) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=is_prompt)["input_ids"])


def _load(folder: Path) -> Any:
    if not folder.is_dir():
        raise TrtbuildError(f"--tokenizer {folder} is no folder", hint="Give the folder of the model or its tokenizer.")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TrtbuildError(
            "a tokenizer folder needs transformers, which is not installed", hint="pip install 'trtbuild[gateway]'"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(str(folder.resolve()), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise TrtbuildError(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__})",
            hint="The folder needs tokenizer.json and tokenizer_config.json.",
        ) from error
