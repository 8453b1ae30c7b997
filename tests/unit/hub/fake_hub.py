"""A hub on loopback that speaks the few requests huggingface_hub makes, so that the real library is tested."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What the hub holds (one repository, `files` at `commit`) and what it was asked."""

    repo: str = "owner/name"
    commit: str = COMMIT
    files: dict[str, bytes] = field(default_factory=dict)
    #: When set, every request is answered by (status, value of X-Error-Code).
    refusal: tuple[int, str] | None = None
    listed_sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""

    @property
    def fetched(self) -> list[str]:
        """Names of the files whose content was fetched, sorted."""
        prefix = f"/{self.repo}/resolve/{self.commit}/"
        return sorted(path.removeprefix(prefix) for verb, path in self.requests if verb == "GET" and prefix in path)


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.requests.append((self.command, path))
            hub.tokens.append(self.headers.get("Authorization"))
            if hub.refusal is not None:
                return self._send(hub.refusal[0], b"{}", {"X-Error-Code": hub.refusal[1]})
            resolve = f"/{hub.repo}/resolve/{hub.commit}/"
            if path.startswith(resolve) and path.removeprefix(resolve) in hub.files:
                data = hub.files[path.removeprefix(resolve)]
                headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": hub.commit}
                return self._send(200, data, headers)
            if path.startswith(f"/api/models/{hub.repo}/tree/"):
                return self._send(200, json.dumps(self._tree()).encode(), {})
            known = (f"/api/models/{hub.repo}", *(f"/api/models/{hub.repo}/revision/{r}" for r in ("main", hub.commit)))
            if path in known:
                return self._send(200, json.dumps(self._info()).encode(), {})
            code = "RevisionNotFound" if path.startswith(f"/api/models/{hub.repo}/") else "RepoNotFound"
            return self._send(404, b"{}", {"X-Error-Code": code})

        def _size(self, name: str) -> int:
            return hub.listed_sizes.get(name, len(hub.files[name]))

        def _tree(self) -> list[dict[str, object]]:
            return [
                {"type": "file", "path": n, "size": self._size(n), "oid": hashlib.sha1(data).hexdigest()}
                for n, data in hub.files.items()
            ]

        def _info(self) -> dict[str, object]:
            siblings = [{"rfilename": name, "size": self._size(name), "blobId": "0"} for name in hub.files]
            return {"id": hub.repo, "sha": hub.commit, "private": False, "tags": [], "siblings": siblings}

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def tiny_model() -> dict[str, bytes]:
    """Return the files of a one-layer Llama whose weights are headers with zeros."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
    }  # fmt: skip
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors_bytes({"model.embed_tokens.weight": (32, 16)}),
    }


def safetensors_bytes(shapes: dict[str, tuple[int, int]]) -> bytes:
    """Return a float16 safetensors file of zeros."""
    header, offset = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "F16", "shape": [rows, columns], "data_offsets": [offset, offset + rows * columns * 2]}
        offset += rows * columns * 2
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(offset)


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """Serve the hub while the block runs; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
