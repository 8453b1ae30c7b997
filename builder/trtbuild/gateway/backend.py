"""Triton as the gateway sees it: what its model can do, and requests to it. The only module here that holds a client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.gateway.settings import Settings
from trtbuild_client import AsyncClient, ModelNotFound
from trtbuild_client.load.limits import smallest
from trtbuild_client.request import wire_name_of

if TYPE_CHECKING:
    from trtbuild_client.aio_stream import AsyncStream
    from trtbuild_client.wire import ModelInfo

#: Seconds for the server to say whether it is ready.
_READY_TIMEOUT_S = 5.0
_GUIDE_INPUTS = ("guided_decoding_guide_type", "guided_decoding_guide")


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the model can do.

    Attributes:
        can_stream: tokens come as they are made; else an answer comes whole.
        counts_tokens: it says how many tokens prompt and answer have.
        has_logprobs: it gives the log probability of each token.
        has_guides: it can hold answers to JSON or to a schema.
        applies_template: it applies the chat template itself, to one user message.
        max_seq_len: tokens that prompt and answer may have together, None where no configuration says so.
    """

    info: ModelInfo
    can_stream: bool
    counts_tokens: bool
    has_logprobs: bool
    has_guides: bool
    applies_template: bool
    max_seq_len: int | None = None

    def has(self, parameter: str) -> bool:
        """Return whether the model takes a parameter."""
        return wire_name_of(self.info, parameter) is not None


class Backend:
    """One model of one Triton server.

    Nothing is sent before the first question.

    Args:
        settings: where it is.

    Raises:
        InvalidRequest: an address or a TLS file that cannot be.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = self._connect(settings.model)
        self._abilities: asyncio.Task[Abilities] | None = None

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        await self._client.close()

    async def check_ready(self) -> None:
        """Return when the model serves.

        Raises:
            ClientError: it does not.
        """
        await self._client.check_ready()

    async def abilities(self) -> Abilities:
        """Return what the model can do, asked for once.

        Raises:
            ClientError: the server cannot be asked.
        """
        task = self._abilities
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._abilities = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(task)

    def stream(
        self,
        prompt: str,
        options: Mapping[str, Any],
        tensors: Mapping[str, Any],
        *,
        request_id: str,
        is_streaming: bool,
    ) -> AsyncStream:
        """Return a request that is sent when it is read."""
        return self._client.request(
            prompt,
            is_streaming=is_streaming,
            tensors=tensors,
            request_id=request_id,
            **options,
        )

    def _connect(self, model: str) -> AsyncClient:
        settings = self._settings
        return AsyncClient(
            settings.url,
            model,
            timeout_s=settings.timeout_s,
            connect_timeout_s=min(_READY_TIMEOUT_S, settings.timeout_s),
            first_token_timeout_s=settings.first_token_timeout_s,
            between_tokens_timeout_s=settings.between_tokens_timeout_s,
            **settings.reach,
        )

    async def _ask(self) -> Abilities:
        info = await self._client.info()
        core = await self._parameters(info.parameters.get("tensorrt_llm_model_name", "tensorrt_llm"), info)
        prompts = await self._parameters("preprocessing", info)
        return Abilities(
            info=info,
            can_stream=info.is_decoupled,
            counts_tokens=all(
                name in info.inputs and name.removeprefix("return_") in info.outputs
                for name in ("return_num_input_tokens", "return_num_output_tokens")
            ),
            has_logprobs="return_log_probs" in info.inputs and "output_log_probs" in info.outputs,
            has_guides=self._has_guides(info, core),
            applies_template=prompts.get("chat_template", "").strip().lower() == "true",
            max_seq_len=smallest((info.parameters, core, prompts)),
        )

    def _has_guides(self, info: ModelInfo, core: Mapping[str, str]) -> bool:
        """Say whether guided decoding works: the inputs alone are always declared, and mean nothing without a backend."""
        if not all(name in info.inputs for name in _GUIDE_INPUTS):
            return False
        if self._settings.guided is not None:
            return self._settings.guided
        backend = core.get("guided_decoding_backend", "").strip()
        return bool(backend) and not backend.startswith("${")  # an unfilled placeholder of a stock template

    async def _parameters(self, model: str, info: ModelInfo) -> Mapping[str, str]:
        """Return the parameters of a model behind the one that is asked; none when there is no such model.

        Raises:
            ClientError: the server does not say so; it is asked again with the next request, since it may still be loading.
        """
        if model == info.name:
            return info.parameters
        async with self._connect(model) as client:
            try:
                return (await client.info()).parameters
            except ModelNotFound:
                return {}
