"""A core for the real server: answers with the prompt's own tokens, over and over, one every few milliseconds.

`max_tokens` 999 is refused. What was asked and how it ended is written to core.log in the folder `gpt_model_path`.
"""

import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SECONDS_PER_TOKEN = 0.002


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._log = Path(config["parameters"]["gpt_model_path"]["string_value"]) / "core.log"
        self._lock = threading.Lock()
        self._stopped = set()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            if _flag(request, "stop"):
                with self._lock:
                    self._stopped.add(request.request_id())
                sender.send(flags=FINAL)
            else:
                threading.Thread(target=self._answer, args=(request, sender)).start()

    def _answer(self, request, sender):
        prompt = _values(request, "input_ids")
        count = int(_values(request, "request_output_len")[0])
        streams, name = _flag(request, "streaming"), request.request_id()
        if count == 999:
            error = pb_utils.TritonError("refused by the core", pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            return
        ids, ended = [], "complete"
        while len(ids) < count:
            with self._lock:
                if name in self._stopped or sender.is_cancelled():
                    ended = "stopped"
                    break
            ids.append(int(prompt[len(ids) % len(prompt)]))
            if streams:
                sender.send(_response(ids[-1:]))
            time.sleep(SECONDS_PER_TOKEN)
        if not streams:
            sender.send(_response(ids))
        with self._lock, self._log.open("a") as log:
            log.write(json.dumps({"ended": ended, "tokens": len(ids), "prompt": len(prompt)}) + "\n")
        sender.send(flags=FINAL)


def _response(ids):
    tensors = [
        pb_utils.Tensor("output_ids", np.array([[ids]], np.int32).reshape(1, 1, len(ids))),
        pb_utils.Tensor("sequence_length", np.array([[len(ids)]], np.int32)),
        pb_utils.Tensor("num_output_tokens", np.array([[len(ids)]], np.int32)),
    ]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _values(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)


def _flag(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return tensor is not None and bool(tensor.as_numpy().reshape(-1)[0])
