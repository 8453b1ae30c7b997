"""`docker run` of a plan: not as root, without capabilities, read-only, ports on the plan's address (field reports LM08, SE05)."""

from __future__ import annotations

from trtbuild.serve.launch.health_check import health_check, needs_check
from trtbuild.serve.launch.make import port_options
from trtbuild.serve.launch.plan import READY_PATH, SHARED_MEMORY_BYTES, USER_ID, LaunchPlan

_QUOTE = '"'


def command(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the argument vector; NCCL and Python models overflow Docker's 64 MiB of shared memory, so it is always set."""
    gpus: tuple[str, ...] = ()
    if plan.world_size:
        gpus = ("--gpus", f'"device={plan.visible_devices}"' if plan.gpus else str(plan.world_size))
    published = [part for _, port in port_options(plan.ports) for part in ("-p", f"{plan.address}:{port}:{port}")]
    mounted = [part for mount in plan.files for part in ("--mount", _csv("type=bind", f"source={mount.source}", f"target={mount.target}", "readonly"))]  # fmt: skip
    environment = [part for name, value in plan.environment.items() for part in ("-e", f"{name}={value}")]
    health: tuple[str, ...] = ()
    if needs_check(plan):
        health = (
            "--health-cmd", health_check(plan.ports.http, READY_PATH), "--health-interval", "15s", "--health-timeout", "5s",
            "--health-retries", "4", "--health-start-period", f"{plan.start_s}s",
        )  # fmt: skip
    return (
        "docker", "run", "--rm", "--init", "--name", plan.name, *gpus,
        f"--shm-size={SHARED_MEMORY_BYTES >> 30}g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
        "--user", f"{USER_ID}:{USER_ID}", "--read-only", "--tmpfs", "/tmp:exec,size=1g", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--stop-signal", "SIGINT", "--stop-timeout", str(plan.grace_s + 5),
        *health, *published, *mounted, *environment, "-e", "HOME=/tmp", plan.image, *plan.command,
    )  # fmt: skip


def _csv(*fields: str) -> str:
    """Return a value of --mount, which docker reads as a line of CSV (`opts/mount.go` of docker/cli; encoding/csv of Go)."""
    quoted = (
        f'"{each.replace(_QUOTE, _QUOTE * 2)}"' if any(mark in each for mark in ',"\n') else each for each in fields
    )
    return ",".join(quoted)
