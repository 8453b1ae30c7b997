"""Prompts and answers that are longer than the model takes are refused before the run, wherever the server says how long that is."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.connection import connection
from trtbuild_client.errors import ConnectError, ModelNotFound
from trtbuild_client.load import limits
from trtbuild_client.load.target import Target
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import running
from trtbuild_client.wire import ModelInfo

Cli = Callable[..., tuple[int, str, str]]
_LONG = ("--requests", 2, "--input-tokens", 200, "--output-tokens", 100, "--allow-invalid", "--json")
#: Variant of the mock -> models to ask.
_MODELS = [("engine", "ensemble"), ("engine", "tensorrt_llm_bls"), ("llmapi", "tensorrt_llm")]
_APIS = ("triton-grpc", "triton-http", "openai-chat", "openai-completions")


@pytest.mark.parametrize("api", _APIS)
@pytest.mark.parametrize(("variant", "model"), _MODELS)
def test_what_is_longer_than_the_server_takes_is_refused_before_the_run(
    variant: Any, model: str, api: str, cli: Cli
) -> None:
    with running(MockOptions(variant=variant, max_seq_len=256)) as mock:
        url = mock.grpc if api == "triton-grpc" else f"http://{mock.http}"
        server = ("bench", "--url", url, "--api", api, "--model", model)
        code, _, err = cli(*server, *_LONG)
        assert code == 2 and "a prompt of 200 words" in err and "makes 300, and the model takes 256" in err
        assert mock.schedule()["requests"] == []
        assert cli(*server, *_LONG, "--output-tokens", 56)[0] == 0


def test_a_conversation_counts_its_turns_and_answers_so_far(cli: Cli) -> None:
    turns = ("--input-tokens", 40, "--output-tokens", 20, "--requests", 3, "--allow-invalid", "--json")
    with running(MockOptions(max_seq_len=130)) as mock:
        assert cli("bench", "--url", mock.grpc, *turns, "--turns", 2)[0] == 0
        code, _, err = cli("bench", "--url", mock.grpc, *turns, "--turns", 3)
    assert code == 2 and "as turn 3 of a conversation, makes 180" in err, err


def test_a_server_that_cuts_answers_is_counted_by_what_came(cli: Cli, tmp_path: Path) -> None:
    """--max-seq-len that is wrong lets everything through; the server cuts, and the numbers are those of what came."""
    out = tmp_path / "r.json"
    with running(MockOptions(max_seq_len=256)) as mock:
        code, text, err = cli("bench", "--url", mock.grpc, *_LONG, "--max-seq-len", 1000, "-o", out)
    assert code == 0, err
    (measured,) = json.loads(text)["runs"]
    assert json.loads(out.read_text())["runs"][0]["records"]["columns"]["output_tokens"] == [56, 56]
    assert any("shorter" in each for each in measured["warnings"]), measured["warnings"]


def test_only_what_works_for_a_model_may_be_missing() -> None:
    def ask(name: str) -> ModelInfo:
        known = {
            "ensemble": ModelInfo("ensemble", {}, {}, 0, True, steps=("pre", "core")),
            "core": ModelInfo("core", {}, {}, 0, True, parameters={"max_seq_len": "512"}),
        }
        if name not in known:
            raise ModelNotFound(f"no {name}", hint="")
        return known[name]

    assert limits.of_triton(ask, "ensemble") == 512
    with pytest.raises(ModelNotFound):
        limits.of_triton(ask, "other")


@contextmanager
def saying(status: int, body: bytes) -> Iterator[str]:
    """A server whose every answer is this one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "length"),
    [
        (200, {"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 512}]}, 512),
        (200, {"data": [{"id": "m"}]}, None),  # trtllm-serve
        (200, {"data": [{"id": "m", "max_model_len": "512"}, {"id": "m", "max_model_len": True}]}, None),
        (200, {"data": None}, None),
        (200, ["m"], None),
        (404, {"detail": "Not Found"}, None),
    ],
)
def test_lists_of_models_are_read_whatever_they_hold(status: int, body: Any, length: int | None) -> None:
    with saying(status, json.dumps(body).encode()) as address:
        assert limits.of_openai(connection(f"http://{address}"), "", "m") == length


def test_a_list_that_is_no_json_says_nothing() -> None:
    with saying(200, b"<html>") as address:
        assert limits.of_openai(connection(f"http://{address}"), "", "m") is None


def test_who_does_not_speak_http_is_named() -> None:
    with running() as mock, pytest.raises(ConnectError, match="the connection broke"):
        Target(f"http://{mock.grpc}", "ensemble").max_seq_len()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectError, match=r"no answer from .* within 0.2 s"):
            limits.of_openai(connection(f"http://127.0.0.1:{port}"), "", "m", timeout_s=0.2)
    with pytest.raises(ConnectError, match="[Rr]efused"):
        limits.of_openai(connection(f"http://127.0.0.1:{port}"), "", "m")
