"""What Triton says about a model, read from ModelMetadataResponse and ModelConfigResponse.

Field numbers are those of grpc_service.proto and model_config.proto (triton-inference-server/common); tests compare them with the classes
that protobuf generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild_client.load.protowire import WireError, fields, integers, signed


def tensor_specs(message: bytes, number: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return (name, data type, shape) of the tensors in a ModelMetadataResponse: number 4 for inputs, 5 for outputs.

    Raises:
        WireError, UnicodeDecodeError: it is none.
    """
    found = []
    for each, value in fields(message):
        if each == number and isinstance(value, bytes):
            name = dtype = ""
            shape: list[int] = []
            for part, content in fields(value):
                if part == 1 and isinstance(content, bytes):
                    name = content.decode()
                elif part == 2 and isinstance(content, bytes):
                    dtype = content.decode()
                elif part == 3:
                    shape += integers(content)
            found.append((name, dtype, tuple(shape)))
    return found


def model_policy(message: bytes) -> Mapping[str, Any]:
    """Return max_batch_size, is_decoupled, optional inputs, steps of the ensemble and parameters from a ModelConfigResponse.

    Raises:
        WireError, UnicodeDecodeError: it is none.
    """
    policy: dict[str, Any] = {
        "max_batch_size": 0,
        "is_decoupled": False,
        "optional": set(),
        "steps": [],
        "parameters": {},
    }
    config = next((value for number, value in fields(message) if number == 1), b"")
    if not isinstance(config, bytes):
        raise WireError("a configuration that is no message")
    for number, value in fields(config):
        if number == 4 and isinstance(value, int):
            policy["max_batch_size"] = signed(value)
        elif number == 5 and isinstance(value, bytes):
            parts = dict(fields(value))
            name = parts.get(1, b"")
            if parts.get(8) == 1 and isinstance(name, bytes):
                policy["optional"].add(name.decode())
        elif number == 14 and isinstance(value, bytes):
            entry = dict(fields(value))
            name, content = entry.get(1, b""), entry.get(2, b"")
            if isinstance(name, bytes) and isinstance(content, bytes):
                text = dict(fields(content)).get(1, b"")  # ModelParameter.string_value
                policy["parameters"][name.decode()] = text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
        elif number == 15 and isinstance(value, bytes):
            for each, step in fields(value):
                if each == 1 and isinstance(step, bytes):
                    name = dict(fields(step)).get(1, b"")
                    policy["steps"].append(name.decode() if isinstance(name, bytes) else "")
        elif number == 19 and isinstance(value, bytes):
            policy["is_decoupled"] = dict(fields(value)).get(1) == 1
    return policy
