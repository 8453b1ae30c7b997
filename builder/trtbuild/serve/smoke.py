"""One prompt to a server that has just become ready: that models load does not mean that they answer."""

from __future__ import annotations

import logging
import time

from trtbuild.errors import CheckFailed
from trtbuild.serve.supervisor import Server

log = logging.getLogger(__name__)

#: Models that take text, the best first.
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
MAX_TOKENS = 8
TIMEOUT_S = 60.0


def smoke(server: Server, prompt: str) -> None:
    """Send a prompt and see that an answer with text comes.

    Raises:
        CheckFailed: no model takes text, the request fails, or the answer is empty.
    """
    from trtbuild_client import Client, ClientError

    model = next((name for name in _TEXT_MODELS if name in server.models), None)
    if model is None:
        raise CheckFailed(
            f"--smoke: no model takes text; there are {', '.join(server.models)}", hint=f"it asks {', '.join(_TEXT_MODELS)}"
        )  # fmt: skip
    began = time.monotonic()
    try:
        with Client(server.grpc_url, model, timeout_s=TIMEOUT_S) as client:
            answer = client.generate(prompt, max_tokens=MAX_TOKENS)
    except ClientError as error:
        raise CheckFailed(f"--smoke: {model} does not answer: {error}", hint="the server is stopped; its log says more") from error  # fmt: skip
    if not answer.text.strip():
        raise CheckFailed(f"--smoke: {model} answered {prompt!r} with nothing", hint="see `trtbuild evaluate`")
    log.info("smoke: %s answered in %.1f s: %r", model, time.monotonic() - began, answer.text)
