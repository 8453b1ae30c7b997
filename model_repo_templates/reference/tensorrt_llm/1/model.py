"""Triton model `tensorrt_llm` of the reference target: token ids in, token ids out. Glue only.

The work is in `trtbuild.reference`: the engine, and the meaning of the tensors. Responses are sent from the engine's
thread right after each step.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import file_names
import torch
import triton_python_backend_utils as pb_utils
from pending import Pending, PendingRequests
from periodic import Periodic
from reporting import Reporting
from serving import Parameters, error_response

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.factory import make_engine
from trtbuild.reference.model import load_model
from trtbuild.reference.reply import Reply
from trtbuild.reference.sampling import RequestError
from trtbuild.reference.tensors import is_stop_request, read_requests

BATCHING_STRATEGIES = ("inflight_fused_batching", "inflight_batching")


class TritonPythonModel:
    """The one instance: an engine, the requests it works on, and what is reported about them."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint and start the engine; whatever is wrong stops the load with its reason."""
        file_names.use_utf8()
        parameters = Parameters(args["model_config"])
        strategy = parameters.required_text("gpt_model_type")
        if strategy not in BATCHING_STRATEGIES:
            raise ValueError(f"gpt_model_type is '{strategy}', need one of {', '.join(BATCHING_STRATEGIES)}")
        self._is_decoupled = parameters.is_decoupled
        self._excludes_input = parameters.flag("exclude_input_in_output", default=False)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        model = load_model(open_checkpoint(Path(parameters.required_text("gpt_model_path"))))
        self._engine = make_engine(model, _sizes(parameters))
        self._engine.start()
        # One prompt and one decoding step, so that the first request does not pay for what happens only once.
        self._engine.generate([0], 2)
        self._reporting = Reporting(args["model_name"], args["model_version"])
        self._pending = PendingRequests(
            self._engine, is_decoupled=self._is_decoupled, on_row_done=self._reporting.observe
        )
        self._periodic = [
            Periodic(parameters.number("cancellation_check_period_ms", 100), self._pending.cancel_abandoned),
            Periodic(
                parameters.number("stats_check_period_ms", 100), lambda: self._reporting.update(self._engine.stats())
            ),
        ]
        # What was made so far lives as long as the process. Looking through it takes the garbage collector a third of a
        # second, during which no token comes and no shutdown proceeds.
        gc.collect()
        gc.freeze()

    def execute(self, requests: list[Any]) -> None:
        """Accept each request and return at once; answers come from the engine's thread."""
        for request in requests:
            pending = self._pending.open(request)
            try:
                self._accept(request, pending)
            except RequestError as error:
                pending.fail(pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
            except Exception as error:  # the edge of the process: one bad request must not fail the others
                pending.fail(error_response(error, "tensorrt_llm").error())

    def finalize(self) -> None:
        """Stop the threads; requests that are still running get an error."""
        for periodic in self._periodic:
            periodic.stop()
        self._engine.stop()

    def _accept(self, request: Any, pending: Pending) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if is_stop_request(tensors):
            if not request.request_id():
                raise RequestError("Trying to stop a request but request ID is not provided")
            self._pending.stop(request.request_id(), besides=pending)
            pending.acknowledge()
            return
        rows = read_requests(tensors, exclude_input=self._excludes_input, is_decoupled=self._is_decoupled)
        for row in rows:
            self._engine.check(row.prompt, row.max_tokens, row.params, draft=row.draft)
        pending.expect(len(rows))
        for row in rows:
            reply = Reply(row, pending.send, pending.finish_row)
            sequence = self._engine.submit(
                row.prompt,
                row.max_tokens,
                reply,
                params=row.params,
                want_log_probs=row.wants_log_probs,
                draft=row.draft,
            )
            pending.watch(sequence)


def _sizes(parameters: Parameters) -> BatchingConfig:
    return BatchingConfig(
        tokens_per_block=parameters.number("tokens_per_block"),
        max_tokens_in_paged_kv_cache=parameters.number("max_tokens_in_paged_kv_cache"),
        max_num_tokens=parameters.number("max_num_tokens"),
        max_seq_len=parameters.number("max_seq_len"),
        max_batch_size=int(parameters.config["max_batch_size"]),
        enable_kv_cache_reuse=parameters.flag("enable_kv_cache_reuse", default=True),
    )
