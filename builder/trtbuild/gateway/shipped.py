"""The chat template code that runs inside the server, for use outside of it: one implementation of the sandbox, not two."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

from trtbuild.repo.locate import templates_dir


class RequestError(Exception):
    """Stands for `serving.RequestError`, whose module needs Triton's Python backend."""


@cache
def chat_template() -> Any:
    """Return the class `ChatTemplate` of the model repository's preprocessing; its errors are `RequestError` of this module."""
    path = templates_dir() / "common" / "preprocessing" / "1" / "chat_template.py"
    spec = importlib.util.spec_from_file_location("trtbuild.gateway._chat_template", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    stand_in = ModuleType("serving")
    stand_in.RequestError = RequestError  # type: ignore[attr-defined]  # a module made here has the names given to it
    before, writes_bytecode = sys.modules.get("serving"), sys.dont_write_bytecode
    sys.modules["serving"] = stand_in
    sys.dont_write_bytecode = True  # the folder is copied byte for byte into repositories
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes_bytecode
        if before is None:
            del sys.modules["serving"]
        else:
            sys.modules["serving"] = before
    return module.ChatTemplate
