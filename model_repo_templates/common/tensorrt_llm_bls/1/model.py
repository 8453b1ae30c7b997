"""Triton model `tensorrt_llm_bls`: text in, exact text out, streamed. Calls preprocessing, the core and postprocessing.

An instance serves one request at a time. It gives the inner request an id of its own, so the text of a stream is put
together right whatever the client sent, and cuts the text at stop words.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from answer import Answers
from cancellation import CancellationWatcher, Watch
from core_request import (
    FROM_CORE,
    FROM_PREPROCESSING,
    TO_CORE,
    TO_PREPROCESSING,
    output,
    renamed_inputs,
    renamed_outputs,
)
from serving import Parameters, RequestError, array, byte_strings, error_response, texts

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

#: Public inputs that need a model this repository does not have.
UNSUPPORTED = {
    "num_draft_tokens": "there is no draft model",
    "use_draft_logits": "there is no draft model",
    "image_input": "multimodal models are not supported",
}


class TritonPythonModel:
    """One instance: serves one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters; a wrong one stops the load with its name."""
        parameters = Parameters(args["model_config"])
        self._core = parameters.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._is_decoupled = parameters.is_decoupled
        self._is_cumulative = parameters.flag("accumulate_tokens", default=False)
        self._excludes_input = parameters.flag("exclude_input_in_output", default=True)
        self._stop_words = parameters.texts("stop_words")
        period_seconds = parameters.number("cancellation_check_period_ms", 100) / 1000
        self._watcher = CancellationWatcher(self._stop, period_seconds=period_seconds)

    def finalize(self) -> None:
        """End the watcher's thread."""
        self._watcher.close()

    def execute(self, requests: list[Any]) -> None:
        """Serve the requests one after the other; each ends with FINAL, whatever happens."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._serve(request, sender)
            except Exception as error:  # the edge of the process: one bad request must not take the others along
                sender.send(error_response(error, "tensorrt_llm_bls"), flags=FINAL)

    def _serve(self, request: Any, sender: Any) -> None:
        """Send the responses to one request, FINAL with the last one or after it."""
        inner_id = uuid.uuid4().hex
        with self._watcher.watching(sender, inner_id) as watch:
            responses = self._responses(request, inner_id, watch)
            if not self._is_decoupled:
                sender.send(pb_utils.InferenceResponse(output_tensors=next(responses)), flags=FINAL)
                return
            for tensors in responses:
                sender.send(pb_utils.InferenceResponse(output_tensors=tensors))
        sender.send(flags=FINAL)

    def _responses(self, request: Any, inner_id: str, watch: Watch) -> Iterator[list[Any]]:
        """Yield the output tensors of each response.

        Raises:
            RequestError: the request is wrong, a model refused it, or its client is gone.
        """
        _check(request)
        prepared = self._call("preprocessing", renamed_inputs(request, TO_PREPROCESSING), FROM_PREPROCESSING)
        excluded = array(request, "exclude_input_in_output")
        excludes_input = self._excludes_input if excluded is None else bool(excluded.all())
        stream = array(request, "stream")
        is_streaming = stream is not None and bool(stream.all())
        if is_streaming and not self._is_decoupled:
            raise RequestError("stream is true, and this deployment answers at once only (serving.streaming: false)")
        lengths = output(prepared, "REQUEST_INPUT_LEN")
        assert lengths is not None  # preprocessing always has it
        words = array(request, "stop_words")
        answers = Answers(
            partial(self._detokenize, inner_id),
            [*self._stop_words, *([] if words is None else texts(words, "stop_words"))],
            is_streaming=is_streaming,
            is_cumulative=self._is_cumulative,
            echoed=[0 if excludes_input or is_streaming else int(length) for length in lengths.reshape(-1)],
        )
        inputs = [
            *renamed_outputs(prepared, FROM_PREPROCESSING),
            *renamed_inputs(request, TO_CORE),
            pb_utils.Tensor("exclude_input_in_output", np.full((len(lengths), 1), excludes_input)),
        ]
        for response in self._generate(inputs, inner_id):
            ids, counts = output(response, "output_ids"), output(response, "sequence_length")
            if ids is None or counts is None or watch.is_cancelled:
                continue
            row, sequence = _index(response, "batch_index"), _index(response, "sequence_index")
            if answers.is_stopped(row=row, sequence=sequence):
                continue
            added = answers.push(ids, counts, row=row, sequence=sequence)
            yield [_text(added), *renamed_outputs(response, {name: name for name in FROM_CORE})]
            if answers.is_stopped(row=row, sequence=sequence) and is_streaming and len(lengths) == 1:
                self._stop(inner_id)
        if watch.is_cancelled:
            raise RequestError("the request was cancelled", pb_utils.TritonError.CANCELLED)
        for (row, sequence), added in answers.rest():
            places = {"batch_index": row, "sequence_index": sequence} if len(lengths) > 1 or sequence else {}
            yield [_text(added), *(pb_utils.Tensor(name, np.array([[at]], np.int32)) for name, at in places.items())]

    def _generate(self, inputs: list[Any], inner_id: str) -> Iterator[Any]:
        """Yield the core's responses to the end."""
        outputs = ["output_ids", "sequence_length", *FROM_CORE]
        inner = pb_utils.InferenceRequest(
            model_name=self._core, request_id=inner_id, inputs=inputs, requested_output_names=outputs
        )
        result = inner.exec(decoupled=self._is_decoupled)
        for response in result if self._is_decoupled else [result]:
            _raise_error(response)
            yield response

    def _stop(self, inner_id: str) -> None:
        """Ask the core to end a request early; it ends as if it were complete."""
        inputs = {
            "input_ids": np.zeros((1, 1), np.int32),
            "input_lengths": np.ones((1, 1), np.int32),
            "request_output_len": np.ones((1, 1), np.int32),
            "stop": np.ones((1, 1), np.bool_),
        }
        inner = pb_utils.InferenceRequest(
            model_name=self._core,
            request_id=inner_id,
            inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
            requested_output_names=["output_ids", "sequence_length"],
        )
        result = inner.exec(decoupled=self._is_decoupled)
        for response in result if self._is_decoupled else [result]:
            if response.has_error():
                pb_utils.Logger.log_warn(f"stopping request {inner_id} failed: {response.error().message()}")

    def _detokenize(
        self, inner_id: str, name: str, ids: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
    ) -> list[str]:
        inputs = [
            pb_utils.Tensor("TOKENS_BATCH", np.ascontiguousarray(ids)),
            pb_utils.Tensor("SEQUENCE_LENGTH", lengths),
        ]
        response = self._call("postprocessing", inputs, ("OUTPUT",), request_id=f"{inner_id}.{name}")
        values = output(response, "OUTPUT")
        assert values is not None  # postprocessing always has it
        return texts(values, "OUTPUT")

    def _call(self, model: str, inputs: list[Any], outputs: Any, *, request_id: str = "") -> Any:
        inner = pb_utils.InferenceRequest(
            model_name=model, request_id=request_id, inputs=inputs, requested_output_names=list(outputs)
        )
        response = inner.exec()
        _raise_error(response)
        return response


def _check(request: Any) -> None:
    """Refuse what this model cannot serve before anything is started for it."""
    for name, reason in UNSUPPORTED.items():
        if array(request, name) is not None:
            raise RequestError(f"{name}: {reason}")
    prompts, limits = array(request, "text_input"), array(request, "max_tokens")
    assert prompts is not None and limits is not None  # Triton refuses a request without them
    if prompts.size != len(prompts) or not all(texts(prompts, "text_input")):
        raise RequestError("text_input must be one text per row that is not empty")
    if limits.size != len(limits) or limits.min() < 1:
        raise RequestError(f"max_tokens is {limits.reshape(-1).tolist()}, need one value of 1 or more")


def _text(added: list[str]) -> Any:
    return pb_utils.Tensor("text_output", byte_strings([added]))


def _index(response: Any, name: str) -> int:
    values = output(response, name)
    return 0 if values is None else int(values.reshape(-1)[0])


def _raise_error(response: Any) -> None:
    if response.has_error():
        raise RequestError(response.error().message(), response.error().code())
