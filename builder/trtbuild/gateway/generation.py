"""From what is asked to answers: which requests the server gets, and what their streams say. Knows neither HTTP nor JSON."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from trtbuild.gateway.backend import Abilities, Backend
from trtbuild.gateway.documents import Finished, Piece
from trtbuild.gateway.errors import ApiError, refused, unsupported
from trtbuild.gateway.prompts import Tokenizer
from trtbuild.gateway.requests import Ask
from trtbuild.gateway.settings import Settings
from trtbuild_client import Generation

#: OpenAI's defaults. They are sent, since TensorRT-LLM decodes greedily when it is told nothing, and ignores a temperature
#: that comes without top_k or top_p.
_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
#: The option with which the client cuts an answer.
_CUT = "stop_words"
#: Events that wait for the reader of a stream with several answers, before the server has to wait.
_QUEUE = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to be made: a request of its own to the server, which streams it or not, whatever the caller gets."""

    index: int
    prompt: str
    options: dict[str, Any]
    tensors: dict[str, Any]
    request_id: str
    is_streaming: bool


class Generator:
    """Makes answers.

    Args:
        tokenizer: None leaves chats to the server and tokens uncounted where the server does not count.
    """

    def __init__(self, settings: Settings, backend: Backend, tokenizer: Tokenizer | None) -> None:
        self._settings = settings
        self._backend = backend
        self._tokenizer = tokenizer

    async def choices(self, ask: Ask, request_id: str) -> list[Choice]:
        """Return the requests to send.

        Raises:
            ApiError: this server cannot do what is asked.
            ClientError: the server cannot be asked what it can do.
        """
        if ask.n > self._settings.max_choices:
            raise refused(f"n is {ask.n}, at most {self._settings.max_choices} are allowed", param="n")
        can = await self._backend.abilities()
        self._check(ask, can)
        prompts = ask.prompts or (await self._chat_prompt(ask, can),)
        tensors: dict[str, Any] = {}
        if ask.guide is not None:
            tensors = {"guided_decoding_guide_type": [ask.guide.kind]}
            if ask.guide.text:
                tensors["guided_decoding_guide"] = [ask.guide.text]
        # The part behind the id keeps requests apart whose callers chose the same one.
        stem = f"{request_id}-{secrets.token_hex(4)}"
        return [
            Choice(
                index=index,
                prompt=prompts[index // ask.n],
                options=self._options(ask, can, index % ask.n),
                tensors=tensors,
                request_id=f"{stem}-{index}",
                # The server knows a stop text by some tokens only, so it is looked for here as well, and the answer ended there.
                is_streaming=(ask.is_stream or bool(ask.stop)) and can.can_stream,
            )
            for index in range(ask.answers)
        ]

    async def events(self, choices: list[Choice]) -> AsyncGenerator[Piece | Finished, None]:
        """Yield new texts and ends of all answers as they come; leaving early gives up what is left on the server.

        Raises:
            ApiError, ClientError: an answer failed, and with it the request.
        """
        if len(choices) == 1:
            async with aclosing(self._one(choices[0])) as events:
                async for event in events:
                    yield event
            return
        queue: asyncio.Queue[Piece | Finished | Exception] = asyncio.Queue(_QUEUE)

        async def read(choice: Choice) -> None:
            try:
                async with aclosing(self._one(choice)) as events:
                    async for event in events:
                        await queue.put(event)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.get_running_loop().create_task(read(choice)) for choice in choices]
        left = len(choices)
        try:
            while left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                left -= isinstance(item, Finished)
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, choice: Choice) -> AsyncGenerator[Piece | Finished, None]:
        stream = self._backend.stream(
            choice.prompt,
            choice.options,
            choice.tensors,
            request_id=choice.request_id,
            is_streaming=choice.is_streaming,
        )
        async with stream:
            async for chunk in stream:
                yield Piece(choice.index, chunk.text)
        answer = stream.generation
        if answer.record.outcome == "cancelled":
            raise ApiError(503, "the request was given up", code="cancelled")
        before, after = answer.record.input_tokens, None
        if answer.record.counted_by == "server":
            after = answer.record.output_tokens
        if self._tokenizer is not None:
            if before is None:
                before = await self._tokenizer.count(choice.prompt, is_prompt=True)
            if after is None or (_CUT in choice.options and not choice.is_streaming):
                kept = await self._tokenizer.count(answer.text, is_prompt=False)
                after = kept if after is None else min(after, kept)
        yield Finished(
            index=choice.index,
            text=answer.text,
            reason=_reason(answer, choice, after),
            input_tokens=before,
            output_tokens=after,
            logprobs=await self._logprobs(answer),
        )

    def _check(self, ask: Ask, can: Abilities) -> None:
        if ask.guide is not None and not can.has_guides:
            raise unsupported(
                "response_format: the server has no guided decoding, so that nothing would hold the answer to JSON",
                param="response_format",
            )
        if ask.wants_logprobs and not (can.has_logprobs and self._tokenizer is not None):
            lacking = "a tokenizer folder here" if can.has_logprobs else "log probabilities from the server"
            raise unsupported(f"logprobs need {lacking}", param="logprobs")
        if ask.wants_usage and not can.counts_tokens and self._tokenizer is None:
            raise unsupported(
                "stream_options.include_usage: the server does not count tokens, and the gateway has no tokenizer folder",
                param="stream_options.include_usage",
            )

    async def _chat_prompt(self, ask: Ask, can: Abilities) -> str:
        messages = ask.messages
        if self._tokenizer is not None and self._tokenizer.has_template and not can.applies_template:
            return await self._tokenizer.prompt(messages)
        if not can.applies_template:
            raise unsupported(
                "chats need a chat template: neither the server nor the gateway has one; use /v1/completions",
                param="messages",
            )
        if len(messages) == 1 and messages[0]["role"] == "user":
            return messages[0]["content"]
        raise unsupported(
            "the server applies its chat template to one user message, and takes no other conversation",
            param="messages",
        )

    def _options(self, ask: Ask, can: Abilities, number: int) -> dict[str, Any]:
        """Return the parameters of answer `number` to a prompt, by the client's names."""
        defaults = {name: value for name, value in _DEFAULTS.items() if can.has(name)}
        options: dict[str, Any] = {**defaults, **ask.sampling}
        options["max_tokens"] = ask.max_tokens or self._settings.default_max_tokens
        if ask.stop:
            options[_CUT] = list(ask.stop)
        if ask.seed is not None:
            options["seed"] = ask.seed + number
        elif can.has("seed"):
            options["seed"] = secrets.randbits(63)  # without one, TensorRT-LLM draws the same numbers for every request
        if ask.wants_logprobs:
            options["return_log_probs"] = True
        return options

    async def _logprobs(self, answer: Generation) -> tuple[tuple[str, float], ...] | None:
        """Return the log probabilities beside their tokens; the server gives numbers, the tokenizer the tokens.

        Raises:
            ApiError: they do not fit together. Numbers beside the wrong tokens would be worse than none.
        """
        if answer.log_probs is None or self._tokenizer is None:
            return None
        tokens, values = await self._tokenizer.tokens(answer.text), answer.log_probs
        # An end token, and what a stop text cut off, has a number and is no part of the answer.
        if len(tokens) > len(values) or (len(tokens) < len(values) and answer.finish_reason != "stop"):
            raise ApiError(
                502,
                f"logprobs: the server gave {len(values)} for an answer that the tokenizer cuts into {len(tokens)} tokens",
                code="logprobs_mismatch",
                param="logprobs",
            )
        if len(values) > 1 and not any(values):
            raise unsupported(
                "logprobs: the server gave 0 for every token, as it does for greedy decoding; ask with temperature > 0",
                param="logprobs",
            )
        return tuple(zip(tokens, values, strict=False))


def _reason(answer: Generation, choice: Choice, output_tokens: int | None) -> str:
    """Return why an answer ended; without a count, one token per response is assumed."""
    if answer.finish_reason in ("stop", "length"):
        return answer.finish_reason
    tokens = answer.record.output_tokens if output_tokens is None else output_tokens
    return "length" if tokens >= choice.options["max_tokens"] else "stop"
