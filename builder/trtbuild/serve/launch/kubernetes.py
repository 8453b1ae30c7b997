"""Kubernetes manifests of a plan for one node: a Deployment and a Service.

Not as root, read-only, without capabilities or an account (field report SE05); memory-backed /dev/shm (LM08); liveness is not readiness
(MP05). Source of the probes' times: Triton specification 4.6. Model weights come from volume claims that must exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from trtbuild.serve.launch.health_check import health_check, needs_check
from trtbuild.serve.launch.make import port_options
from trtbuild.serve.launch.plan import LIVE_PATH, READY_PATH, SHARED_MEMORY_BYTES, USER_ID, LaunchPlan

Manifest = dict[str, Any]
#: Requests still arrive for a moment after a pod begins to end; seconds.
_DRAIN_S = 5
_MARGIN_S = 10
_PROBE_PERIOD_S = 15
CONTAINER = "server"


def manifests(plan: LaunchPlan) -> list[Manifest]:
    """Return the Deployment and its Service."""
    template = {"metadata": {"labels": labels(plan)}, "spec": pod(plan, plan.command, is_serving=True)}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # GPUs are not there twice
        "progressDeadlineSeconds": plan.start_s + _MARGIN_S,
        "selector": {"matchLabels": labels(plan)},
        "template": template,
    }
    return [resource("apps/v1", "Deployment", plan, spec), service(plan)]


def text(documents: Sequence[Manifest]) -> str:
    """Return manifests as YAML."""
    return "---\n".join(yaml.safe_dump(document, sort_keys=False, width=120) for document in documents)


def labels(plan: LaunchPlan) -> dict[str, str]:
    """Return what the Service finds its pods by."""
    return {"app.kubernetes.io/name": "trtbuild", "app.kubernetes.io/instance": plan.name}


def resource(api: str, kind: str, plan: LaunchPlan, spec: Mapping[str, Any]) -> Manifest:
    """Return one manifest."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": plan.name, "labels": labels(plan)}, "spec": dict(spec)}  # fmt: skip


def service(plan: LaunchPlan, more: Mapping[str, str] | None = None) -> Manifest:
    """Return the Service: inside the cluster only, since Triton authenticates nobody."""
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in port_options(plan.ports)]
    return resource("v1", "Service", plan, {"type": "ClusterIP", "selector": {**labels(plan), **(more or {})}, "ports": ports})  # fmt: skip


def pod(plan: LaunchPlan, command: Sequence[str], *, is_serving: bool, gpus: int | None = None) -> Manifest:
    """Return the spec of a pod.

    Args:
        plan: the launch.
        command: of its container.
        is_serving: whether it has ports and probes.
        gpus: GPUs it gets; None: all of the plan.
    """
    count = plan.world_size if gpus is None else gpus
    volumes, mounts = _volumes(plan)
    container: Manifest = {
        "name": CONTAINER,
        "image": plan.image,
        "command": [_literal(word) for word in command],
        "env": [
            {"name": name, "value": _literal(value)} for name, value in {**plan.environment, "HOME": "/tmp"}.items()
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    if count:
        container["resources"] = {"limits": {"nvidia.com/gpu": count}, "requests": {"nvidia.com/gpu": count}}
    if is_serving:
        container |= _serving(plan)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # their variables could be taken for settings
        "terminationGracePeriodSeconds": plan.grace_s + _DRAIN_S + _MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }


def _literal(text: str) -> str:
    """Return a text in which Kubernetes, which expands $(NAME) in commands and values and halves $$, finds nothing to do."""
    return text.replace("$", "$$")


def _serving(plan: LaunchPlan) -> Manifest:
    return {
        "ports": [{"name": name, "containerPort": port} for name, port in port_options(plan.ports)],
        "startupProbe": {
            **_http(READY_PATH),
            "periodSeconds": _PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(plan.start_s / _PROBE_PERIOD_S),
        },
        "readinessProbe": {**_probe(plan, READY_PATH), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            **_probe(plan, LIVE_PATH),
            "periodSeconds": _PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": 4,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_DRAIN_S)]}}},
    }


def _probe(plan: LaunchPlan, path: str) -> Manifest:
    """Return what readiness and liveness ask; failures must come in a row, since a stub that ends as it should is a zombie for an instant."""
    if not needs_check(plan):
        return _http(path)
    return {"exec": {"command": ["/bin/sh", "-c", health_check(plan.ports.http, path)]}}


def _http(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}}


def _volumes(plan: LaunchPlan) -> tuple[list[Manifest], list[Manifest]]:
    """Return volumes and where they are mounted: one claim for each folder, shared memory, and room for temporary files."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    for number, mount in enumerate(plan.files):
        name = "models" if number == 0 else f"models-{number + 1}"
        claim = {"claimName": f"{plan.name}-{name}", "readOnly": True}
        volumes.append({"name": name, "persistentVolumeClaim": claim})
        mounts.append({"name": name, "mountPath": mount.target, "readOnly": True})
    size = f"{SHARED_MEMORY_BYTES >> 30}Gi"
    volumes += [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    return volumes, [*mounts, {"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}]
