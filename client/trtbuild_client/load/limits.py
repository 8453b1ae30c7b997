"""The longest sequence that a server takes, from what it says about its models. Most say nothing; then nothing is known."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

from trtbuild_client.connection import Connection
from trtbuild_client.encryption import tls_context, tls_failure
from trtbuild_client.errors import ConnectError, ModelNotFound, NotReady, Unauthorized
from trtbuild_client.wire import ModelInfo

_TIMEOUT_S = 10.0
#: Read of a list of models.
_MOST_BYTES = 1 << 20
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
    lengths = [each[_PARAMETER] for each in found if each.get(_PARAMETER, "").isdecimal()]
    return min((int(each) for each in lengths), default=None)


def of_openai(server: Connection, base: str, model: str) -> int | None:
    """Return `max_model_len` of a model in /v1/models (vLLM, SGLang, trtbuild's gateway), None where the server does not say (trtllm-serve).

    Raises:
        ConnectError: nobody answers, or in no HTTP.
        NotReady: the server says that it does not serve yet.
        Unauthorized: the server wants another token.
    """
    status, text = _get(server, f"{base}/v1/models")
    if status in (401, 403):
        raise Unauthorized(
            f"{server.address} answers with HTTP status {status}", hint="Give the token that the server wants: --token."
        )
    if status == 503:
        raise NotReady(
            f"{server.address} answers with HTTP status 503", hint="Its model is loading, or failed to load."
        )
    try:
        document: Any = json.loads(text) if status == 200 else None
    except ValueError:
        return None
    models = document.get("data") if isinstance(document, dict) else None
    entries = [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    lengths = [each.get("max_model_len") for each in entries if each.get("id") == model]
    return next((each for each in lengths if type(each) is int and each > 0), None)


def _get(server: Connection, path: str) -> tuple[int, bytes]:
    """Return (status, body).

    Raises:
        ConnectError: nobody answers, or in no HTTP.
    """
    if server.tls is None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(
            server.host, server.port, timeout=_TIMEOUT_S, context=tls_context(server.tls)
        )
    try:
        connection.request("GET", path, headers=dict(server.metadata()))
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except TimeoutError as error:
        text, hint = f"no answer from {server.address} within {_TIMEOUT_S:g} s", "Is this the HTTP port of the server?"
        raise ConnectError(text, hint=hint) from error
    except OSError as error:
        raise ConnectError(
            f"no connection to {server.address} ({tls_failure(error)})", hint="Is the server running?"
        ) from error
    except http.client.HTTPException as error:
        raise ConnectError(
            f"{server.address} does not speak HTTP ({type(error).__name__})",
            hint="Is this the HTTP port of the server?",
        ) from error
    finally:
        connection.close()
