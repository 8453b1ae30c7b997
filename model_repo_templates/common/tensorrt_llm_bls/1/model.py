"""Triton model `tensorrt_llm_bls`: text in, exact text out, streamed. Calls preprocessing, the core and postprocessing.

An instance serves one request at a time. It gives the inner request an id of its own, so the text of a stream is put
together right whatever the client sent, and cuts the text at stop words.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator, Iterator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from answer import Answers
from cancellation import CancellationWatcher, Watch
from core_request import (
    FROM_PREPROCESSING,
    TO_CORE,
    TO_PREPROCESSING,
    output,
    renamed_inputs,
    renamed_outputs,
)
from limits import LIMITS, check_numbers
from serving import Parameters, RequestError, array, byte_strings, error_response, texts
from speculation import Asked, Speculation, asked_of

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

#: Public inputs that need a model this repository does not have.
UNSUPPORTED = {
    "image_input": "multimodal models are not supported",
}


class TritonPythonModel:
    """One instance: serves one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters; a wrong one stops the load with its name."""
        parameters = Parameters(args["model_config"])
        #: Outputs of the core that are outputs of this model too; which there are is the release's affair.
        self._from_core = [name for name in parameters.outputs if name != "text_output"]
        self._core = parameters.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._draft = parameters.text("tensorrt_llm_draft_model_name")
        self._max_draft_len = parameters.number("max_draft_len", 0)
        self._has_draft_logits = parameters.flag("draft_logits", default=True)
        self._seed_name = "random_seed" if "random_seed" in parameters.inputs else "seed"
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
        """Send the responses to one request, FINAL with the last one or after it.

        FINAL is sent when the request is no longer watched: the server (24.10) may die of a question about a request
        that has ended.
        """
        last = None
        with self._watcher.watching(sender, uuid.uuid4().hex) as watch:
            for tensors in self._responses(request, watch):
                response = pb_utils.InferenceResponse(output_tensors=tensors)
                if self._is_decoupled:
                    sender.send(response)
                else:
                    last = response
        if last is None:
            sender.send(flags=FINAL)
        else:
            sender.send(last, flags=FINAL)

    def _responses(self, request: Any, watch: Watch) -> Iterator[list[Any]]:
        """Yield the output tensors of each response.

        Raises:
            RequestError: the request is wrong, a model refused it, or its client is gone.
        """
        _check(request)
        asked = asked_of(request, draft_model=self._draft, most=self._max_draft_len, has_logits=self._has_draft_logits)
        inputs = self._prepare(request)
        answers = self._answers(request, inputs, watch)
        generated = self._generate(inputs, watch) if asked is None else self._speculate(asked, inputs, watch)
        try:
            for response in generated:
                tensors = (
                    None if watch.is_cancelled or answers.are_stopped else _tensors(answers, response, self._from_core)
                )
                if tensors is not None:
                    yield tensors
                    if answers.are_stopped:
                        self._stop(watch)
        finally:
            if (
                getgeneratorstate(generated) != GEN_CLOSED
            ):  # it has not come to its end, and nobody wants the rest any more
                self._stop(watch)
                deque(generated, maxlen=0)
        if watch.is_cancelled:
            raise RequestError("the request was cancelled", pb_utils.TritonError.CANCELLED)
        yield from _rest(answers)

    def _prepare(self, request: Any) -> list[Any]:
        """Return the core's inputs: what preprocessing makes, and what is handed on."""
        prepared = self._call("preprocessing", renamed_inputs(request, TO_PREPROCESSING), FROM_PREPROCESSING)
        excluded = array(request, "exclude_input_in_output")
        rows = len(array(request, "max_tokens"))  # type: ignore[arg-type]  # Triton refuses a request without it
        if excluded is None:
            excluded = np.full((rows, 1), self._excludes_input)
        return [
            *renamed_outputs(prepared, FROM_PREPROCESSING),
            *renamed_inputs(request, TO_CORE),
            pb_utils.Tensor("exclude_input_in_output", excluded),
        ]

    def _answers(self, request: Any, inputs: list[Any], watch: Watch) -> Answers:
        """Return the answers to be, still empty."""
        core = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        words, sequences = array(request, "stop_words"), array(request, "num_return_sequences")
        is_streaming = bool(core["streaming"].all()) if "streaming" in core else False
        if is_streaming and not self._is_decoupled:
            raise RequestError("stream is true, and this deployment answers at once only (serving.streaming: false)")
        is_echoed = not is_streaming and not core["exclude_input_in_output"].all()
        return Answers(
            partial(self._detokenize, watch.inner_id),
            [*self._stop_words, *([] if words is None else texts(words, "stop_words"))],
            is_streaming=is_streaming,
            is_cumulative=self._is_cumulative,
            echoed=[int(length) if is_echoed else 0 for length in core["input_lengths"].reshape(-1)],
            sequences=1 if sequences is None else int(sequences.max()),
        )

    def _generate(self, inputs: list[Any], watch: Watch) -> Generator[Any, None, None]:
        """Yield the core's responses to the end, then raise the error among them, if any."""
        yield from self._ask(watch, self._core, inputs, ["output_ids", "sequence_length", *self._from_core])

    def _speculate(self, asked: Asked, inputs: list[Any], watch: Watch) -> Generator[Any, None, None]:
        """Yield the same with the help of the draft model."""
        speculation = Speculation(
            asked,
            {tensor.name(): tensor.as_numpy() for tensor in inputs},
            seed_name=self._seed_name,
            ask_draft=partial(self._ask, watch, self._draft),
            ask_target=partial(self._ask, watch, self._core),
            outputs=self._from_core,
        )
        yield from speculation.responses(lambda: watch.is_stopped)

    def _ask(self, watch: Watch, model: str, inputs: list[Any], outputs: list[str]) -> Generator[Any, None, None]:
        """Yield a model's responses to the end, then raise the error among them, if any."""
        inner = pb_utils.InferenceRequest(
            model_name=model, request_id=watch.begin(model), inputs=inputs, requested_output_names=outputs
        )
        errors = []
        for response in self._exec(inner, watch.sender):
            if response.has_error():
                errors.append(response)
            elif not errors:
                yield response
        watch.running = None
        for response in errors:
            _raise_error(response)

    def _stop(self, watch: Watch) -> None:
        """Ask the model that works on a request to end it early; it ends as if it were complete."""
        watch.is_stopped = True
        running = watch.running
        if running is None:
            return
        model, inner_id = running
        inputs = {
            "input_ids": np.zeros((1, 1), np.int32),
            "input_lengths": np.ones((1, 1), np.int32),
            "request_output_len": np.ones((1, 1), np.int32),
            "stop": np.ones((1, 1), np.bool_),
        }
        inner = pb_utils.InferenceRequest(
            model_name=model,
            request_id=inner_id,
            inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
            requested_output_names=["output_ids", "sequence_length"],
        )
        for response in self._exec(inner, watch.sender):
            if response.has_error():
                pb_utils.Logger.log_warn(f"stopping request {inner_id} failed: {response.error().message()}")

    def _exec(self, inner: Any, sender: Any) -> Iterator[Any]:
        """Yield the responses to an inner request, to the end.

        The Python backend (24.10 at least) forgets a finished iterator in a thread of its own. If that is the last to
        hold it, the responses are freed there without Python's lock, and the process dies of a damaged heap sooner or
        later. So the iterator is kept until that thread has answered another question of ours, asked after.
        """
        if not self._is_decoupled:
            yield inner.exec()
            return
        responses = inner.exec(decoupled=True)
        yield from responses
        sender.is_cancelled()

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
    if limits.size != len(limits):
        raise RequestError(f"max_tokens is {limits.tolist()}, need one value per row")
    check_numbers({name: array(request, name) for name in LIMITS})


