"""Triton model `tensorrt_llm` of the target pytorch: text in, text out, by TensorRT-LLM's LLM API.

All requests run in one event loop in a thread of its own; the LLM API makes batches of them. What a request means is in `asked`, what is
answered in `answers`. Needs what the stock container has: numpy, PyYAML and tensorrt_llm.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import file_names
import triton_python_backend_utils as pb_utils
from answers import tensors
from asked import Asked, Defaults, is_stop, read
from pending import Pending
from serving import Parameters, RequestError, error_response
from settings import check_processes, read_settings

MODEL = "tensorrt_llm"
#: How long running requests may take to end when the server goes.
_SHUTDOWN_S = 5.0


class TritonPythonModel:
    """The one instance: an LLM, an event loop, and the requests that are not answered."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; whatever is wrong stops the load with its reason."""
        file_names.use_utf8()
        parameters = Parameters(args["model_config"])
        settings = read_settings(Path(__file__).with_name("model.yaml"), parameters.config)
        check_processes(os.environ)
        self._is_decoupled = parameters.is_decoupled
        self._defaults = Defaults(
            stop_words=parameters.texts("stop_words"),
            add_special_tokens=parameters.flag("add_special_tokens", default=True),
            skip_special_tokens=parameters.flag("skip_special_tokens", default=True),
        )
        import tensorrt_llm  # after the checks: it takes long, and with mpi4py it touches the processes

        self._api = tensorrt_llm
        self._llm = tensorrt_llm.LLM(**settings.arguments)
        self._running: dict[asyncio.Task[None], Pending] = {}  # touched by the loop's thread only
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-requests", daemon=True)
        self._thread.start()
        period_s = settings.cancellation_check_period_ms / 1000
        self._watch = asyncio.run_coroutine_threadsafe(self._begin_watch(period_s), self._loop).result()

    def execute(self, requests: list[Any]) -> None:
        """Accept each request and return at once; answers come from the event loop."""
        for request in requests:
            pending = Pending(request, is_decoupled=self._is_decoupled)
            try:
                if is_stop(request):
                    if not pending.request_id:
                        raise RequestError("stop needs the id of the request to stop, as the id of this one")
                    self._loop.call_soon_threadsafe(self._stop, pending)
                else:
                    asked = read(request, self._defaults, is_decoupled=self._is_decoupled)
                    self._loop.call_soon_threadsafe(self._start, asked, pending)
            except Exception as error:  # the edge of the process: one bad request must not fail the others
                pending.fail(error_response(error, MODEL))

    def finalize(self) -> None:
        """End what is running, then the LLM and its workers."""
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(_SHUTDOWN_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_SHUTDOWN_S)
            self._loop.close()
            self._llm.shutdown()

    def _start(self, asked: Asked, pending: Pending) -> None:
        task = self._loop.create_task(self._answer(asked, pending))
        self._running[task] = pending
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        pending = self._running.pop(task)
        if task.cancelled():  # before it began
            pending.cancel()

    async def _answer(self, asked: Asked, pending: Pending) -> None:
        """Send the whole answer, or why there is none. Every way out of here sends the final response."""
        result = None
        try:
            result = self._submit(asked)
            if asked.is_streaming:
                async for output in result:
                    pending.send(tensors(output, asked))
            else:
                await result
            if result.outputs[0].finish_reason == "cancelled":
                pending.cancel()
            elif not asked.is_streaming:
                pending.send(tensors(result, asked))
            pending.finish()
        except asyncio.CancelledError:
            if result is not None:
                result.abort()
            pending.cancel()
        except Exception as error:  # the edge of the task: its request gets the error, whatever it is
            pending.fail(error_response(error, MODEL))

    def _submit(self, asked: Asked) -> Any:
        """Hand a request to the LLM.

        Raises:
            RequestError: the LLM refuses it, for instance because the prompt is too long.
        """
        more: dict[str, Any] = {}
        try:
            if asked.lora is not None:
                from tensorrt_llm.executor import LoRARequest

                more["lora_request"] = LoRARequest(**asked.lora)
            sampling = self._api.SamplingParams(**asked.sampling)
            return self._llm.generate_async(asked.prompt, sampling, streaming=asked.is_streaming, **more)
        except Exception as error:
            if isinstance(error, (ValueError, TypeError)) or type(error).__name__ == "RequestError":
                raise RequestError(str(error)) from error
            raise

    def _stop(self, stopping: Pending) -> None:
        """End the running requests of the same id; none may be left, which is fine."""
        for task, pending in list(self._running.items()):
            if pending.request_id == stopping.request_id:
                task.cancel()
        stopping.finish()

    async def _begin_watch(self, period_s: float) -> asyncio.Task[None]:
        return self._loop.create_task(self._cancel_abandoned(period_s))

    async def _cancel_abandoned(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            for task, pending in list(self._running.items()):
                try:
                    if pending.is_abandoned():
                        task.cancel()
                except Exception as error:  # it must outlive a failed look at one request
                    pb_utils.Logger.log_error(f"{MODEL}: {type(error).__name__}: {error}")

    async def _shut_down(self) -> None:
        self._watch.cancel()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(self._watch, *self._running, return_exceptions=True)
