"""An engine repository (TensorRT-LLM's stock one, filled or not, or ours) and its engine, as rows.

config.pbtxt is parsed with Triton's own messages; unfilled placeholders are taken out first and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.gpus import Gpu
from trtbuild.migrate.choices import algo_row, kv_cache_row, mode_rows
from trtbuild.migrate.row import Row
from trtbuild.migrate.tables import CORE, DECIDE, DECODING_MODES, DROPPED, ENGINE_MODES, TEXT, Parameter
from trtbuild.repo.lint.repository import CONFIG, ENGINE_BACKEND, read_text
from trtbuild.repo.proto import ConfigSyntaxError, parse_config
from trtbuild.trtllm.engine import Engine

CORE_MODEL = "tensorrt_llm"
_FOREIGN = "no model of the stock repository: what it does must be done in front of the one model"
_DRAFT = "the draft model becomes a part of the one model: name its Hugging Face folder in speculative.draft_model"
#: Models of the stock repository around it; others need a look, unless a parameter tells what they are: the Triton CLI renames the BLS model.
_KNOWN = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
_TELLING = frozenset({"tokenizer_dir", "tensorrt_llm_model_name", "accumulate_tokens"})
#: A field whose value is a placeholder outside of quotes, alone or as the only element of a list.
_UNFILLED = re.compile(r"\b(\w+)\s*:\s*(?:\[\s*)?\$\{(\w+)\}(?:\s*\])?")
#: Names of models in a message.
_SHOWN = 10
_PLACEHOLDER = re.compile(r"\$\{\w*\}")


@dataclass(frozen=True, slots=True)
class Found:
    """What a repository says.

    Attributes:
        path: its folder.
        core: name of the model that runs the engine.
        configs: model -> its ModelConfig message.
        unfilled: model -> names of placeholders outside of quotes.
    """

    path: Path
    core: str
    configs: Mapping[str, Any]
    unfilled: Mapping[str, tuple[str, ...]]

    def parameters(self, model: str) -> dict[str, str]:
        """Return the parameters of a model; empty when there is no such model."""
        config = self.configs.get(model)
        if config is None:
            return {}
        return {key: config.parameters[key].string_value for key in sorted(config.parameters)}

    def path_parameter(self, name: str) -> Path | None:
        """Return the first folder that any model names, None when none does or it is not filled."""
        values = (self.parameters(model).get(name, "") for model in self.configs)
        return next((Path(value) for value in values if value and not _PLACEHOLDER.search(value)), None)


def is_repository(path: Path) -> bool:
    """Say whether a folder is a model repository."""
    return any(path.glob(f"*/{CONFIG}"))


def read_repository(path: Path) -> Found:
    """Read every config.pbtxt of a repository.

    Raises:
        UsageError: it is of the LLM API already, or has not one model of the engine backend.
        TrtbuildError: a file cannot be read, placeholders aside.
    """
    configs, unfilled = {}, {}
    for file in sorted(path.glob(f"*/{CONFIG}")):
        try:
            text = read_text(file)
            configs[file.parent.name] = parse_config(_UNFILLED.sub("", text))
        except (ConfigSyntaxError, UnicodeDecodeError, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise TrtbuildError(f"{file} cannot be read: {said}", hint="`trtbuild lint` explains") from error
        unfilled[file.parent.name] = tuple(dict.fromkeys(match[2] for match in _UNFILLED.finditer(text)))
        if any(file.parent.glob("*/model.yaml")):
            raise UsageError(f"{path} is a repository of the LLM API already", hint="there is nothing to migrate")
    return Found(path, _core_of(path, configs), configs, unfilled)


def _core_of(path: Path, configs: Mapping[str, Any]) -> str:
    """Return the model of the engine backend: `tensorrt_llm` as all templates call it, else the only one of that backend."""
    if CORE_MODEL in configs:
        return CORE_MODEL
    cores = [name for name, config in configs.items() if config.backend == ENGINE_BACKEND]
    if len(cores) != 1:
        several = (
            f"several models of the backend {ENGINE_BACKEND} ({', '.join(cores)})"
            if cores
            else f"no model '{CORE_MODEL}'"
        )
        names = list(configs)
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else "")
        raise UsageError(
            f"{path} has {several}; it has {shown}",
            hint="name a repository of TensorRT-LLM's engine backend, with one such model",
        )
    return cores[0]


def _is_stock(name: str, config: Any) -> bool:
    return name in _KNOWN or config.platform == "ensemble" or not _TELLING.isdisjoint(config.parameters)


def repository_rows(found: Found) -> Iterator[Row]:
    """Yield what becomes of the models' configurations."""
    for model, names in found.unfilled.items():
        for name in names:
            yield Row(
                "dropped", f"{model}: ${{{name}}}", "unfilled", note="the template was not filled; the default counts"
            )
    core = found.configs[found.core]
    if "decoupled_mode" not in found.unfilled[found.core]:
        streams = core.model_transaction_policy.decoupled
        yield Row("taken", f"{found.core}: decoupled", streams, "serving.streaming", streams)
    if core.max_batch_size > 0:
        size = core.max_batch_size
        yield Row("taken", f"{found.core}: max_batch_size", size, "limits.max_batch_size", size)
    queue = core.dynamic_batching.default_queue_policy.max_queue_size
    if queue:
        yield Row("dropped", f"{found.core}: max_queue_size", queue, note="the LLM API has a queue of its own")
    yield from _parameters(found, found.core, CORE)
    for model in found.configs:
        if model == found.core:
            continue
        if not _is_stock(model, found.configs[model]):
            drafts = {found.parameters(each).get("tensorrt_llm_draft_model_name") for each in found.configs}
            yield Row("decide", model, "model", note=_DRAFT if model in drafts else _FOREIGN)
        else:
            yield from _parameters(found, model, TEXT)


