"""Triton's model control over HTTP: which versions of a model are ready, and loading a model anew. Loopback or not, proxies are never used."""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

from trtbuild.errors import TrtbuildError, UsageError

_QUESTION_TIMEOUT_S = 10.0
#: What a server that was not started for it answers to a load (tritonserver 2.51; `Server::LoadModel` of triton core).
_NOT_EXPLICIT = "explicit model load / unload is not allowed"


#: How a server that speaks HTTP/2 alone begins, as one for gRPC does: a SETTINGS frame, its length (at most some hundred bytes) and type (RFC 9113, 3.4 and 6.5).
_SETTINGS = re.compile(r"\x00[\x00-\x03].\x04", re.DOTALL)


class LoadFailed(TrtbuildError):
    """The server could not load a model; the message has its own words."""


class ModelControl:
    """One server.

    Args:
        url: HOST:PORT or http://HOST:PORT of its HTTP endpoint.

    Raises:
        UsageError: the URL is of another kind.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"--url {url} is no HTTP endpoint", hint="write HOST:PORT, e.g. 127.0.0.1:8000")
        self.address = parts.netloc

    def ready_versions(self, model: str) -> list[int]:
        """Return the versions of a model that are ready, in order; empty when it is not loaded or not known.

        Raises:
            TrtbuildError: the server does not answer.
        """
        return sorted(version for version, state in self.states().get(model, {}).items() if state == "READY")

    def states(self) -> dict[str, dict[int, str]]:
        """Return model -> version -> state, of everything that lies in the server's repositories when it is asked; a model that is not loaded has no versions.

        Raises:
            TrtbuildError: the server does not answer, or is no Triton.
        """
        try:
            status, listed = self._ask("POST", "/v2/repository/index", {}, timeout_s=_QUESTION_TIMEOUT_S)
        except TimeoutError as error:
            raise TrtbuildError(f"the server at {self.address} does not answer within {_QUESTION_TIMEOUT_S:g} s", hint="look at its log") from error  # fmt: skip
        if status != http.client.OK or not isinstance(listed, list) or not all(_is_entry(each) for each in listed):
            raise TrtbuildError(f"the server at {self.address} has no index of its repository: status {status}", hint="--url names the HTTP endpoint of a Triton server")  # fmt: skip
        found: dict[str, dict[int, str]] = {}
        for each in listed:
            versions = found.setdefault(each["name"], {})
            if "version" in each:
                versions[int(each["version"])] = str(each.get("state", ""))
        return found

    def load(self, model: str, *, timeout_s: float) -> None:
        """Load a model as it lies in the repository; returns when its new versions are ready.

        Args:
            model: its name.
            timeout_s: how long loading may take.

        Raises:
            UsageError: the server does not allow it.
            LoadFailed: the model does not load, or not in time.
        """
        try:
            status, answer = self._ask("POST", f"/v2/repository/models/{quote(model, safe='')}/load", {}, timeout_s=timeout_s)  # fmt: skip
        except TimeoutError as error:
            raise LoadFailed(f"{model} was not loaded within {timeout_s:g} s", hint="--timeout gives it more time") from error  # fmt: skip
        if status == http.client.OK:
            return
        words = str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)
        if _NOT_EXPLICIT in words:
            raise UsageError(
                f"the server at {self.address} does not let models be loaded: {words}",
                hint="start it with `trtbuild serve --model-control explicit`; it then listens on loopback only",
            )
        raise LoadFailed(f"the server cannot load {model}: {words}", hint="what it was serving it serves on")

    def _ask(self, method: str, path: str, body: Any, *, timeout_s: float) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.address, timeout=timeout_s)) as connection:
            try:
                connection.request(method, path, json.dumps(body))
                response = connection.getresponse()
                text = response.read().decode("utf-8", "replace")
            except TimeoutError:
                raise
            except http.client.BadStatusLine as error:
                if isinstance(error, http.client.RemoteDisconnected):
                    raise TrtbuildError(
                        f"the server at {self.address} closed the connection", hint="look at its log"
                    ) from error
                raise UsageError(f"{self.address} does not speak HTTP/1.1{_looks_like(str(error))}", hint="--url names the HTTP endpoint of the server, port 8000 unless told otherwise") from error  # fmt: skip
            except (OSError, http.client.HTTPException) as error:
                raise TrtbuildError(
                    f"no server answers at {self.address}: {error}", hint="--url names its HTTP endpoint"
                ) from error
        try:
            return response.status, json.loads(text) if text else None
        except ValueError:
            return response.status, text


def _looks_like(line: str) -> str:
    """Return what a first line that is none of HTTP/1.1 says about who sent it."""
    return "; it is a gRPC port" if _SETTINGS.match(line) else ""


def _is_entry(value: Any) -> bool:
    """Say whether a value is an entry of Triton's index (the model repository extension of KServe's protocol)."""
    return isinstance(value, dict) and isinstance(value.get("name"), str) and str(value.get("version", "0")).isdecimal()
