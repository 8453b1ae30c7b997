"""What a gateway is to be. Values only; opens nothing but the file of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild_client import defaults

#: Environment variable that holds a token when no file is given.
TOKEN_VARIABLE = "TRTBUILD_GATEWAY_TOKEN"
_LOOPBACK = ("127.", "::1", "localhost")
#: Shortest token that is accepted, characters; anything shorter is guessed or a mistake.
_MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings.

    Attributes:
        url: address of Triton, as `trtbuild_client.Client` takes it.
        reach: TLS and token for Triton, as keyword arguments of `trtbuild_client.Client`; in no `repr`.
        model: Triton's model that takes and gives text.
        served_names: names by which requests may ask for it; the first one is reported.
        tokenizer_dir: folder of the model's tokenizer and chat template, None for neither.
        host, port: where to listen; port 0 takes a free one.
        tokens: who has one of these may ask; none means that everybody may. In no log, no error and no `repr`.
        allows_anyone: listen beyond loopback without tokens.
        max_body_bytes: longest body of a request.
        max_in_flight: answers that are generated at once; each choice of each prompt counts.
        max_choices: largest `n`.
        default_max_tokens: of chats that name none; completions get OpenAI's 16.
        timeout_s: a whole request, from its body to its last byte.
        first_token_timeout_s, between_tokens_timeout_s: None for no limit of its own.
        body_timeout_s: until the body of a request has arrived.
        drain_timeout_s: what runs may take after SIGTERM.
        guided: whether the server can decode by a schema; None asks the server's configuration.
    """

    url: str = defaults.URL
    reach: Mapping[str, Any] = field(default_factory=dict, repr=False)
    model: str = defaults.MODEL
    served_names: tuple[str, ...] = ()
    tokenizer_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allows_anyone: bool = False
    max_body_bytes: int = 8 * 2**20
    max_in_flight: int = 256
    max_choices: int = 8
    default_max_tokens: int = 1024
    timeout_s: float = 600.0
    first_token_timeout_s: float | None = None
    between_tokens_timeout_s: float | None = None
    body_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    guided: bool | None = None

    def __post_init__(self) -> None:
        if not self.host.startswith(_LOOPBACK) and not self.tokens and not self.allows_anyone:
            raise UsageError(
                f"--host {self.host} is reachable from other machines, and no token is set",
                hint=f"Give --token-file or {TOKEN_VARIABLE}, or say --allow-anyone when something in front checks who asks.",
            )
        for name in ("max_body_bytes", "max_in_flight", "max_choices", "default_max_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}", hint="It must be at least 1.")
        for name in ("timeout_s", "body_timeout_s", "drain_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)}", hint="It must be a time above 0, in seconds.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may give."""
        return self.served_names or (self.model,)


def read_tokens(file: Path | None, from_environment: str | None) -> tuple[str, ...]:
    """Return the tokens of a file, one per line, or else the one of the environment.

    Raises:
        TrtbuildError: the file cannot be read, or holds no token.
        UsageError: a token is too short, or cannot be sent in a header. The message does not repeat it.
    """
    if file is None:
        tokens = [from_environment.strip()] if from_environment is not None else []
        origin = TOKEN_VARIABLE
    else:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise TrtbuildError(
                f"--token-file {file} cannot be read ({reason})", hint="Give one token per line."
            ) from None
        tokens = [line.strip() for line in lines if line.strip()]
        origin = f"--token-file {file}"
        if not tokens:
            raise TrtbuildError(f"{origin} holds no token", hint="Give one token per line.")
    for number, token in enumerate(tokens, 1):
        if len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
            raise UsageError(
                f"token {number} of {origin} has {len(token)} characters or signs that no header carries",
                hint=f"A token is at least {_MIN_TOKEN_LENGTH} printable ASCII characters without spaces, such as `openssl rand -hex 32` writes.",
            )
    return tuple(tokens)
