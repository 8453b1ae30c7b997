"""Triton model `postprocessing`: token ids in, text out. Glue only; the work is in the modules beside it.

A request with an id is a piece of the stream of that name and is answered with the text it adds; a request without one
is a whole answer. Either way an unfinished character at the end is not put out, and neither are the ids that end an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import file_names
import numpy as np
import triton_python_backend_utils as pb_utils
from detokenizer import Detokenizer, Streams
from serving import Parameters, RequestError, answer_each, array, byte_strings
from tokenizer import end_ids, known_ids, load_tokenizer, special_ids

MAX_STREAMS = 4096
IDLE_SECONDS = 600.0


class TritonPythonModel:
    """The one instance: a tokenizer and the streams that run."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and read the parameters; a wrong one stops the load with its name."""
        file_names.use_utf8()
        parameters = Parameters(args["model_config"])
        folder = parameters.required_text("tokenizer_dir")
        self._tokenizer = load_tokenizer(folder)
        self._end_ids = frozenset(end_ids(self._tokenizer, Path(folder)))
        self._has_text = known_ids(self._tokenizer, parameters.number("vocab_size"))
        if parameters.flag("skip_special_tokens", default=True):
            self._has_text[
                [token_id for token_id in special_ids(self._tokenizer) if token_id < len(self._has_text)]
            ] = False
        self._streams = Streams(self._new, capacity=MAX_STREAMS, idle_seconds=IDLE_SECONDS)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request, in order; errors stay with their request."""
        return answer_each(requests, self._answer, "postprocessing")

    def _answer(self, request: Any) -> Any:
        tokens, lengths = array(request, "TOKENS_BATCH"), array(request, "SEQUENCE_LENGTH")
        assert tokens is not None and lengths is not None  # Triton refuses a request without them
        if lengths.shape != tokens.shape[:2] or (lengths < 0).any() or (lengths > tokens.shape[2]).any():
            raise RequestError(f"SEQUENCE_LENGTH {lengths.tolist()} does not fit TOKENS_BATCH of shape {tokens.shape}")
        rows, beams = lengths.shape
        ids = [
            [self._text_ids(tokens[row, beam, : lengths[row, beam]]) for beam in range(beams)] for row in range(rows)
        ]
        name = request.request_id()
        answers = [
            [self._detokenizer(name, row, beam).push(ids[row][beam]) for beam in range(beams)] for row in range(rows)
        ]
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT", byte_strings(answers))])

    def _detokenizer(self, name: str, row: int, beam: int) -> Detokenizer:
        return self._streams.of((name, row, beam)) if name else self._new()

    def _new(self) -> Detokenizer:
        return Detokenizer(self._decode, self._end_ids)

    def _text_ids(self, ids: np.ndarray[Any, Any]) -> list[int]:
        """Return the ids that stand for text; padding of the vocabulary and skipped special tokens stand for none.

        Raises:
            RequestError: an id cannot come from this model.
        """
        wrong = ids[(ids < 0) | (ids >= len(self._has_text))]
        if wrong.size:
            raise RequestError(f"token id {wrong[0]} is outside the vocabulary of {len(self._has_text)}")
        return [int(token_id) for token_id in ids[self._has_text[ids]]]

    def _decode(self, ids: Sequence[int]) -> str:
        # Special tokens that are not wanted were dropped before; clean-up would rewrite text that is already out.
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
