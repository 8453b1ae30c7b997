"""What a server or gRPC says when something fails, and which error that is. Texts, not gRPC types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trtbuild_client.errors import (
    Cancelled,
    ClientError,
    ConnectError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    RequestRefused,
    ServerBusy,
    ServerError,
    Unauthorized,
)

if TYPE_CHECKING:
    from trtbuild_client.wire import WireRequest

_NOT_READY_HINT = "Wait until it has loaded, or read the server's log for the reason why it did not."
_REFUSED_HINT = "Compare the request with the model's inputs (its config.pbtxt)."
_UNAUTHORIZED_HINT = "Give the token that the server (or what stands before it) wants."
_BUSY_HINT = "Send fewer requests at once, or try again later."

#: Stable fragment of the server's text -> error and hint. The first match wins. Texts seen on Triton 2.51; fragments
#: are used because the wording around them changes between releases.
_BY_TEXT: tuple[tuple[str, type[ClientError], str], ...] = (
    ("has no available versions", NotReady, _NOT_READY_HINT),
    ("is not ready", NotReady, _NOT_READY_HINT),
    ("Request for unknown model", ModelNotFound, "Check the model name."),
    ("Received message larger than max", InvalidRequest, "Raise max_message_bytes."),
    ("Exceeds maximum queue size", ServerBusy, _BUSY_HINT),
    ("Request timeout expired", ServerBusy, "It waited in the server's queue for longer than its timeout."),
    ("doesn't support models with decoupled", RequestRefused, "The model is decoupled: use the stream RPC."),
    ("only supported if model is deployed using decoupled", RequestRefused, "Deploy it decoupled, or do not stream."),
    ("unexpected inference input", RequestRefused, _REFUSED_HINT),
    ("expected number of inputs", RequestRefused, _REFUSED_HINT),
    ("data-type is", RequestRefused, _REFUSED_HINT),
    ("unexpected shape for input", RequestRefused, _REFUSED_HINT),
)

#: Fragments of texts that say that a request was never taken up: no connection, or refused at the door.
_UNSENT = (
    "failed to connect",
    "Connection refused",
    "DNS resolution failed",
    "Exceeds maximum queue size",
    "is not ready",
)

#: gRPC status name -> error and hint, when no text matched.
_BY_STATUS: dict[str, tuple[type[ClientError], str]] = {
    "CANCELLED": (Cancelled, "The server or another part of this program cancelled it."),
    "INVALID_ARGUMENT": (RequestRefused, _REFUSED_HINT),
    "NOT_FOUND": (ModelNotFound, "Check the model name."),
    "RESOURCE_EXHAUSTED": (ServerBusy, _BUSY_HINT),
    "UNAUTHENTICATED": (Unauthorized, _UNAUTHORIZED_HINT),
    "PERMISSION_DENIED": (Unauthorized, _UNAUTHORIZED_HINT),
    "BUSY": (ServerBusy, _BUSY_HINT),
    "UNIMPLEMENTED": (ServerError, "Is this the gRPC port of a Triton server?"),
}


def unreachable(address: str, details: str) -> ConnectError:
    """Return the error for an address that gives no connection, with gRPC's long text cut to its reason."""
    reason = details.rsplit(": ", 1)[-1] or "no reason given"
    return ConnectError(
        f"no connection to {address} ({reason})",
        reason=reason,
        hint="Start the server (`trtbuild serve REPOSITORY`), or give its gRPC address with --url HOST:PORT (usually port 8001).",
    )


def translate(text: str, *, status: str, address: str, model: str) -> ClientError:
    """Return the typed error for a server's answer.

    Args:
        text: what the server or gRPC said.
        status: name of the gRPC status, "" when the error came as a message within a stream.
        address: host:port of the server.
        model: the model asked for.
    """
    error = _translated(text, status, address, model)
    error.is_unsent = any(fragment in text for fragment in _UNSENT)
    return error


def _translated(text: str, status: str, address: str, model: str) -> ClientError:
    where = f"model '{model}' on {address}"
    for fragment, kind, hint in _BY_TEXT:
        if fragment in text:
            return kind(f"{where}: {text}", hint=hint)
    if status == "UNAVAILABLE":
        return unreachable(address, text)
    kind, hint = _BY_STATUS.get(status, (ServerError, "The server's log has the details."))
    return kind(f"{where}: {text or status}", hint=hint)


def lost(address: str, error: ConnectError, tokens: int) -> ConnectError:
    """Return the error for a connection that broke while an answer came: the server was there, so that none has to be started.

    Args:
        error: what was said of the connection.
        tokens: that had arrived.
    """
    broken = ConnectError(
        f"the connection to {address} was lost after {tokens} token{'s' * (tokens != 1)} ({error.reason})",
        reason=error.reason,
        hint="The server, or what stands between, ended it: look at the server's log for a crash or a restart, then ask again.",
    )
    broken.__cause__ = error
    return broken


def models_hint(names: Iterable[str]) -> str:
    """Return the hint that names the models of a server."""
    return f"Models of this server: {', '.join(sorted(set(names))) or 'none'}."


def too_late(address: str, request: WireRequest) -> DeadlineExceeded:
    """Return the error for the deadline of the whole answer."""
    assert request.timeout_s is not None
    return DeadlineExceeded(
        f"no complete answer from model '{request.model}' on {address} within {request.timeout_s:g} s",
        phase="total",
        timeout_s=request.timeout_s,
        hint="Raise the timeout, ask for fewer tokens, or look at the server's load.",
    )


def no_answer(address: str, timeout_s: float, kind: str) -> ConnectError:
    """Return the error for a server that does not answer a question about itself."""
    return ConnectError(
        f"no answer from {address} within {timeout_s:g} s", hint=f"Is this the {kind} port of a running Triton server?"
    )


def question_error(text: str, status: str, *, address: str, model: str, timeout_s: float) -> ClientError:
    """Return the error of a question about server or models that gRPC answers with a status."""
    if status == "DEADLINE_EXCEEDED":
        return no_answer(address, timeout_s, "gRPC")
    return translate(text, status=status, address=address, model=model)


def too_long(size_bytes: int, limit_bytes: int) -> InvalidRequest:
    """Return the error for a request that is longer than the client may send."""
    return InvalidRequest(
        f"the request has {size_bytes} bytes, more than max_message_bytes={limit_bytes}",
        hint="Raise max_message_bytes.",
    )
