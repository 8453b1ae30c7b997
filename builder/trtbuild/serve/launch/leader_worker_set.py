"""Kubernetes manifests of a plan for several nodes: a LeaderWorkerSet, one pod for each node, with mpirun in the leader.

The leader waits until all workers of its group run, and mpirun starts ranks in them through `kubectl exec`; for that it alone has an
account that may list pods and exec. An init container brings kubectl along. When a pod ends, the whole group is made anew, so ranks die together.
Source: Triton specification 4.6 (tutorial EKS_Multinode_Triton_TRTLLM, LeaderWorkerSet v1). Checked against a schema, not on a cluster.
"""

from __future__ import annotations

from trtbuild.errors import UsageError
from trtbuild.serve.launch.commands import mpirun
from trtbuild.serve.launch.kubernetes import CONTAINER, Manifest, labels, pod, resource, service
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.script import shell

_LWS = "leaderworkerset.sigs.k8s.io"
_API = "leaderworkerset.x-k8s.io/v1"
_TOOLS = "/trtbuild-tools"
_ROLE = {"trtbuild/role": "leader"}
#: Started by mpirun in place of ssh: host, then the command.
_AGENT = f"""#!/bin/sh
host="$1"
shift
exec {_TOOLS}/kubectl exec "$host" --container={CONTAINER} -- /bin/sh -c "$*"
"""
_WORKER = "trap 'exit 0' TERM INT; sleep infinity & wait"


def manifests(plan: LaunchPlan, *, kubectl_image: str | None) -> list[Manifest]:
    """Return the LeaderWorkerSet, its Service, and what lets the leader start ranks.

    Raises:
        UsageError: no image with kubectl is named.
    """
    if kubectl_image is None:
        raise UsageError(
            f"{plan.world_size} ranks take {plan.nodes} nodes, and the leader starts them with kubectl, which the server's image lacks",
            hint="name an image with sh, cp and kubectl: --kubectl-image IMAGE, pinned to a version near your cluster's",
        )
    spec = {
        "replicas": 1,
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": {
            "size": plan.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": {"labels": {**labels(plan), **_ROLE}}, "spec": _leader(plan, kubectl_image)},
            "workerTemplate": {
                "metadata": {"labels": labels(plan)},
                "spec": pod(plan, ("/bin/sh", "-c", _WORKER), is_serving=False, gpus=plan.gpus_per_node),
            },
        },
    }
    return [*_account(plan), _scripts(plan), resource(_API, "LeaderWorkerSet", plan, spec), service(plan, _ROLE)]  # fmt: skip


def _leader(plan: LaunchPlan, kubectl_image: str) -> Manifest:
    spec = pod(plan, ("/bin/sh", "/trtbuild/start.sh"), is_serving=True, gpus=plan.gpus_per_node)
    container, tools = spec["containers"][0], {"name": "tools", "mountPath": _TOOLS}
    key = {"fieldRef": {"fieldPath": f"metadata.labels['{_LWS}/group-key']"}}
    own = {"fieldRef": {"fieldPath": "metadata.name"}}
    container["env"] += [{"name": "GROUP_KEY", "valueFrom": key}, {"name": "POD_NAME", "valueFrom": own}]
    container["volumeMounts"] += [tools, {"name": "scripts", "mountPath": "/trtbuild", "readOnly": True}]
    spec["volumes"] += [
        {"name": "tools", "emptyDir": {"sizeLimit": "256Mi"}},
        {"name": "scripts", "configMap": {"name": f"{plan.name}-scripts", "defaultMode": 0o555}},
    ]
    spec["initContainers"] = [
        {
            "name": "kubectl",
            "image": kubectl_image,
            "command": ["/bin/sh", "-c", f'cp "$(command -v kubectl)" {_TOOLS}/kubectl'],
            "securityContext": container["securityContext"],
            "volumeMounts": [tools],
        }
    ]
    return {**spec, "automountServiceAccountToken": True, "serviceAccountName": plan.name}


def _scripts(plan: LaunchPlan) -> Manifest:
    """Return the ConfigMap with the leader's start and the agent of mpirun."""
    data = {"start.sh": start_script(plan), "agent.sh": _AGENT}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{plan.name}-scripts", "labels": labels(plan)}, "data": data}  # fmt: skip


def start_script(plan: LaunchPlan) -> str:
    """Return what the leader runs: wait for the group, then mpirun over its pods, the leader's own first."""
    options = ("--mca", "plm_rsh_agent", "/trtbuild/agent.sh", "--host", "HOSTS")
    command = shell(mpirun(plan.ranks, more=options, environment=plan.environment))
    workers = plan.nodes - 1
    return f"""#!/bin/sh
set -eu
deadline=$(( $(date +%s) + {plan.start_s} ))
while :; do
  workers=$({_TOOLS}/kubectl get pods --selector "{_LWS}/group-key=${{GROUP_KEY}},{_LWS}/worker-index!=0" \\
    --field-selector status.phase=Running --output 'jsonpath={{range .items[*]}}{{.metadata.name}}{{"\\n"}}{{end}}')
  [ "$(printf '%s' "$workers" | grep -c .)" -eq {workers} ] && break
  [ "$(date +%s)" -lt "$deadline" ] || {{ echo "{workers} workers did not start within {plan.start_s} s: $workers" >&2; exit 1; }}
  sleep 2
done
hosts="${{POD_NAME}}:{plan.gpus_per_node}"
for worker in $workers; do hosts="$hosts,$worker:{plan.gpus_per_node}"; done
exec {command.replace("HOSTS", '"$hosts"', 1)}
"""


def _account(plan: LaunchPlan) -> list[Manifest]:
    metadata = {"name": plan.name, "labels": labels(plan)}
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "ServiceAccount", "name": plan.name}],
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": plan.name},
        },
    ]
