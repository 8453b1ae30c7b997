"""Takes secrets and personal names out of text and files.

Four nets, each for what the others miss: values that the environment calls secret, wherever they stand and however they are written; what looks
like a secret by itself (`patterns`); values beside a name that says they are secret (`pairs`); the people and the machine (`personal`).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import yaml

from trtbuild.foreign_yaml import plain_yaml
from trtbuild.redaction.names import is_secret
from trtbuild.redaction.pairs import redact_pairs
from trtbuild.redaction.patterns import REDACTED, passwords_of, redact_looks, redact_personal
from trtbuild.redaction.personal import Personal

#: Shorter values of secret variables are left, since replacing "1" or "on" everywhere would destroy the text.
_SHORTEST_SECRET = 6
#: Where a broken file has more than a word below a secret key.
_BELOW = re.compile(r"(?P<key>[A-Za-z_][\w.-]{0,200})[\"']?\s*:\s*(?:[\[{]|[|>][^\n]*\n|\n)")
#: The keys of a pair that is written as an object: {"name": "HF_TOKEN", "value": "..."}.
_NAME_KEYS, _VALUE_KEYS = ("name", "key", "variable", "env"), frozenset({"value", "string_value", "val"})
_NAME = re.compile(r"-{0,2}[A-Za-z][\w.-]*")


#: Suffix -> functions that read and write it.
_FORMATS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    ".json": (json.loads, lambda value: json.dumps(value, indent=2, ensure_ascii=False) + "\n"),
    ".yaml": (plain_yaml, lambda value: yaml.safe_dump(value, sort_keys=False, allow_unicode=True)),
}


@dataclass(frozen=True, slots=True)
class Redactor:
    """What is known to be secret or personal here.

    Attributes:
        secrets: values that are replaced wherever they stand, the longest first.
        personal: the people and the machine.
    """

    secrets: tuple[str, ...] = ()
    personal: Personal = field(default_factory=Personal)

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str] | None = None) -> Redactor:
        """Return one that knows this environment's secrets, this user and this host."""
        found = os.environ if environment is None else environment
        return cls(secret_values(found), Personal.of_this_machine(found))

    def known(self, text: str) -> str:
        """Return text without the secrets that are known by their values."""
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        return text

    def text(self, text: str) -> str:
        """Return text without secrets and personal names."""
        text = redact_pairs(redact_looks(self.known(text)))
        return self.personal.text(redact_personal(text))

    def value(self, value: Any, *, secret: bool = False) -> Any:
        """Return a JSON value without secrets: everything below a secret key, and secrets within texts and keys."""
        if isinstance(value, Mapping):
            pair = any(is_secret(name) for key in _NAME_KEYS if isinstance(name := value.get(key), str))
            return {
                self.text(str(name)): self.value(
                    item, secret=secret or is_secret(str(name)) or (pair and str(name).lower() in _VALUE_KEYS)
                )
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            # ["--api-key", "..."] and ["x-api-key", "..."] are pairs too.
            names = [isinstance(each, str) and _NAME.fullmatch(each) is not None and is_secret(each) for each in value]
            before = [False, *names]
            return [self.value(item, secret=secret or named) for item, named in zip(value, before, strict=False)]
        if value is None or isinstance(value, bool):
            return value
        if secret or isinstance(value, bytes) or str(value) in self.secrets:
            return REDACTED
        return self.text(value) if isinstance(value, str) else value

    def file(self, name: str, text: str) -> str:
        """Return the text of a file: JSON and YAML by their keys, else as text; a broken file is cut where a secret key has more than a word below it."""
        read, write = _FORMATS.get(Path(name).suffix, (None, None))
        if read is None or write is None:
            return self.text(text)
        try:
            return write(self.value(read(text)))
        except (ValueError, RecursionError, yaml.YAMLError):
            below = next((match for match in _BELOW.finditer(text) if is_secret(match["key"])), None)
            cut = text if below is None else f"{text[: below.end('key')]}: {REDACTED}\n"
            return self.text(cut)


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names mean secrets and the passwords within URLs of any, in all spellings, the longest first."""
    found: set[str] = set()
    for name, value in environment.items():
        whole = [value, *value.splitlines()] if is_secret(name) else []
        for each in (*whole, *passwords_of(value)):
            found |= _spellings(each.strip())
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def _spellings(value: str) -> set[str]:
    """Return a value as it is, as JSON and URLs escape it, and in base64."""
    if len(value) < _SHORTEST_SECRET:
        return set()
    raw = value.encode("utf-8", "surrogateescape")
    encoded = {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    escaped = json.dumps(value)[1:-1]
    return {
        value,
        escaped,
        json.dumps(escaped)[1:-1],
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        repr(value)[1:-1],
        *encoded,
    }
