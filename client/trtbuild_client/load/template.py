"""Requests to Triton as bytes, made from a template: only id, prompt and length differ from one to the next.

Field numbers are those of grpc_service.proto (triton-inference-server/common); tests compare them with the classes that protobuf generates.
"""

from __future__ import annotations

from trtbuild_client.load.exchange import Job
from trtbuild_client.load.protowire import field, integer, packed
from trtbuild_client.wire import Tensor


class Template:
    """Requests that differ in id, prompt and number of tokens only.

    Args:
        model: name of the model.
        tensors: of one request, as `request.build` makes them.
        prompt_name: the tensor of the prompt.
        length_names: tensors that hold the number of tokens.
        timeout_us: what the server gets as its own limit of queueing, None for none.
        separator: between the texts of a conversation.
    """

    def __init__(
        self,
        model: str,
        tensors: tuple[Tensor, ...],
        *,
        prompt_name: str = "text_input",
        length_names: tuple[str, ...] = ("max_tokens",),
        timeout_us: int | None = None,
        separator: str = "\n",
    ) -> None:
        self._head = field(1, model)
        parameters = _parameter("triton_enable_empty_final_response", integer(1, 1))
        if timeout_us is not None:
            parameters += _parameter("timeout", integer(2, timeout_us))
        inputs = b"".join(
            field(5, field(1, each.name) + field(2, each.dtype) + packed(3, each.shape)) for each in tensors
        )
        self._middle = parameters + inputs
        self._names = tuple(each.name for each in tensors)
        self._raw = tuple(field(7, each.data) for each in tensors)
        self._prompt_at = self._names.index(prompt_name)
        self._lengths_at = tuple(index for index, name in enumerate(self._names) if name in length_names)
        self._sizes = {index: len(tensors[index].data) for index in self._lengths_at}
        self._separator = separator

    def message(self, job: Job, request_id: str) -> bytes:
        """Return the bytes of one ModelInferRequest."""
        prompt = self._separator.join(job.messages).encode("utf-8", "surrogateescape")
        raw = list(self._raw)
        raw[self._prompt_at] = field(7, len(prompt).to_bytes(4, "little") + prompt)
        for index in self._lengths_at:
            raw[index] = field(7, job.max_tokens.to_bytes(self._sizes[index], "little"))
        return self._head + field(3, request_id) + self._middle + b"".join(raw)


def _parameter(name: str, value: bytes) -> bytes:
    return field(4, field(1, name) + field(2, value))
