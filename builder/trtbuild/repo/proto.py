"""Triton's ModelConfig message, without the rest of tritonclient.

`import tritonclient.grpc` takes a third of a second and needs grpc; the one generated module that is wanted here needs
protobuf only, so it is loaded by its file.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from trtbuild.errors import TrtbuildError

_MODULE = "tritonclient.grpc.model_config_pb2"
#: Where a message of protobuf's quotes the whole line, and how much of that is shown.
_QUOTED, _MOST_QUOTED = re.compile(r"(?s)(?<=: )'.*'(?=: )"), 80


class ConfigSyntaxError(Exception):
    """A config.pbtxt that Triton could not read; the message has line and column."""


def parse_config(text: str) -> Any:
    """Return the ModelConfig message a config.pbtxt describes.

    Raises:
        ConfigSyntaxError: it is not valid protobuf text, or has a field or a value ModelConfig does not know.
    """
    try:
        return text_format.Parse(text, _messages().ModelConfig())
    except text_format.ParseError as error:
        raise ConfigSyntaxError(_QUOTED.sub(_shorten, str(error))) from error
    except RecursionError as error:
        raise ConfigSyntaxError("1:1 : it is nested too deeply") from error


def as_dict(config: Any) -> dict[str, Any]:
    """Return a ModelConfig as plain values, fields at their defaults left out and enums by name."""
    from google.protobuf import json_format

    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def datatype_name(value: int) -> str:
    """Return the name of a DataType number, e.g. TYPE_INT32."""
    return str(_messages().DataType.Name(value))


def _shorten(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) <= _MOST_QUOTED else f"{match[0][:_MOST_QUOTED]}...'"


@cache
def _messages() -> Any:
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    package = importlib.util.find_spec("tritonclient")
    places = (
        [Path(place) / "grpc" / "model_config_pb2.py" for place in (package.submodule_search_locations or [])]
        if package
        else []
    )
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise TrtbuildError("tritonclient is not installed", hint="pip install 'tritonclient[grpc]'")
    spec = importlib.util.spec_from_file_location("trtbuild.repo._model_config_pb2", file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
