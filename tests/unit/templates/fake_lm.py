"""Cores for the stand-in of Triton that follow a rule from token to token, and check draft tokens as an engine does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tests.unit.templates.triton_stub import InferenceRequest, InferenceResponse, Tensor, TritonError

#: The text so far -> the next token.
Rule = Callable[[Sequence[int]], int]


class RuleCore:
    """A core that generates greedily by a rule.

    Args:
        rule: what comes next.
        reports_end: whether end ids and stop words are part of what it reports, as releases differ.
        logits: vocabulary of the logits that it gives when they are asked for; 0: it gives none.

    Attributes:
        asked: inputs of its requests, stops excluded.
        stops: ids of stop requests.
        before: called before each request is answered.
    """

    def __init__(self, rule: Rule, *, reports_end: bool = False, logits: int = 0) -> None:
        self.rule, self.reports_end, self.logits = rule, reports_end, logits
        self.asked: list[InferenceRequest] = []
        self.stops: list[str] = []
        self.stopped = threading.Event()
        self.before: Callable[[RuleCore], None] = lambda core: None
        self.error: TritonError | None = None

    def __call__(self, request: InferenceRequest, decoupled: bool) -> Any:
        if "stop" in request.tensors:
            self.stops.append(request.request_id())
            self.stopped.set()
            return [InferenceResponse()] if decoupled else InferenceResponse()
        self.asked.append(request)
        self.before(self)
        if self.error is not None:
            response = InferenceResponse(error=self.error)
            return [response] if decoupled else response
        answered = list(self._responses(request))
        return [*answered, InferenceResponse()] if decoupled else answered[0]

    def _responses(self, request: InferenceRequest) -> Iterator[InferenceResponse]:
        values = request.values()
        ids = self.generate(values)
        pieces = [[token] for token in ids] or [[]] if values.get("streaming") == [[True]] else [ids]
        for at, piece in enumerate(pieces):
            yield InferenceResponse(list(self._tensors(values, piece, ids, is_last=at == len(pieces) - 1)))

    def generate(self, values: dict[str, Any]) -> list[int]:
        """Return the tokens of the answer; with draft tokens it ends with the first that is none of them."""
        text, [[count]] = list(values["input_ids"][0]), values["request_output_len"]
        [draft] = values.get("draft_input_ids", [[]])
        end_id, words = values.get("end_id", [[None]])[0][0], _words(values.get("stop_words_list"))
        answer: list[int] = []
        while len(answer) < count:
            token = self.rule([*text, *answer])
            answer.append(token)
            if token == end_id:
                return answer if self.reports_end else answer[:-1]
            ended = [word for word in words if answer[-len(word) :] == word]
            if ended:
                return answer if self.reports_end else answer[: -max(map(len, ended))]
            if draft and (len(answer) > len(draft) or token != draft[len(answer) - 1]):
                break
        return answer

    def _tensors(self, values: dict[str, Any], piece: list[int], ids: list[int], *, is_last: bool) -> Iterator[Tensor]:
        echoes = values["exclude_input_in_output"] != [[True]] and values.get("streaming") != [[True]]
        shown = [*values["input_ids"][0], *piece] if echoes else piece
        yield Tensor("output_ids", np.array(shown, np.int32).reshape(1, 1, -1))
        yield Tensor("sequence_length", np.array([[len(shown)]], np.int32))
        if values.get("return_num_output_tokens") == [[True]]:
            yield Tensor("num_output_tokens", np.array([[len(piece)]], np.int32))
            yield Tensor("num_input_tokens", np.array([[len(values["input_ids"][0])]], np.int32))
        if values.get("return_log_probs") == [[True]]:
            yield Tensor("output_log_probs", -np.array(piece, np.float32).reshape(1, 1, -1))
            yield Tensor("cum_log_probs", -np.array([[sum(piece)]], np.float32))
        if values.get("return_perf_metrics") == [[True]] and is_last:
            numbers = {
                "arrival_time_ns": 10,
                "first_token_time_ns": 20,
                "last_token_time_ns": 30,
                "kv_cache_reused_blocks": 2,
            }
            for name, value in numbers.items():
                yield Tensor(name, np.array([[value + 100 * len(self.asked)]], np.int64))
            yield Tensor("total_draft_tokens", np.array([[99]], np.int32))
            yield Tensor("total_accepted_draft_tokens", np.array([[99]], np.int32))
            yield Tensor("acceptance_rate", np.array([[9.0]], np.float32))
        if values.get("return_generation_logits") == [[True]] and self.logits:
            rows = np.arange(len(ids) * self.logits, dtype=np.float32)
            yield Tensor("generation_logits", rows.reshape(1, 1, len(ids), self.logits))


def _words(values: Any) -> list[list[int]]:
    ids, ends = values[0] if values else ([], [])
    ends = [end for end in ends if end > 0]
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
