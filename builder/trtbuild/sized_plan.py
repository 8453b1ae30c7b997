"""The plan of a model that is sized and not converted (`arch.sized`): what it takes, which wishes it cannot have, what would fit.

Every key of trtbuild.yaml is honoured, refused, or named as without effect; none is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trtbuild.arch.sized import INSTEAD, ModelSize
from trtbuild.checks import check_deployment
from trtbuild.checks.effects import changed_keys, within
from trtbuild.convert.run import check_formats
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.memory.change import changed
from trtbuild.memory.explain import of_latent
from trtbuild.memory.latent import LatentSize, size_latent
from trtbuild.memory.report import SCHEMA_VERSION
from trtbuild.spec import Deployment
from trtbuild.ways import only_ways_that_work

#: The target whose server reads the Hugging Face folder itself.
_SERVED = "pytorch"
#: Keys that ask for other weights than the folder holds, which takes a conversion.
_REFUSED = (
    "model.dtype",
    "model.merge_lora",
    "quantization.scheme",
    "quantization.overrides",
    "quantization.dequantize",
)
#: Keys that the sizes follow.
_HONOURED = (
    "model.revision", "target", "parallel.tp_size", "parallel.pp_size", "parallel.ep_size", "quantization.kv_cache", "kv_cache.tokens_per_block",
    "kv_cache.max_tokens", "kv_cache.free_gpu_memory_fraction", "hardware.gpu", "hardware.count", "hardware.memory_bytes",
)  # fmt: skip
#: GPUs of a node, and pipeline stages over nodes that are tried.
_NODE, _MOST_STAGES = 8, 16


def plan_sized(
    deployment: Deployment,
    model: ModelSize,
    *,
    lengths: tuple[int | None, int | None],
    what_ifs: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the plan as plain data; see `planning.plan`.

    Args:
        deployment: what is wished.
        model: its size.
        lengths: tokens of a prompt and of an answer; None: what is usual.
        what_ifs: name -> dotted keys and values to compare with.

    Raises:
        UsageError: a key is unknown, or a wish needs a conversion, another cut or another GPU.
        TrtbuildError: a file that is named is missing.
    """

    def check(other: Deployment) -> None:
        require_served(other.target, model.architecture, model.reason)
        _sized(other, model, lengths)

    with only_ways_that_work(deployment, check=check):
        notes, it = _sized(deployment, model, lengths)
    columns: list[dict[str, Any]] = []
    for name, settings in what_ifs.items():
        other = changed(deployment, settings, origin=f"--set {name}")
        column: dict[str, Any] = {"name": name, "settings": dict(settings), "error": None, "hint": None, "problems": []}
        try:
            require_served(other.target, model.architecture, model.reason)
            with only_ways_that_work(other, check=check):
                remarks, size = _sized(other, model, lengths)
            column |= size.summary()
            notes += [f"{name}: {remark}" for remark in remarks if remark not in notes]
        except TrtbuildError as error:
            column |= {"error": error.message, "hint": error.hint}
        columns.append(column)
    first = {"name": "as planned", "settings": {}, "error": None, "hint": None, **it.summary()}
    fit = it.fit()
    if fit["fits"] is False:
        fit["suggestions"] = list(_suggestions(deployment, model, (it.input_len, it.output_len)))
    return {
        "schema_version": SCHEMA_VERSION,
        "target": deployment.target,
        "is_converted": False,
        "instead": INSTEAD,
        **asdict(model),
        "memory": it.to_json(),
        "fit": fit,
        "explain": of_latent(it),
        "what_if": [first, *columns] if columns else [],
        "notes": notes,
    }


def require_served(target: str, architecture: str, reason: str) -> None:
    """Raise TrtbuildError unless a target can have the model: nothing is built of it, and one target's server reads the folder itself."""
    if target != _SERVED:
        raise TrtbuildError(
            f"{architecture} cannot be built for target {target}: {reason}",
            hint=f"{INSTEAD}: --target {_SERVED} plans that",
        )


def _sized(
    deployment: Deployment, model: ModelSize, lengths: tuple[int | None, int | None]
) -> tuple[list[str], LatentSize]:
    notes = [*check_deployment(deployment), *_unheard(deployment, model), *check_formats(deployment)]
    return notes, size_latent(deployment, model, input_len=lengths[0], output_len=lengths[1])


def _unheard(deployment: Deployment, model: ModelSize) -> Iterator[str]:
    """Yield a note about keys that change no size.

    Raises:
        UsageError: a key asks for other weights.
    """
    keys = list(changed_keys(deployment))
    if refused := within(keys, _REFUSED):
        raise UsageError(
            f"{', '.join(refused)}: {model.architecture} is not converted ({model.reason}), so its weights stay as the folder holds them",
            hint="leave it out; quantization.kv_cache can be chosen",
        )
    honoured = set(within(keys, _HONOURED))
    if others := [key for key in keys if key not in honoured]:
        yield f"without effect (the model is only sized): {', '.join(others)}"


def _suggestions(deployment: Deployment, model: ModelSize, lengths: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the nearest settings of each kind that fit, each sized; over several nodes only where one is not enough."""
    tp = deployment.parallel.tp_size
    within_node = [{"parallel.tp_size": size} for size in range(1, _NODE + 1) if size != tp]
    over_nodes = [{"parallel.tp_size": _NODE, "parallel.pp_size": stages} for stages in range(2, _MOST_STAGES + 1)]
    single = [
        _first(deployment, model, lengths, options) for options in (within_node, [{"quantization.kv_cache": "fp8"}])
    ]
    found: Sequence[dict[str, Any] | None] = single
    if not any(single):
        found = [_first(deployment, model, lengths, over_nodes)]
    yield from filter(None, found)


def _first(
    deployment: Deployment, model: ModelSize, lengths: tuple[int, int], options: Iterable[dict[str, Any]]
) -> dict[str, Any] | None:
    for settings in options:
        try:
            _, size = _sized(changed(deployment, settings, origin="suggestion"), model, lengths)
        except TrtbuildError:
            continue
        if not list(size.problems()):
            return {"settings": settings, "gpus": size.tp_size * size.pp_size, "kv_tokens": size.pool_tokens}
    return None
