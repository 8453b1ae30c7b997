"""The longest sequence that a server takes, from what it says about its models. Most say nothing; then nothing is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trtbuild_client.connection import Connection
from trtbuild_client.defaults import CONNECT_TIMEOUT_S
from trtbuild_client.errors import ModelNotFound, NotReady
from trtbuild_client.http_transport import HttpTransport
from trtbuild_client.wire import ModelInfo

#: More of them are no length of a sequence.
_DIGITS = 18
#: The parameter with which trtbuild's preprocessing model refuses prompts (model_repo_templates/common/preprocessing).
_PARAMETER = "max_seq_len"


def of_triton(ask: Callable[[str], ModelInfo], model: str) -> int | None:
    """Return the smallest `max_seq_len` among the configurations of a model and of those that work for it, None where none has one.

    Args:
        ask: returns what a server says about a model.
        model: an ensemble, whose steps are asked too; a BLS model, which names its core in `tensorrt_llm_model_name` and has its
            prompts tokenized by `preprocessing` (NVIDIA's inflight_batcher_llm and trtbuild's templates); or any other.

    Raises:
        ClientError: the server does not answer, or does not serve `model`.
    """
    info = ask(model)
    core = info.parameters.get("tensorrt_llm_model_name")
    found = [info.parameters]
    for name in (*info.steps, *(("preprocessing", core) if core else ())):
        try:
            found.append(ask(name).parameters)
        except (ModelNotFound, NotReady):
            continue  # what works for it may be named otherwise, or be asked by no one
    return smallest(found)


def smallest(parameters: Iterable[Mapping[str, str]]) -> int | None:
    """Return the smallest `max_seq_len` among parameters of configurations, None where none has one."""
    texts = [each[_PARAMETER] for each in parameters if each.get(_PARAMETER, "").isdecimal()]
    return min((int(each) for each in texts if len(each) <= _DIGITS), default=None)


def of_openai(server: Connection, base: str, model: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> int | None:
    """Return `max_model_len` of a model in /v1/models (vLLM, SGLang, trtbuild's gateway), None where the server does not say (trtllm-serve).

    Raises:
        ConnectError: nobody answers, or not in time.
        ServerError: in no HTTP.
        NotReady: the server says that it does not serve yet.
        Unauthorized: the server wants another token.
    """
    transport = HttpTransport(server, connect_timeout_s=timeout_s)
    try:
        status, text = transport.get(f"{base}/v1/models")
    finally:
        transport.close()
    if status == 503:
        raise NotReady(
            f"{server.address} answers with HTTP status 503", hint="Its model is loading, or failed to load."
        )
    try:
        document: Any = json.loads(text) if status == 200 else None
    except (ValueError, RecursionError):
        return None
    models = document.get("data") if isinstance(document, dict) else None
    entries = [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    lengths = [each.get("max_model_len") for each in entries if each.get("id") == model]
    return next((each for each in lengths if type(each) is int and each > 0), None)
