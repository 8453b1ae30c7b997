"""Takes secrets and personal names out of text: tokens, keys, passwords, home folders, users, hosts, mail addresses.

Three nets, each for what the others miss: values that the environment calls secret, wherever they stand; values whose key says that they are
secret, in JSON, YAML, config.pbtxt, command lines and URLs; and words that look like the tokens of well-known services.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtbuild.serve.environment import is_secret

REDACTED = "[redacted]"
USER, HOST = "[user]", "[host]"
#: Shorter values of secret variables are left, since replacing "1" or "on" everywhere would destroy the text.
_SHORTEST_SECRET = 6
#: The same for names of users and hosts; "root" says nothing about anybody.
_SHORTEST_NAME = 3
_NOT_PERSONAL = frozenset(
    {"root", "user", "ubuntu", "nobody", "triton-server", "localhost", "tritonserver", "trtbuild"}
)
#: Settings of tokenizers and limits, whose names have "token" in them and which are no secrets.
_TOKENS = re.compile(r"(?:bos|eos|pad|unk|sep|cls|mask|image|audio|video|additional_special|added|special|end|stop)_tokens?(?:_ids?)?|.*tokens?_(?:id|ids|per_block|length|type|limit)|token")  # fmt: skip
#: Words that make the value beside them a secret. `token` alone counts at the end of a name (hf_token), tokens do not (max_tokens).
_WORD = r"(?:passw(?:or)?d|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|license[_-]?key|client[_-]?key|authorization|cookie|(?<![a-z])auth|token)"
_KEY = re.compile(rf"(?:[\w.-]*{_WORD}|[\w.-]*_pat)", re.I)
#: The end of a key and its value. The rest of the key lies before the match: a pattern that began with it would take quadratic time on long words.
_NAMED = re.compile(rf"(?P<word>{_WORD})(?P<close>[\"']?)(?P<between>\s*[:=]\s*|[ \t]+)(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?:Bearer|Basic)\s+\S+|[\[{{][^\n]*|[^\s,;&\"'{{}}\[\]]+)", re.I)  # fmt: skip
_BEFORE = re.compile(r"[\w.-]*\Z")
_LONGEST_KEY = 64
#: key: "hf_token"  value: { string_value: "..." }, as parameters of config.pbtxt are written, on one line or several.
_PBTXT = re.compile(rf"(key\s*:\s*\"[\w.-]{{0,{_LONGEST_KEY}}}{_WORD}\"\s*,?\s*value\s*:?\s*{{\s*string_value\s*:\s*)\"(?:[^\"\\]|\\.)*\"", re.I)  # fmt: skip
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), REDACTED),
    (re.compile(r"(?<=://)[^/\s:@]+(?::[^/\s@]*)?@"), f"{REDACTED}@"),
    (re.compile(r"\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.I), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"), REDACTED),
    (re.compile(r"\b(?:hf_|nvapi-|gh[pousr]_|github_pat_|glpat-|sk-|pk-|xox[abprs]-|ya29\.|dop_v1_|pypi-)[A-Za-z0-9_-]{8,}"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bAIza[A-Za-z0-9_-]{20,}"), REDACTED),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}\b"), "[mail]"),
    (re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}"), "[gpu]"),
    (re.compile(r"(?:/home|/Users)/[^/\s\"':,;]+"), "~"),
    (re.compile(r"(?<![\w/])/root(?=[/\s\"':,;]|$)"), "~"),
)  # fmt: skip


_BELOW = re.compile(rf"{_WORD}[\"']?\s*:\s*(?:[\[{{]|\n).*", re.S | re.I)
#: Suffix -> functions that read and write it.
_FORMATS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    ".json": (json.loads, lambda value: json.dumps(value, indent=2, ensure_ascii=False) + "\n"),
    ".yaml": (yaml.safe_load, lambda value: yaml.safe_dump(value, sort_keys=False, allow_unicode=True)),
}


@dataclass(frozen=True, slots=True)
class Redactor:
    """What is known to be secret or personal here.

    Attributes:
        secrets: values that are replaced wherever they stand, the longest first.
        homes: home folders, replaced by "~".
        names: name -> what stands in for it, as a whole word.
    """

    secrets: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str] | None = None) -> Redactor:
        """Return one that knows this environment's secrets, this user and this host."""
        found = os.environ if environment is None else environment
        secrets = {value for name, value in found.items() if is_secret(name) and len(value) >= _SHORTEST_SECRET}
        homes = {str(Path.home()), found.get("HOME", "")} - {"", "/"}
        return cls(
            tuple(sorted(secrets, key=len, reverse=True)),
            tuple(sorted(homes, key=len, reverse=True)),
            (*_names(_users(found), USER), *_names(_hosts(found), HOST)),
        )

    def text(self, text: str) -> str:
        """Return text without secrets and personal names."""
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        for home in self.homes:
            text = re.sub(rf"{re.escape(home)}(?=[/\s\"':,;)\]]|$)", "~", text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        text = _PBTXT.sub(rf'\1"{REDACTED}"', text)
        text = _NAMED.sub(_without_value, text)
        for name, instead in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", lambda _, to=instead: to, text)  # type: ignore[misc]  # the default binds the loop's value
        return text

    def value(self, value: Any, *, secret: bool = False) -> Any:
        """Return a JSON value without secrets: everything below a secret key, and secrets within texts and keys."""
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): self.value(item, secret=secret or is_secret_key(str(name)))
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, secret=secret) for item in value]
        if secret and value is not None and not isinstance(value, bool):
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
            return self.text(_BELOW.sub(f": {REDACTED}\n", text))


def is_secret_key(key: str) -> bool:
    """Say whether a key names a secret: hf_token, password and api-key do; eos_token and max_tokens do not."""
    return (_TOKENS.fullmatch(key.lower()) is None and _KEY.fullmatch(key) is not None) or key.lower() == "token"


def _without_value(match: re.Match[str]) -> str:
    before = _BEFORE.search(match.string[max(0, match.start() - _LONGEST_KEY) : match.start()])
    key = (before[0] if before else "") + match["word"]
    # A blank between key and value is that of a command line (--hf-token abc); prose after "token " is left.
    if not is_secret_key(key) or (not match["between"].strip() and not key.startswith("-")):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['word']}{match['close']}{match['between']}{quote}{REDACTED}{quote}"


def _users(environment: Mapping[str, str]) -> set[str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        user = ""
    return {user, Path.home().name, *(environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}


def _hosts(environment: Mapping[str, str]) -> set[str]:
    full = {socket.gethostname(), os.uname().nodename, environment.get("HOSTNAME", "")}
    return full | {name.partition(".")[0] for name in full}


def _names(found: Iterable[str], instead: str) -> list[tuple[str, str]]:
    kept = {name for name in found if len(name) >= _SHORTEST_NAME and name.lower() not in _NOT_PERSONAL}
    return [(name, instead) for name in sorted(kept, key=len, reverse=True)]
