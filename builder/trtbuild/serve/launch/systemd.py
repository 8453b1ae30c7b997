"""A systemd unit of a plan: a user of its own, its own /dev/shm, requests in flight finished, and nothing left behind.

Source: systemd.exec(5), systemd.kill(5) and systemd.service(5).
"""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.serve.launch.health_check import ask
from trtbuild.serve.launch.plan import READY_PATH, SHARED_MEMORY_BYTES, LaunchPlan

#: Seconds between SIGINT's grace and the end of all that is left.
_MARGIN_S = 10
_CHARACTERS = {"\\": "\\\\", '"': '\\"', "%": "%%", "\n": "\\n"}


def unit(plan: LaunchPlan) -> str:
    """Return the text of the unit. The start ends when every model is ready; what does not stop in time is killed with all its children."""
    ready = f"http://{'127.0.0.1' if plan.address == '0.0.0.0' else plan.address}:{plan.ports.http}{READY_PATH}"
    waiting = ["/bin/sh", "-c", f"until {ask(ready)}; do sleep 2; done"]  # fmt: skip
    environment = [f"Environment={_quote(f'{name}={value}')}" for name, value in plan.environment.items()]
    return "\n".join([
        "[Unit]", f"Description=Triton with TensorRT-LLM: {plan.name}", "After=network-online.target",
        "Wants=network-online.target", "StartLimitIntervalSec=3600", "StartLimitBurst=5", "",
        "[Service]", "Type=exec", "DynamicUser=yes", *environment, "Environment=HOME=/tmp",
        f"ExecStart={_join(plan.command)}",
        "# Started means ready: units that need the server come after that.", f"ExecStartPost={_join(waiting)}",
        f"TimeoutStartSec={plan.start_s}",
        "KillMode=mixed", "KillSignal=SIGINT", f"TimeoutStopSec={plan.grace_s + _MARGIN_S}",
        "Restart=on-failure", "RestartSec=10", "LimitMEMLOCK=infinity", "LimitSTACK=67108864",
        "# Shared memory of its own: nothing is left there, and other servers are not met.",
        f"TemporaryFileSystem=/dev/shm:rw,nosuid,nodev,mode=1777,size={SHARED_MEMORY_BYTES >> 30}G",
        "NoNewPrivileges=yes", "PrivateTmp=yes", "ProtectSystem=strict", "ProtectHome=read-only", "CapabilityBoundingSet=",
        *(f"ReadOnlyPaths={_quote(mount.source)}" for mount in plan.files), "",
        "[Install]", "WantedBy=multi-user.target", "",
    ])  # fmt: skip


def _join(command: Sequence[str]) -> str:
    return " \\\n  ".join(_quote(word).replace("$", "$$") for word in command)


def _quote(word: str) -> str:
    """Return a word as systemd reads it back; `%` means something to it everywhere, `$` in commands only."""
    escaped = "".join(_CHARACTERS.get(character, character) for character in word)
    is_plain = word and not any(character in " \t\n\"\\;'" for character in word)
    return escaped if is_plain else f'"{escaped}"'
