"""Errors of the client. Every one is a ClientError with a hint; none of them knows gRPC.

ClientError
  ConnectError            nobody answers at the address, or the connection broke
  NotReady                the server or the model is there but does not serve (yet)
  ModelNotFound           the server has no such model
  DeadlineExceeded        a deadline of ours passed; `phase` says which
  Cancelled               the request was cancelled before its answer was complete
  InvalidRequest          refused here, before anything was sent
    StreamingUnsupported  stream() on a model that is not decoupled
  ServerError             the server answered with an error
    RequestRefused        the request does not fit the model
    Unauthorized          credentials are missing or wrong
    ServerBusy            queue full, or the request waited in the queue for too long
"""

from __future__ import annotations

from typing import Literal

Phase = Literal["first_token", "between_tokens", "total"]


class ClientError(Exception):
    """A failure the caller can act on.

    Args:
        message: what failed, with the value seen.
        hint: what is allowed and what to do.

    Attributes:
        exit_code: exit status a command should end with.
        partial_text: text that had arrived before the failure.
        is_unsent: the request cannot have been taken up, so that sending it again is safe.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.partial_text = ""
        self.is_unsent = False

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConnectError(ClientError):
    """Nobody answers at the address, or the connection broke.

    Attributes:
        reason: what the system or gRPC said, "" where nobody answered in time.
    """

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NotReady(ClientError):
    """The server or the model exists but does not serve."""


class ModelNotFound(ClientError):
    """The server has no model of that name."""


class DeadlineExceeded(ClientError):
    """A deadline passed.

    Attributes:
        phase: which deadline it was.
        timeout_s: its length in seconds.
    """

    def __init__(self, message: str, *, phase: Phase, timeout_s: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.phase: Phase = phase
        self.timeout_s = timeout_s


class Cancelled(ClientError):
    """The request was cancelled before its answer was complete."""


class InvalidRequest(ClientError):
    """The request is wrong in itself and was not sent."""

    exit_code = 2


class StreamingUnsupported(InvalidRequest):
    """The model is not decoupled, so it cannot stream."""


class ServerError(ClientError):
    """The server answered with an error."""


class RequestRefused(ServerError):
    """The request does not fit the model."""


class ServerBusy(ServerError):
    """The server has no room for the request now."""


class Unauthorized(ServerError):
    """The server wants other credentials."""
