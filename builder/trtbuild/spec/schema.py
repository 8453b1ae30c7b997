"""The JSON Schema of trtbuild.yaml."""

from __future__ import annotations

from typing import Any

import msgspec

from trtbuild.spec.deployment import Deployment


def json_schema() -> dict[str, Any]:
    """Return the schema (2020-12), with the sections under `$defs`."""
    (whole,), definitions = msgspec.json.schema_components([Deployment], ref_template="#/$defs/{name}")
    root = definitions.pop(str(whole["$ref"]).rpartition("/")[2])
    # Defaults become plain JSON: tuples are lists there.
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**root, "$defs": definitions}))
    return data
