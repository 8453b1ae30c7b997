"""Who may ask."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from trtbuild.gateway.errors import ApiError


class Guard:
    """Compares tokens in a time that depends neither on where they differ nor on which of several fits.

    Args:
        tokens: any of them opens; none lets everybody in. Only digests are kept.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def check(self, headers: Headers) -> None:
        """Return when the request may go on.

        Raises:
            ApiError: 401.
        """
        if not self._digests:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        fits = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(fits):
            raise ApiError(
                401,
                "the request needs 'Authorization: Bearer TOKEN' with a token of this gateway",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
