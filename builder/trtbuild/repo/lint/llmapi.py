"""Rules about the model of the LLM API, which is told how to serve in two places: config.pbtxt and 1/model.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint.findings import Problem, Rule, Severity
from trtbuild.repo.lint.repository import CORE, SETTINGS, Model, Repository
from trtbuild.repo.lint.values import DEVICES, devices
from trtbuild.trtllm.versions import Feature

#: Keys of model.yaml that are not of the LLM API (Triton specification 2.2).
RESERVED = frozenset(["triton_config", "logits_post_processors"])


def settings(repository: Repository) -> Iterator[tuple[Model, str, Any, str]]:
    """Yield model, file, data and error of every model.yaml of the LLM API; an error where it cannot be read."""
    for model, name, data, error in repository.settings:
        # Other people's models may have a model.yaml, too.
        if model.folder == CORE or (isinstance(data, dict) and "triton_config" in data):
            yield model, name, data, error


def differs(repository: Repository) -> Iterator[Problem]:
    """Find models of the LLM API whose model.yaml says something else than config.pbtxt, which a server may read alone."""
    for model, name, data, error in settings(repository):
        if error:
            yield Problem(name, f"it cannot be read: {error}", "correct it, or render again")
            continue
        theirs = data.get("triton_config") if isinstance(data, dict) else None
        if not isinstance(theirs, dict) or "decoupled" not in theirs:
            yield Problem(name, "it has no triton_config with the key 'decoupled'", "add it")
            continue
        policy = model.config.model_transaction_policy
        mine = {"decoupled": policy.decoupled, "max_batch_size": model.config.max_batch_size}
        for key, value in mine.items():
            if (other := theirs.get(key, 0)) != value:
                yield Problem(
                    name,
                    f"triton_config.{key} is {str(other).lower()}, {model.file} says {str(value).lower()}",
                    "set both to the same value: a server that does not complete configurations reads only the latter",
                )


def batches(repository: Repository) -> Iterator[Problem]:
    """Find models of the LLM API that Triton would batch for."""
    for model, _, data, _ in settings(repository):
        theirs = data.get("triton_config") if isinstance(data, dict) else None
        both = model.config.max_batch_size, theirs.get("max_batch_size", 0) if isinstance(theirs, dict) else 0
        if both[0] > 0 and both[0] == both[1]:
            yield Problem(
                model.file,
                f"max_batch_size is {both[0]}, and the model takes one prompt per request",
                "set it to 0 in both files: the LLM API batches by itself",
                model.line("max_batch_size"),
            )


def arguments(repository: Repository) -> Iterator[Problem]:
    """Find arguments that the LLM API of the release refuses."""
    release = repository.facts.release
    if release is None:
        return
    for model, name, data, _ in settings(repository):
        from trtbuild.trtllm.llm_arg_tables import TOP  # large, and most repositories have no model.yaml
        from trtbuild.trtllm.llm_args import LlmArgs

        if not release.has(Feature.LLM_API):
            yield Problem(
                name,
                f"of TensorRT-LLM {release} the LLM API's arguments are not known: it was experimental there",
                f"serve '{model.folder}' with 1.0.0 or later",
                severity="warning",
            )
            continue
        for key, value in data.items() if isinstance(data, dict) else ():
            if key in RESERVED or (key in TOP and TOP[key].refused):
                continue  # what trtbuild.yaml may not set, a model.yaml may, and must: the model
            try:
                LlmArgs(release).check({key: value}, origin=SETTINGS, fields={})
            except TrtbuildError as error:
                # What a release takes was mostly concluded from its neighbours.
                severity: Severity = "error" if release.has(Feature.LLM_ARGS_READ) else "warning"
                yield Problem(name, error.message, error.hint or "remove it", severity=severity)  # fmt: skip


def groups(repository: Repository) -> Iterator[Problem]:
    """Find lists of GPUs that do not hold as many as the model is cut over."""
    for model, _, data, _ in settings(repository):
        found = devices(model.values.get(DEVICES, "")) if model.values.get(DEVICES) else None
        size = data.get("tensor_parallel_size", 1) if isinstance(data, dict) else 1
        for group in found or []:
            if isinstance(size, int) and len(group) != size:
                yield Problem(
                    model.file,
                    f"{DEVICES} gives an instance {len(group)} GPU(s), and tensor_parallel_size is {size}",
                    f"name {size} for each instance",
                    model.parameter_line(DEVICES),
                )


RULES: dict[str, Rule] = {
    "llmapi-differs": Rule(
        "error", differs, "`triton_config` of a `model.yaml` and `config.pbtxt` say different things",
        "launch_triton_server.py passes --disable-auto-complete-config: then `model.yaml` is not asked, the model is taken for one that does not stream, and streams hang until "
        "their clients give up. With completion on, a difference is a load error (Triton specification 2.3). NVIDIA's own file says neither.",
        "Write `max_batch_size` and `model_transaction_policy` into config.pbtxt, equal to `triton_config`.",
    ),
    "llmapi-batch-size": Rule(
        "error", batches, "a model of the LLM API with batches of Triton's", "Only 0 is supported: one prompt per request (Triton specification 2.2).",
        "Set `max_batch_size` to 0 in both files.",
    ),
    "llmapi-argument": Rule(
        "error", arguments, "arguments in `model.yaml` that the release's LLM API refuses",
        "It does not start on a key that it does not know, at any level (LLM API specification 0.3), such as the early `pytorch_backend_config`.",
        "Follow the message: it names the right key where there is one.",
        needs_release=True,
    ),
    "llmapi-devices": Rule(
        "error", groups, "`gpu_device_ids` whose lists are not as long as `tensor_parallel_size`", "The model refuses to start (Triton specification 2.4).",
        "Name as many GPUs for each instance.",
    ),
}  # fmt: skip
