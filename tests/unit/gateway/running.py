"""Gateways for tests: in a thread of this process, or as the command that users start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
from openai import AsyncOpenAI, OpenAI
from tests.unit.client.fake_triton import FakeTriton, Model

from trtbuild.gateway.http_app import Gateway
from trtbuild.gateway.serve import address, listen, server
from trtbuild.gateway.settings import Settings

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Running:
    """A gateway that answers."""

    url: str
    gateway: Gateway

    def openai(self, **options: Any) -> OpenAI:
        """Return the official client, without its retries."""
        return OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 20, **options})

    def async_openai(self, **options: Any) -> AsyncOpenAI:
        """Return the official client for event loops."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 20, **options})

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """Send JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx2.post(
            f"{self.url}{path}", content=content, headers={"content-type": "application/json", **headers}, timeout=20
        )

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """Ask for a page."""
        return httpx2.get(f"{self.url}{path}", headers=headers, timeout=20)

    def metric(self, line: str) -> float:
        """Return the value of a metric; 0 while it was never counted."""
        for each in self.get("/metrics").text.splitlines():
            if each.startswith(f"trtbuild_gateway_{line} "):
                return float(each.rpartition(" ")[2])
        return 0.0


@contextmanager
def running(url: str, **settings: Any) -> Iterator[Running]:
    """Run a gateway before a server while the block runs."""
    gateway = Gateway(Settings(url=url, **settings))
    opened, ready = listen("127.0.0.1", 0), threading.Event()
    server_ = server(gateway, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server_.serve(sockets=[opened])), name="gateway")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield Running(address(opened), gateway)
    finally:
        server_.should_exit = True
        thread.join(PATIENCE_S)
        opened.close()
        assert not thread.is_alive()


@contextmanager
def command(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `trtbuild gateway --port 0`; yield the process and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trtbuild", "gateway", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def wait_until(condition: Any, what: str) -> None:
    """Return when a condition holds, looking again and again."""
    pause, waited = threading.Event(), 0.0
    while not condition():
        assert waited < PATIENCE_S, what
        pause.wait(0.02)
        waited += 0.02


class Triton(FakeTriton):
    """The scripted server, which also names outputs and parameters of its models."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[str, dict[str, str]] = {}
        self.loading: set[str] = set()
        self.outputs: dict[str, tuple[str, ...]] = {
            "ensemble": ("text_output", "output_log_probs", "num_input_tokens", "num_output_tokens")
        }
        text = ("BYTES", [1], True)
        self.models["ensemble"].inputs.update(guided_decoding_guide_type=text, guided_decoding_guide=text)

    def behind(self, name: str, **parameters: str) -> None:
        """Add a model behind the ensemble, with parameters."""
        self.models[name] = Model()
        self.parameters[name] = parameters

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        response = super().ModelMetadata(request, context)
        for name in self.outputs.get(request.name, ()):
            response.outputs.add(name=name, datatype="BYTES", shape=[-1, -1])
        return response

    def ModelConfig(self, request: Any, context: Any) -> Any:
        if request.name in self.loading:
            context.abort(
                grpc.StatusCode.UNAVAILABLE, f"Request for unknown model: '{request.name}' has no available versions"
            )
        response = super().ModelConfig(request, context)
        for name, value in self.parameters.get(request.name, {}).items():
            response.config.parameters[name].string_value = value
        return response


#: A chat template with the roles written out.
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_template(folder: Path, template: str = TEMPLATE) -> Path:
    """Put a chat template beside a tokenizer."""
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
