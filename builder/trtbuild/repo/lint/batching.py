"""Rules about how requests reach the core: instances, queues and batching."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.repo.lint import edits
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import Model, Repository
from trtbuild.repo.lint.values import DEVICES

#: gpt_model_type of static batching.
STATIC = frozenset(["V1", "v1"])


def instance_count(repository: Repository) -> Iterator[Problem]:
    """Find instance groups without a positive count, which Triton takes for 1."""
    for model in repository.parsed():
        nodes = list(model.tree.all("instance_group"))
        for index, group in enumerate(model.config.instance_group):
            node = nodes[index] if index < len(nodes) else None
            count = node.first("count") if node is not None else None
            if group.count < 1 and count is not None:  # not written it is 1
                yield Problem(
                    model.file,
                    f"an instance_group has the count {group.count}",
                    "use 1 or more",
                    model.line_of(count or node),
                    edits.set_value(count, "1", "write 1, which Triton takes it for"),
                )


def instance_kind(repository: Repository) -> Iterator[Problem]:
    """Find GPUs named in the instance groups of a model whose backend does not look there, or beside KIND_CPU."""
    for model in repository.parsed():
        for group in model.config.instance_group:
            if negative := [each for each in group.gpus if each < 0]:
                yield Problem(
                    model.file,
                    f"an instance_group names GPU {negative[0]}",
                    "count GPUs from 0",
                    model.line("instance_group"),
                    severity="error",
                )
            if group.gpus and group.kind == 2:  # KIND_CPU
                yield Problem(
                    model.file,
                    "an instance_group of KIND_CPU names GPUs",
                    "remove gpus, or use KIND_GPU",
                    model.line("instance_group"),
                    severity="error",
                )
    for model in repository.engine_models():
        for group in model.config.instance_group:
            if group.kind != 2 and (group.gpus or group.kind == 1):  # KIND_CPU, KIND_GPU
                yield Problem(
                    model.file,
                    "instance_group names GPUs, which the C++ backend ignores",
                    f"use KIND_CPU, and the parameter {DEVICES} to choose GPUs",
                    model.line("instance_group"),
                )


def static_batching(repository: Repository) -> Iterator[Problem]:
    """Find models without in-flight batching."""
    for model in repository.engine_models():
        kind = model.values.get("gpt_model_type", "")
        if kind in STATIC:
            yield Problem(
                model.file,
                f"gpt_model_type {kind} is static batching: a batch ends with its longest answer",
                "use inflight_fused_batching",
                model.parameter_line("gpt_model_type"),
            )


def queue(repository: Repository) -> Iterator[Problem]:
    """Find batching in front of a core that batches in flight: it delays requests, and gains nothing."""
    for model in _in_flight(repository):
        batching = model.config.dynamic_batching
        if batching.max_queue_delay_microseconds > 0:
            yield Problem(
                model.file,
                f"max_queue_delay_microseconds is {batching.max_queue_delay_microseconds}: requests wait for a batch, and the core batches in flight anyway",
                "use 0",
                model.line("dynamic_batching", "max_queue_delay_microseconds"),
            )  # fmt: skip
        if batching.preserve_ordering:
            yield Problem(
                model.file,
                "preserve_ordering makes answers wait for those of earlier requests",
                "remove it",
                model.line("dynamic_batching", "preserve_ordering"),
            )
        if model.config.HasField("sequence_batching"):
            yield Problem(
                model.file,
                "sequence_batching binds requests to slots, and the core batches in flight",
                "use dynamic_batching",
                model.line("sequence_batching"),
            )


def cache(repository: Repository) -> Iterator[Problem]:
    """Find a response cache on a model that may answer in several pieces."""
    for model in repository.parsed():
        if model.config.response_cache.enable and model.config.model_transaction_policy.decoupled:
            yield Problem(
                model.file,
                "response_cache is enabled on a decoupled model",
                "remove one of the two",
                model.line("response_cache"),
            )


def _in_flight(repository: Repository) -> Iterator[Model]:
    return (model for model in repository.engine_models() if model.values.get("gpt_model_type") not in STATIC)


RULES: dict[str, Rule] = {
    "instance-count": Rule(
        "error", instance_count, "instance groups without a positive count", "Triton accepts it and takes 1 (Triton specification 7.3).",
        "Write 1 or more; `--fix` writes 1.",
    ),
    "instance-kind": Rule(
        "warning", instance_kind, "GPUs in the instance groups of a model that the C++ backend runs, or beside KIND_CPU",
        "`has kind KIND_CPU but specifies one or more GPUs`: no backend loads with both (seen with Triton 2.51). The C++ backend ignores `gpus` and KIND_GPU (Triton specification 1.2); on a machine without a GPU in sight KIND_GPU keeps Triton from loading the model.",
        "Use KIND_CPU; choose GPUs with `gpu_device_ids` or CUDA_VISIBLE_DEVICES.",
    ),
    "static-batching": Rule(
        "warning", static_batching, "`gpt_model_type` V1: static batching", "It is deprecated since mid-2025, and a batch takes as long as its longest answer (Triton specification 1.8).",
        "Use inflight_fused_batching.",
    ),
    "queue-delay": Rule(
        "warning", queue, "batching by Triton in front of a core that batches in flight",
        "Requests wait and nothing is gained: the core takes a new request at every step. `max_queue_size` of the policy is used, the rest is not "
        "(Triton specification 1.2, 1.8).",
        "Set `max_queue_delay_microseconds` to 0; remove `preserve_ordering` and `sequence_batching`.",
    ),
    "response-cache": Rule(
        "error", cache, "a response cache on a decoupled model", "Triton caches single answers only (Triton specification 4.4).", "Remove it.",
    ),
}  # fmt: skip
