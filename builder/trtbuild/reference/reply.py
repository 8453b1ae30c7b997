"""Turn the chunks of one answer into the public output tensors, response by response.

A streaming request gets a response per chunk with only the new tokens, any other exactly one with all of them. Either
way there is at least one response, and the statistics asked for come with the last. Does not know Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trtbuild.reference.sequence import Chunk, Sequence
from trtbuild.reference.tensors import CoreRequest

Outputs = dict[str, np.ndarray[Any, Any]]


class Reply:
    """Receives the chunks of one answer (`Engine.submit(on_chunk=...)`) and sends responses.

    Args:
        request: what was asked.
        send: called with the output tensors of each response.
        finish: called once, after the last response, with the request and the error message if there is one.
    """

    def __init__(
        self, request: CoreRequest, send: Callable[[Outputs], None], finish: Callable[[Sequence, str | None], None]
    ) -> None:
        self._request = request
        self._send, self._finish = send, finish
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []
        self._sum_of_log_probs = 0.0
        self._has_sent = False

    def __call__(self, sequence: Sequence, chunk: Chunk) -> None:
        """Take the next chunk."""
        if chunk.error is not None:
            self._finish(sequence, chunk.error)
            return
        self._token_ids += chunk.token_ids
        self._log_probs += chunk.log_probs or []
        is_last = chunk.finish_reason is not None
        if is_last or (self._request.is_streaming and self._token_ids):
            self._respond(self._statistics(sequence) if is_last else {})
        if is_last:
            self._finish(sequence, None)

    def _respond(self, statistics: Outputs) -> None:
        if self._token_ids or statistics or not self._has_sent:
            self._send({**self._tokens(), **statistics})
            self._has_sent = True
        self._token_ids, self._log_probs = [], []

    def _tokens(self) -> Outputs:
        """Return the tokens that were not sent yet: [rows 1, beams 1, tokens], lengths [1, 1]."""
        ids = [*self._request.prompt, *self._token_ids] if self._request.echoes_prompt else self._token_ids
        outputs: Outputs = {
            "output_ids": np.array([[ids]], dtype=np.int32),
            "sequence_length": np.array([[len(ids)]], dtype=np.int32),
        }
        if self._request.batch_index is not None:
            outputs["batch_index"] = np.array([[self._request.batch_index]], dtype=np.int32)
        # As the C++ backend does: in every response, for the tokens of that response.
        if self._request.wants_num_input_tokens:
            outputs["num_input_tokens"] = np.array([[len(self._request.prompt)]], dtype=np.int32)
        if self._request.wants_num_output_tokens:
            outputs["num_output_tokens"] = np.array([[len(self._token_ids)]], dtype=np.int32)
        if self._request.wants_log_probs:
            self._sum_of_log_probs += sum(self._log_probs)
            outputs["output_log_probs"] = np.array([[self._log_probs]], dtype=np.float32)
            outputs["cum_log_probs"] = np.array([[self._sum_of_log_probs]], dtype=np.float32)
        return outputs

    def _statistics(self, sequence: Sequence) -> Outputs:
        request = self._request
        values: dict[str, tuple[float, type[np.generic]]] = {}
        if request.wants_perf_metrics:
            timing, kv = sequence.timing, sequence.kv
            drafted, accepted = len(sequence.draft), sequence.num_accepted
            values = {
                "kv_cache_alloc_new_blocks": (kv.total_blocks - kv.reused_blocks, np.int32),
                "kv_cache_reused_blocks": (kv.reused_blocks, np.int32),
                "kv_cache_alloc_total_blocks": (kv.total_blocks, np.int32),
                "arrival_time_ns": (timing.arrival_ns, np.int64),
                "first_scheduled_time_ns": (timing.first_scheduled_ns or 0, np.int64),
                "first_token_time_ns": (timing.first_token_ns or 0, np.int64),
                "last_token_time_ns": (timing.last_token_ns or 0, np.int64),
                "acceptance_rate": (accepted / drafted if drafted else 0.0, np.float32),
                "total_accepted_draft_tokens": (accepted, np.int32),
                "total_draft_tokens": (drafted, np.int32),
            }
        return {name: np.array([[value]], dtype=dtype) for name, (value, dtype) in values.items()}
