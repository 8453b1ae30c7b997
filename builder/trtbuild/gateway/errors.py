"""Errors as OpenAI's API words them, and which of them an error of the client is.

The error object: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild_client import (
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

#: Seconds after which a caller may come back; answers end all the time, so that there is soon room.
RETRY_AFTER_S = 1
#: status -> `type` of the error object; other statuses from 500 are server_error.
_TYPES = {429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: for whoever sent the request; may quote it, so it is never logged.
        code: stable name of what went wrong.
        param: the field at fault.
        headers: further headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code)  # not the message: what prints an exception must not print a prompt
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refused(message: str, *, param: str | None, code: str = "invalid_value") -> ApiError:
    """Return the error for a request that is wrong in itself."""
    return ApiError(400, message, code=code, param=param)


def unsupported(message: str, *, param: str | None) -> ApiError:
    """Return the error for a field that this gateway, or the server behind it, cannot honour."""
    return ApiError(400, message, code="unsupported_parameter", param=param)


def too_many(message: str) -> ApiError:
    """Return the error for a gateway that has no room."""
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(RETRY_AFTER_S)})


def unavailable(message: str, *, code: str) -> ApiError:
    """Return the error for a server that cannot answer now."""
    return ApiError(503, message, code=code, headers={"retry-after": str(RETRY_AFTER_S)})


def late(timeout_s: float) -> ApiError:
    """Return the error for a request that took too long as a whole."""
    return ApiError(504, f"the request took more than {timeout_s:g} seconds", code="timeout")


def internal() -> ApiError:
    """Return the error for a defect; what it was is in the log under the request's id."""
    return ApiError(500, "internal error of the gateway; the x-request-id names it in the log", code="internal_error")


@dataclass(frozen=True, slots=True)
class _Row:
    """What one kind of client error becomes.

    Attributes:
        message: "" passes the server's own words on; they are about the request.
        is_loggable: its message speaks of addresses and limits only, and never quotes a request or an answer.
    """

    kind: type[ClientError]
    status: int
    code: str
    message: str
    is_loggable: bool


#: The first row that fits counts.
_ROWS = (
    _Row(InvalidRequest, 400, "invalid_value", "", False),
    _Row(RequestRefused, 400, "invalid_value", "", False),
    _Row(ServerBusy, 503, "server_busy", "the model server's queue is full", True),
    _Row(Unauthorized, 502, "upstream_refused", "the model server does not accept this gateway", True),
    _Row(NotReady, 503, "not_ready", "the model is not ready", True),
    _Row(ConnectError, 503, "upstream_unreachable", "the model server cannot be reached", True),
    _Row(ModelNotFound, 502, "upstream_model", "the model server does not have the model of this gateway", True),
    _Row(DeadlineExceeded, 504, "timeout", "the model server took too long", True),
    _Row(Cancelled, 503, "cancelled", "the model server gave the request up", False),
    _Row(ServerError, 502, "upstream_error", "the model server failed", False),
    _Row(ClientError, 502, "upstream_error", "the model server failed", False),
)
#: Errors within a stream carry no status. Fragments of those that are the request's own fault -> code. Sources: preprocessing/1/model.py
#: and reference/base.py of this project, cpp/include/tensorrt_llm/batch_manager/llmRequest.h of TensorRT-LLM 1.2.
_OWN_FAULTS = (
    ("and prompt and answer together at most", "context_length_exceeded"),
    ("exceeds maximum input length", "context_length_exceeded"),
    ("exceeds max_seq_len", "context_length_exceeded"),
    ("QUERY is empty", "invalid_value"),
)


def from_client(error: ClientError) -> tuple[ApiError, str]:
    """Return the error for the caller, and what may be written into a log."""
    row = next(row for row in _ROWS if isinstance(error, row.kind))
    code = next((code for fragment, code in _OWN_FAULTS if fragment in error.message), None)
    noted = type(error).__name__ + (f": {error.message}" if row.is_loggable else "")
    if code is not None or not row.message:
        # Addresses and names of models behind the gateway are nobody's business.
        said = error.message.partition("' on ")[2].partition(": ")[2] or error.message
        return ApiError(400, f"{said}. {error.hint}" if not code and error.hint else said, code=code or row.code), noted
    headers = {"retry-after": str(RETRY_AFTER_S)} if row.status == 503 else {}
    return ApiError(row.status, row.message, code=row.code, headers=headers), noted
