"""Rules about how requests reach the core: instances, queues, batching, and the GPUs of each instance."""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.repo.lint import edits
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.repo.lint.values import devices

#: gpt_model_type of static batching.
STATIC = frozenset(["V1", "v1"])
DEVICES = "gpu_device_ids"


def instance_count(repository: Repository) -> Iterator[Problem]:
    """Find instance groups without a positive count, which Triton takes for 1."""
    for model in repository.parsed():
        nodes = list(model.tree.all("instance_group"))
        for index, group in enumerate(model.config.instance_group):
            if group.count < 1:
                node = nodes[index] if index < len(nodes) else None
                count = node.first("count") if node is not None else None
                yield Problem(
                    model.file,
                    f"an instance_group has the count {group.count}",
                    "use 1 or more",
                    model.line_of(count or node),
                    edits.set_value(count, "1", "write 1, which Triton takes it for"),
                )


def instance_kind(repository: Repository) -> Iterator[Problem]:
    """Find GPUs named in the instance groups of a model whose backend does not look there."""
    for model in repository.engine_models():
        for group in model.config.instance_group:
            if group.gpus or group.kind == 1:  # KIND_GPU
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


def device_ids(repository: Repository) -> Iterator[Problem]:
    """Find lists of GPUs that do not fit the instances, or the engine."""
    for model in repository.parsed():
        text = model.values.get(DEVICES, "")
        groups = devices(text) if text else None
        count = sum(max(group.count, 1) for group in model.config.instance_group) or 1
        line = model.parameter_line(DEVICES)
        engine = repository.facts.engines.get(model.folder)
        world = engine.artifact.world_size if engine is not None and engine.artifact is not None else None
        if groups is None:
            if count > 1 and not text and (model.runs_engine or model.folder == CORE):
                yield Problem(
                    model.file,
                    f"{count} instances, and no {DEVICES}: all would run on the same GPUs",
                    f'set {DEVICES} to one list for each, e.g. "0,1;2,3"',
                    model.line("instance_group"),
                )
            continue
        if len(groups) != count:
            yield Problem(
                model.file,
                f"{DEVICES} '{text}' has {len(groups)} list(s), and there are {count} instance(s)",
                "give each instance a list",
                line,
            )
        for group in groups:
            if len(set(group)) != len(group):
                yield Problem(model.file, f"{DEVICES} '{text}' names a GPU twice for one instance", "name each once", line)  # fmt: skip
            if world is not None and len(group) != world:
                yield Problem(
                    model.file,
                    f"{DEVICES} '{text}' gives an instance {len(group)} GPU(s), and the engine has {world} rank(s)",
                    f"name {world} for each",
                    line,
                )


def devices_overlap(repository: Repository) -> Iterator[Problem]:
    """Find GPUs that two instances or two models would share; a draft model may lie on its target's."""
    taken: dict[int, str] = {}
    drafts = {model.values.get("tensorrt_llm_draft_model_name") for model in repository.parsed()}
    for model in repository.engine_models():
        if model.folder in drafts:
            continue
        for group in devices(model.values.get(DEVICES, "")) or []:
            shared = sorted(each for each in set(group) if each in taken)
            if shared:
                others = sorted({taken[each] for each in shared})
                yield Problem(
                    model.file,
                    f"{DEVICES}: GPU {', '.join(map(str, shared))} is also that of {'another instance' if others == [model.folder] else ', '.join(others)}",
                    "give each its own GPUs; ids count from 0 within CUDA_VISIBLE_DEVICES",
                    model.parameter_line(DEVICES),
                )  # fmt: skip
            taken |= dict.fromkeys(group, model.folder)


def _in_flight(repository: Repository) -> Iterator[Model]:
    return (model for model in repository.engine_models() if model.values.get("gpt_model_type") not in STATIC)


RULES: dict[str, Rule] = {
    "instance-count": Rule(
        "error", instance_count, "instance groups without a positive count", "Triton accepts it and takes 1 (Triton specification 7.3).",
        "Write 1 or more; `--fix` writes 1.",
    ),
    "instance-kind": Rule(
        "warning", instance_kind, "GPUs in the instance groups of a model that the C++ backend runs",
        "It ignores `gpus` and KIND_GPU (Triton specification 1.2); on a machine without a GPU in sight KIND_GPU keeps Triton from loading the model.",
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
    "device-ids": Rule(
        "error", device_ids, "`gpu_device_ids` that do not fit the instances or the engine's ranks",
        "The k-th instance takes the k-th list, modulo their number; each needs as many GPUs as the engine has ranks, tp times pp. The llmapi model refuses another "
        "number of lists (Triton specification 1.8, 2.4, 7.4; field report LM06).",
        "One list for each instance, `;` between lists: `0,1;2,3`.",
    ),
    "devices-overlap": Rule(
        "error", devices_overlap, "GPUs that two instances or models would share, a draft model apart",
        "Each takes its share of free memory for the KV cache, and the second finds none (field report LM06).",
        "Give each its own. With CUDA_VISIBLE_DEVICES=4,5,6,7 ids count from 0 to 3.",
    ),
}  # fmt: skip
