"""A core for the stand-in of Triton: answers with scripted pieces and keeps what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.unit.templates.triton_stub import InferenceRequest, InferenceResponse, Tensor, TritonError


class Core:
    """A core that answers with scripted pieces of tokens and keeps what it was asked.

    Attributes:
        pieces: token ids of each response; a callable is run in place of a response, None is one without tensors.
        asked: inputs of the requests, stops excluded.
        stops: ids of stop requests.
    """

    def __init__(self, pieces: list[Any], **outputs: Any) -> None:
        self.pieces, self.outputs = pieces, outputs
        self.asked: list[InferenceRequest] = []
        self.stops: list[str] = []
        self.stopped = threading.Event()

    def __call__(self, request: InferenceRequest, decoupled: bool) -> Any:
        if "stop" in request.tensors:
            assert {"input_ids", "input_lengths", "request_output_len"} <= request.tensors.keys()
            self.stops.append(request.request_id())
            self.stopped.set()
            return [InferenceResponse()] if decoupled else InferenceResponse()
        self.asked.append(request)
        return self.stream() if decoupled else next(self.stream())

    def stream(self) -> Iterator[InferenceResponse]:
        for piece in self.pieces:
            if callable(piece):
                piece(self)
            elif isinstance(piece, TritonError):
                yield InferenceResponse(error=piece)
            elif piece is None:
                yield InferenceResponse()
            else:
                yield self.response(piece)

    def response(self, ids: list[int], **places: int) -> InferenceResponse:
        values = {"output_ids": [[ids]], "sequence_length": [[len(ids)]], **{k: [[v]] for k, v in places.items()}}
        tensors = [Tensor(name, np.array(value, np.int32)) for name, value in (values | self.outputs).items()]
        tensors[0] = Tensor("output_ids", np.array([[ids]], np.int32).reshape(1, 1, len(ids)))
        return InferenceResponse(tensors)


class Batch(Core):
    """A core whose pieces are (row, sequence, ids)."""

    def response(self, ids: Any, **places: int) -> InferenceResponse:
        row, sequence, tokens = ids
        return super().response(tokens, batch_index=row, sequence_index=sequence)
