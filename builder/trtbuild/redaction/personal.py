"""Who is at this machine: home folders, names of users and of the host."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtbuild.redaction.patterns import HOST, USER

#: Shorter names are replaced only where a word before them says what they are: user, host.
_SHORTEST_ALONE = 3
#: So are these, which are words of logs.
_COMMON = frozenset(
    {"root", "user", "users", "ubuntu", "debian", "nobody", "admin", "home", "host", "node", "server", "worker", "main", "build", "dev", "test", "gpu", "docker",
     "triton", "triton-server", "localhost", "tritonserver", "trtbuild", "linux", "data", "model", "models"}
)  # fmt: skip
#: What comes before such a name.
_LEADS = {
    USER: r"(?:user|login|owner|account)(?:[_-]?(?:name|id))?|logname|whoami|by",
    HOST: r"(?:host|node|server|machine|box)(?:[_-]?(?:name|id))?|uname|on",
}
#: Names of keys whose value is a person or a machine, also one that is not known here.
_KEYED = (
    (re.compile(r"((?<![\w.-])[\w.-]{0,64}(?:user[_-]?name|(?<![a-z])user|login|logname|e?mail)[\"']?\s{0,8}[:=]\s{0,8}[\"']?)([^\s\"',;&<>\[\]{}()]+)", re.I), USER),
    (re.compile(r"((?<![\w.-])[\w.-]{0,64}(?:host[_-]?name|node[_-]?name|(?<![a-z])nodelist)[\"']?\s{0,8}[:=]\s{0,8}[\"']?)(?!localhost\b|127\.|0\.0\.0\.0)([^\s\"',;&<>\[\]{}()]+)", re.I), HOST),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Personal:
    """What is known of the people and the machine.

    Attributes:
        homes: home folders, replaced by "~".
        names: name -> what stands in for it.
    """

    homes: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str]) -> Personal:
        """Return what the system and an environment say."""
        homes = {str(Path.home()), environment.get("HOME", "")} - {"", "/"}
        return cls(_longest_first(homes), (*_names(_users(environment), USER), *_names(_hosts(environment), HOST)))

    def text(self, text: str) -> str:
        """Return text without them."""
        for home in self.homes:
            text = re.sub(rf"{re.escape(home)}(?=[/\s\"':,;)\]]|$)", "~", text)
        for name, instead in self.names:
            lead = ""
            if len(name) < _SHORTEST_ALONE or name.lower() in _COMMON:
                lead = rf"\b(?i:{_LEADS[instead]})\b[\"']?(?:\s{{0,4}}[:=]\s{{0,4}}|[ \t]{{1,4}})[\"']?"
            text = re.sub(rf"({lead})(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", rf"\g<1>{instead}", text)
        for pattern, instead in _KEYED:
            text = pattern.sub(rf"\g<1>{instead}", text)
        return text


def _users(environment: Mapping[str, str]) -> set[str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        user = ""
    return {user, Path.home().name, *(environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}


def _hosts(environment: Mapping[str, str]) -> set[str]:
    full = {socket.gethostname(), os.uname().nodename, environment.get("HOSTNAME", "")}
    return full | {name.partition(".")[0] for name in full}


def _names(found: set[str], instead: str) -> list[tuple[str, str]]:
    return [(name, instead) for name in _longest_first(found - {"", "localhost"})]


def _longest_first(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(found, key=lambda each: (-len(each), each)))
