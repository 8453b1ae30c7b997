"""Whether an adapter belongs to a base model: every module must be there, a float weight, and of the right shape.

Headers only; no weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.dtypes import FLOATS
from trtbuild.errors import TrtbuildError
from trtbuild.lora.adapter import Adapter, AdapterModule, listed
from trtbuild.safetensors_file import SourceTensor
from trtbuild.source import SourceCheckpoint

#: model_type of models whose linear modules are transformers' Conv1D, whose weight is [in, out].
#: Source: transformers 5.24, models whose linear modules are all `pytorch_utils.Conv1D`.
CONV1D_MODEL_TYPES = ("decision_transformer", "gpt2", "imagegpt", "openai-gpt")
#: A checkpoint of the bare model has its names without this first part, one of the model with a head has them with it.
_BARE = ("model.", "transformer.")


def fit(adapter: Adapter, source: SourceCheckpoint) -> dict[str, SourceTensor]:
    """Return module name -> weight of the base; a weight is [out, in], or [in, out] with fan_in_fan_out.

    Raises:
        TrtbuildError: the adapter does not fit the model; the message names the tensors.
    """
    _refuse_layout(adapter, source)
    weights: dict[str, SourceTensor] = {}
    missing: list[str] = []
    for module in adapter.modules:
        weight = _weight(module.name, source.tensors)
        if weight is None:
            missing.append(f"{module.name}.weight")
        else:
            weights[module.name] = weight
    if missing:
        trained_on = f"it was trained on {adapter.base_model_name!r}; " if adapter.base_model_name else ""
        raise TrtbuildError(
            f"adapter {adapter.path} changes {len(missing)} weights that {source.path} does not have: {listed(missing)}",
            hint=f"{trained_on}name that model, unquantized and with the same tensor names",
        )
    _refuse_shared(adapter, source, weights)
    for module in adapter.modules:
        _check(module, weights[module.name], adapter=adapter)
    return weights


def _weight(module: str, tensors: Mapping[str, SourceTensor]) -> SourceTensor | None:
    """Return the weight of a module; a first "model." or "transformer." may be missing on either side."""
    others = [module.removeprefix(part) for part in _BARE] + [part + module for part in _BARE]
    found = (tensors.get(f"{name}.weight") for name in (module, *others))
    return next((weight for weight in found if weight is not None), None)


def _refuse_layout(adapter: Adapter, source: SourceCheckpoint) -> None:
    kind = source.config.get("model_type")
    if isinstance(kind, str) and adapter.fan_in_fan_out != (kind in CONV1D_MODEL_TYPES):
        order = "[in, out]" if kind in CONV1D_MODEL_TYPES else "[out, in]"
        raise TrtbuildError(
            f"adapter {adapter.path} has fan_in_fan_out={adapter.fan_in_fan_out}, but model_type={kind!r} of "
            f"{source.path} keeps its weights as {order}",
            hint="it was trained on another model, or the field is wrong: PEFT sets it from the model",
        )


def _refuse_shared(adapter: Adapter, source: SourceCheckpoint, weights: Mapping[str, SourceTensor]) -> None:
    users: dict[str, str] = {}
    for module, weight in weights.items():
        if weight.name in users:
            raise TrtbuildError(
                f"adapter {adapter.path} changes {weight.name} twice, as {users[weight.name]} and as {module}",
                hint="remove the one that does not belong to the adapter",
            )
        users[weight.name] = module
    if source.config.get("tie_word_embeddings") and (heads := [m for m in weights if m.split(".")[-1] == "lm_head"]):
        raise TrtbuildError(
            f"adapter {adapter.path} changes {heads[0]}, which {source.path} ties to its embedding",
            hint="train without lm_head, or untie and merge the model with the library that trained the adapter",
        )


def _check(module: AdapterModule, weight: SourceTensor, *, adapter: Adapter) -> None:
    if weight.dtype not in FLOATS:
        raise TrtbuildError(
            f"{weight.path}: {weight.name} is {weight.dtype}; an adapter can only be added to {', '.join(FLOATS)}",
            hint="name the unquantized model the adapter was trained on",
        )
    plain = (module.out_features, module.in_features)
    expected = plain[::-1] if adapter.fan_in_fan_out else plain
    if weight.shape == expected:
        return
    if weight.shape == expected[::-1]:
        raise TrtbuildError(
            f"adapter {adapter.path} has fan_in_fan_out={adapter.fan_in_fan_out}, but {weight.name} "
            f"{list(weight.shape)} in {weight.path} lies the other way round, A being {list(module.a.shape)} "
            f"and B {list(module.b.shape)}",
            hint="it was trained on another model, or the field is wrong: PEFT sets it from the model",
        )
    raise TrtbuildError(
        f"{weight.path}: {weight.name} is {list(weight.shape)}, the adapter needs {list(expected)}: "
        f"{module.a.name} is {list(module.a.shape)}, {module.b.name} is {list(module.b.shape)}",
        hint="the adapter was trained on another model"
        + (f": {adapter.base_model_name!r}" if adapter.base_model_name else ""),
    )
