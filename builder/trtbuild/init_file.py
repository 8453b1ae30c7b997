"""The text of a commented trtbuild.yaml: every key with its description, its value and, where they differ, its default.

Knows how YAML is written. What keys there are comes from `spec.fields`, so this file never lists one.
"""

from __future__ import annotations

import math
import textwrap
from typing import Any

import yaml

from trtbuild.spec import Deployment
from trtbuild.spec.fields import fields, value_at

_WIDTH = 110
#: Kinds that the value itself shows.
_OBVIOUS = ("text", "true or false")
_HEADER = (
    "One deployment: from the Hugging Face folder to the Triton server. Every key is listed with its value; where that "
    "is not the default, the default is named. Unknown keys are errors. Machine-readable: `trtbuild schema`."
)


def render(deployment: Deployment) -> str:
    """Return trtbuild.yaml as text; parsing it gives the same deployment."""
    lines = _comment(_HEADER, "")
    for field in fields():
        indent = "  " * (len(field.path) - 1)
        if field.section is not None:
            lines += ["", *_comment(field.description, indent), f"{indent}{field.path[-1]}:"]
            continue
        value = value_at(deployment, field.path)
        kind = f" ({field.kind})" if field.kind not in _OBVIOUS else ""
        default = "" if field.required or value == field.default else f" Default: {scalar(field.default)}."
        lines += [] if indent else [""]
        lines += _comment(f"{field.description}{kind}{default}", indent)
        lines.append(f"{indent}{field.path[-1]}: {scalar(value)}")
    return "\n".join(lines) + "\n"


def scalar(value: Any) -> str:
    """Return one value as YAML on one line, quoted where it must be."""
    items = value if isinstance(value, list) else [value]
    style = '"' if any(isinstance(item, str) and "".join(item.splitlines()) != item for item in items) else None
    text: str = yaml.safe_dump(
        [value], default_flow_style=True, default_style=style, width=math.inf, allow_unicode=True
    )
    return text.strip().removeprefix("[").removesuffix("]")


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]
