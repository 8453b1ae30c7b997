"""One way to ask through each of the four clients (threads or event loop, gRPC or HTTP), for tests that hold for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trtbuild_client import AsyncClient, BatchResult, Client, Generation
from trtbuild_client.mock.server import RunningMock

KINDS = ("grpc", "http", "aio-grpc", "aio-http")


@dataclass(frozen=True)
class Asker:
    """A client of one kind, made anew for each question.

    Attributes:
        options: of the client.
    """

    kind: str
    mock: RunningMock
    options: dict[str, Any]
    model: str = "ensemble"

    @property
    def url(self) -> str:
        """The address, with its scheme."""
        tls = "s" if "tls" in self.options else ""
        return f"http{tls}://{self.mock.http}" if self.kind.endswith("http") else f"grpc{tls}://{self.mock.grpc}"

    def generate(self, prompt: str, **options: Any) -> Generation:
        """Return a whole answer."""
        return self._run(
            lambda client: client.generate(prompt, **options), lambda client: client.generate(prompt, **options)
        )

    def chat(self, messages: Any, **options: Any) -> Generation:
        """Return the answer to a chat."""
        return self._run(
            lambda client: client.chat(messages, **options), lambda client: client.chat(messages, **options)
        )

    def batch(self, prompts: Iterable[str], **options: Any) -> list[BatchResult]:
        """Return the answers of a batch."""
        return self._run(
            lambda client: client.batch(prompts, **options), lambda client: client.batch(prompts, **options)
        )

    def check_ready(self) -> None:
        """Ask whether the model is ready."""
        self._run(lambda client: client.check_ready(), lambda client: client.check_ready())

    def stream(self, prompt: str, *, leave_after: int | None = None, **options: Any) -> tuple[list[str], Generation]:
        """Return the pieces and the answer of a stream; `leave_after` so many pieces."""

        def read(client: Client) -> tuple[list[str], Generation]:
            pieces: list[str] = []
            with client.stream(prompt, **options) as stream:
                for chunk in stream:
                    pieces.append(chunk.text)
                    if len(pieces) == leave_after:
                        break
            return pieces, stream.generation

        async def read_async(client: AsyncClient) -> tuple[list[str], Generation]:
            pieces: list[str] = []
            async with client.stream(prompt, **options) as stream:
                async for chunk in stream:
                    pieces.append(chunk.text)
                    if len(pieces) == leave_after:
                        break
            return pieces, stream.generation

        return self._run(read, read_async)

    def _run(self, sync: Callable[[Client], Any], later: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        if not self.kind.startswith("aio"):
            with Client(self.url, self.model, **self.options) as client:
                return sync(client)

        async def main() -> Any:
            async with AsyncClient(self.url, self.model, **self.options) as client:
                return await later(client)

        return asyncio.run(main())


#: Makes an asker; see the fixture `ask`.
Ask = Callable[..., Asker]
