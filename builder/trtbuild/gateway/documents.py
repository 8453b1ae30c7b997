"""OpenAI's objects, made of answers. https://platform.openai.com/docs/api-reference/chat/object and .../completions/object"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of one answer."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one answer.

    Attributes:
        text: all of it.
        reason: "stop" or "length".
        input_tokens, output_tokens: None when nobody counted.
        logprobs: (token, log probability) in order, None unless asked for.
    """

    index: int
    text: str
    reason: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    logprobs: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Documents:
    """Makes the objects of one request.

    Attributes:
        created: seconds since 1970.
        n: answers per prompt; answers to one prompt count its tokens once.
        wants_usage: a stream ends with the usage, and says null before.
    """

    id: str
    created: int
    model: str
    is_chat: bool
    n: int = 1
    wants_usage: bool = False

    def whole(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the object of a whole answer; `usage` is null when nobody counted."""
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(each) for each in answers],
            "usage": self.usage(answers),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the first event of one answer of a chat, which names the role; completions have none."""
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) if self.is_chat else None

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Return the event of new text."""
        return self._chunk(piece.index, {"delta": {"content": piece.text}} if self.is_chat else {"text": piece.text})

    def ending(self, answer: Finished) -> dict[str, Any]:
        """Return the last event of one answer; log probabilities come here, all together."""
        body: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return self._chunk(answer.index, body, reason=answer.reason, logprobs=self._logprobs(answer))

    def usage_event(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the event before the end of a stream that holds the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage(answers)}

    def usage(self, answers: Sequence[Finished]) -> dict[str, int] | None:
        """Return the numbers of tokens, None when nobody counted them."""
        prompts: dict[int, int | None] = {each.index // self.n: each.input_tokens for each in answers}
        given = [*prompts.values(), *(each.output_tokens for each in answers)]
        if any(number is None for number in given):
            return None
        before = sum(number or 0 for number in prompts.values())
        after = sum(each.output_tokens or 0 for each in answers)
        return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def _chunk(
        self, index: int, body: Mapping[str, Any], *, reason: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, **body, "logprobs": logprobs, "finish_reason": reason}
        return {
            **self._head("chat.completion.chunk"),
            "choices": [choice],
            **({"usage": None} if self.wants_usage else {}),
        }

    def _choice(self, answer: Finished) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        body: dict[str, Any] = {"message": message} if self.is_chat else {"text": answer.text}
        return {"index": answer.index, **body, "logprobs": self._logprobs(answer), "finish_reason": answer.reason}

    def _logprobs(self, answer: Finished) -> dict[str, Any] | None:
        if answer.logprobs is None:
            return None
        if self.is_chat:
            return {
                "content": [
                    {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
                    for token, value in answer.logprobs
                ],
                "refusal": None,
            }
        offsets, position = [], 0
        for token, _ in answer.logprobs:
            offsets.append(position)
            position += len(token)
        return {
            "tokens": [token for token, _ in answer.logprobs],
            "token_logprobs": [value for _, value in answer.logprobs],
            "top_logprobs": None,
            "text_offset": offsets,
        }