def _tensors(answers: Answers, response: Any, handed_on: list[str]) -> list[Any] | None:
    """Return the output tensors for a response of the core; none if it adds nothing."""
    ids, lengths = output(response, "output_ids"), output(response, "sequence_length")
    if ids is None or lengths is None:
        return None
    texts_of_beams = answers.push(
        ids, lengths, row=_index(response, "batch_index"), sequence=_index(response, "sequence_index")
    )
    if texts_of_beams is None:
        return None
    return [_text(texts_of_beams), *renamed_outputs(response, {name: name for name in handed_on})]


def _rest(answers: Answers) -> Iterator[list[Any]]:
    """Yield the output tensors for text that was held back to the end."""
    for (row, sequence), texts_of_beams in answers.rest():
        places = {"batch_index": row, "sequence_index": sequence} if answers.count > 1 else {}
        yield [
            _text(texts_of_beams),
            *(pb_utils.Tensor(name, np.array([[at]], np.int32)) for name, at in places.items()),
        ]


def _text(texts_of_beams: list[str]) -> Any:
    return pb_utils.Tensor("text_output", byte_strings([texts_of_beams]))


def _index(response: Any, name: str) -> int:
    values = output(response, name)
    return 0 if values is None else int(values.reshape(-1)[0])


def _raise_error(response: Any) -> None:
    if response.has_error():
        raise RequestError(response.error().message(), response.error().code())