def _parameters(found: Found, model: str, known: Mapping[str, Parameter]) -> Iterator[Row]:
    for key, value in found.parameters(model).items():
        old = f"{model}: {key}"
        if not value or _PLACEHOLDER.search(value):
            if value:
                yield Row("dropped", old, value, note="the template was not filled; the default counts")
        elif key in known:
            yield _read(old, value, known[key])
        elif key == "decoding_mode":
            if value in DECODING_MODES:
                yield from mode_rows(old, DECODING_MODES[value])
            else:
                yield Row("dropped", old, value, note="requests choose how tokens are sampled")
        elif key in DECIDE and not (key == "chat_template" and value == "false"):
            yield Row("decide", old, value, note=DECIDE[key])
        elif key in DROPPED or key in DECIDE:
            yield Row("dropped", old, value, note=DROPPED.get(key, ""))
        else:
            yield Row("decide", old, value, note="no parameter of the stock models: look what it does")


def _read(old: str, value: str, parameter: Parameter) -> Row:
    try:
        read = parameter.read(value)
    except ValueError as error:
        return Row(
            "decide",
            old,
            value,
            note=f"it cannot be read ({error}), so the backend took its default; set {parameter.new} if that was wrong",
        )
    return Row("taken", old, value, parameter.new, read)


def engine_rows(engine: Engine, gpu: Gpu | None, asked_batch: int | None) -> Iterator[Row]:
    """Yield what becomes of an engine's limits, cut and formats.

    Args:
        engine: the folder.
        gpu: where the model will be served.
        asked_batch: what the repository says, which counts if it is smaller.
    """
    build, pretrained = engine.build, engine.pretrained
    limits = {
        "max_batch_size": "limits.max_batch_size", "max_seq_len": "limits.max_seq_len", "max_num_tokens": "limits.max_num_tokens",
        "max_beam_width": "limits.max_beam_width",
    }  # fmt: skip
    for key, new in limits.items():
        value = build.get(key)
        if not isinstance(value, int) or value < 1:
            continue
        if key == "max_batch_size" and asked_batch is not None:
            yield Row("dropped", f"engine: {key}", value, note=f"the repository says {asked_batch}, which counts")
        else:
            yield Row("taken", f"engine: {key}", value, new, value)
    if isinstance(value := build.get("max_input_len"), int):
        yield Row("dropped", "engine: max_input_len", value, note="prompts up to max_seq_len are taken")
    if isinstance(value := engine.plugins.get("tokens_per_block"), int) and value >= 4:
        yield Row("taken", "engine: tokens_per_block", value, "kv_cache.tokens_per_block", value)
    mapping = engine.mapping
    for key, new in {
        "tp_size": "parallel.tp_size",
        "pp_size": "parallel.pp_size",
        "moe_ep_size": "parallel.ep_size",
    }.items():
        if mapping[key] > 1:
            yield Row("taken", f"engine: mapping.{key}", mapping[key], new, mapping[key])
    if mapping["cp_size"] > 1:
        yield Row(
            "decide",
            "engine: mapping.cp_size",
            mapping["cp_size"],
            note="trtbuild has no context parallelism: use tp_size or pp_size",
        )
    dtype = pretrained.get("dtype")
    if dtype in ("float16", "bfloat16", "float32"):
        yield Row("taken", "engine: dtype", dtype, "model.dtype", dtype)
    quantization = pretrained.get("quantization") or {}
    if quantization.get("quant_algo"):
        yield algo_row("engine: quantization.quant_algo", str(quantization["quant_algo"]), gpu)
    if quantization.get("kv_cache_quant_algo"):
        yield kv_cache_row("engine: quantization.kv_cache_quant_algo", str(quantization["kv_cache_quant_algo"]), gpu)
    yield from _engine_speculation(engine)
    lora = build.get("lora_config") or {}
    modules = lora.get("lora_target_modules")
    if modules and isinstance(modules, list) and all(isinstance(each, str) for each in modules):
        yield Row("taken", "engine: lora_config.lora_target_modules", modules, "lora.target_modules", modules)
        if isinstance(rank := lora.get("max_lora_rank"), int):
            yield Row("taken", "engine: lora_config.max_lora_rank", rank, "lora.max_rank", rank)
        yield Row(
            "decide", "engine: lora_config", "adapters", note="name the adapters as PEFT folders in lora.adapters"
        )
    yield Row(
        "decide",
        "engine",
        str(engine.path),
        note="engines are not loaded: convert the original model again with `trtbuild build`",
    )


def _engine_speculation(engine: Engine) -> Iterator[Row]:
    mode = engine.speculation
    if mode in ("", "none"):
        return
    old = "engine: speculative_decoding_mode"
    name = ENGINE_MODES.get(mode)
    if name is None:
        yield Row(
            "decide",
            old,
            mode,
            note="see which mode this is, and set speculative.mode to the nearest that target pytorch has",
        )
    else:
        yield from mode_rows(old, name)
