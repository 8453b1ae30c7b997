"""The client's `chat` against a real server: it finds out that messages are taken, over gRPC and HTTP, through both models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.unit.templates.test_templates_messages import TEMPLATE
from tests.unit.templates.test_templates_triton import MODELS, render_scripted

from trtbuild.serve.supervisor import Server
from trtbuild_client import AsyncClient, Client

pytestmark = pytest.mark.triton

TURNS = [{"role": "system", "content": "S"}, {"role": "user", "content": "hé", "name": "Ada"}]
#: What the template makes of them; the core answers with the tokens of its prompt, of which BOS is no text.
PROMPT = "<system:>S<user:Ada>hé>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("chat")
    config = {"chat_template": TEMPLATE}
    repository, _ = render_scripted(folder, tokenizer_config=config, serving={"chat_template": "messages"})
    with Server(repository) as running:
        yield running


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_messages_reach_the_servers_template(server: Server, model: str, protocol: str) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    length = len(PROMPT.encode()) + 1
    with Client(url, model, timeout_s=60) as client:
        assert client.chat(TURNS, max_tokens=length).text == PROMPT
        streamed = client.stream(client.chat_prompt(TURNS), max_tokens=length)
        assert "".join(chunk.text for chunk in streamed) == PROMPT

    async def ask() -> str:
        async with AsyncClient(url, model, timeout_s=60) as client:
            return (await client.chat(TURNS, max_tokens=length)).text

    assert asyncio.run(ask()) == PROMPT
