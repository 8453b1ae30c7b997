"""What a container is asked to see whether it serves: its HTTP endpoint, and its stubs, whose death tritonserver does not notice.

A stub that the server did not end itself stays a zombie (`trtbuild.serve.stubs`). So does, for an instant, one that it ended: whoever
asks must take more than one failure in a row for a fault. One shell command for every launch file; it needs `sh`, and `curl` for the
endpoint, which NVIDIA's images have: the function dockerfile_prepare_container_linux of triton-inference-server/server's build.py installs curl, and
Dockerfile.triton.trt_llm_backend of tensorrtllm_backend uses it in its last stage. Checked against those sources, not in the images; so an image without it is not called dead for that.
"""

from __future__ import annotations

from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.python_stub import STUB_COMM

#: Looks through the container's processes. The first fields of /proc/PID/stat are pid, name, state and parent (proc(5)); names of stubs
#: hold no blanks. What a stub has forked bears its name and is no stub. Kubernetes would replace `$(...)` and `$$`, so neither is here.
_STUBS_LIVE = (
    "for stat in /proc/[0-9]*/stat; do "
    '{ read -r pid name state parent rest <"$stat" && '
    f'[ "$name $state" = "({STUB_COMM}) Z" ] && '
    'read -r above <"/proc/$parent/comm" && '
    f'[ "$above" != {STUB_COMM} ]; }} 2>/dev/null && '
    'echo "process $pid of a Python model has died" && exit 1; '
    "done; exit 0"
)


def ask(url: str) -> str:
    """Return the shell command that succeeds when a URL answers 200 within four seconds, less than probes give it; proxies are never used."""
    return f'curl --silent --fail --noproxy "*" --output /dev/null --max-time 4 {url}'


def health_check(port: int, path: str) -> str:
    """Return the text for `sh -c` in the server's container that succeeds when an endpoint answers 200, where there is curl, and no stub is dead.

    Args:
        port: of HTTP.
        path: of the endpoint.
    """
    url = f"http://127.0.0.1:{port}{path}"
    asked = f'{ask(url)} || {{ echo "{url} does not answer 200"; exit 1; }}'
    return f"if command -v curl >/dev/null; then {asked}; fi; {_STUBS_LIVE}"


def needs_check(plan: LaunchPlan) -> bool:
    """Say whether nobody else in the container looks after stubs; `trtbuild serve`, which the reference variant runs, does so itself."""
    return plan.variant != "reference"
