"""RepoContext: everything a template may print. Built from trtbuild.yaml, the checkpoint's configuration and paths.

Knows what the values mean and where they come from. Does not know what a template looks like.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from trtbuild.checks.engines import engine_faults
from trtbuild.checks.fault import require_none
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.limits import ResolvedLimits, resolve_limits
from trtbuild.names import DRAFT
from trtbuild.repo.draft import DraftBuild, DraftModel, draft_values
from trtbuild.repo.engine_context import (
    batch_and_logits,
    engine_values,
    open_engine,
    serving_release,
)
from trtbuild.repo.engine_settings import Value
from trtbuild.repo.signatures import Signatures, signatures
from trtbuild.repo.waiting import Queue
from trtbuild.spec import Deployment, Section
from trtbuild.trtllm.engine import Engine
from trtbuild.trtllm.versions import DEFAULT, Feature, find_release

logger = logging.getLogger(__name__)

Variant = Literal["reference", "engine", "llmapi"]
#: Target -> folder of the templates that differ between targets.
VARIANTS: dict[str, Variant] = {"reference": "reference", "tensorrt": "engine", "pytorch": "llmapi"}
#: Variants whose one model takes and gives text, so that they have none of the common models.
STANDALONE: frozenset[str] = frozenset({"llmapi"})
#: The model that runs the engine.
CORE = "tensorrt_llm"

#: dtype of logits -> Triton's name; the C++ backend knows no other.
LOGITS_DATATYPES: dict[str, Literal["TYPE_FP32", "TYPE_FP16"]] = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]


class RepoContext(Section, frozen=True, kw_only=True):
    """The values of one model repository. All paths are as the server sees them, and absolute."""

    variant: Variant
    max_batch_size: Positive
    max_seq_len: Positive
    max_num_tokens: Positive
    vocab_size: Positive
    logits_datatype: Literal["TYPE_FP32", "TYPE_FP16"] = "TYPE_FP32"
    decoupled: bool
    queue: Queue
    core_instances: Positive = 1
    environment: dict[str, str] = field(default_factory=dict)
    world_size: Positive = 1
    preprocessing_instances: Positive
    bls_instances: Positive
    tokenizer_dir: str
    add_special_tokens: bool
    skip_special_tokens: bool
    chat_template: bool | Literal["messages"]
    system_prompt: str | None
    stop_words: tuple[str, ...]
    exclude_input_in_output: bool = True
    accumulate_tokens: bool = False
    checkpoint_dir: str
    engine_dir: str | None = None
    tokens_per_block: Positive
    num_blocks: Positive
    kv_cache_max_tokens: Positive | None
    engine_parameters: dict[str, Value] = field(default_factory=dict)
    cancellation_check_period_ms: Positive = 100
    stats_check_period_ms: Positive = 100
    tensorrt_llm: str = ""
    signatures: Signatures = field(default_factory=dict)
    draft: DraftModel | None = None
    llm_args: dict[str, Any] = field(default_factory=dict)
    llmapi_max_batch_size: Literal[0] = 0
    llmapi_lora_inputs: bool = False

    def __post_init__(self) -> None:
        """Refuse relative paths: they would be looked up on the hub, or nowhere."""
        for name in ("tokenizer_dir", "checkpoint_dir", "engine_dir"):
            value = getattr(self, name)
            if value is not None and not PurePosixPath(value).is_absolute():
                raise ValueError(f"{name} = '{value}' must be an absolute path")

    @property
    def stop_words_json(self) -> str | None:
        """The stop words as a JSON list, none when there are none."""
        return json.dumps(self.stop_words, ensure_ascii=False) if self.stop_words else None

    @property
    def llm_args_yaml(self) -> str:
        """The arguments of the LLM API as YAML; empty for other variants."""
        if not self.llm_args:
            return ""
        from trtbuild.trtllm.llm_serve import dump  # the tables of the LLM API come along, which others do without

        return dump(self.llm_args)

    def values(self) -> dict[str, Any]:
        """Return every name a template may use with its value."""
        return {
            **msgspec.to_builtins(self),
            "core_name": CORE,
            "draft_model": None if self.draft is None else DRAFT,
            "max_draft_len": None if self.draft is None else self.draft.max_draft_len,
            "draft_logits": None if self.draft is None else self.draft.has_logits,
            "stop_words_json": self.stop_words_json,
            "llm_args_yaml": self.llm_args_yaml,
        }


def build_context(
    deployment: Deployment,
    checkpoint_config: Mapping[str, Any],
    *,
    checkpoint_dir: Path,
    tokenizer_dir: Path,
    engine_dir: Path | None = None,
    draft: DraftBuild | None = None,
    engine_later: bool = False,
    path_map: tuple[str, str] | None = None,
) -> RepoContext:
    """Return the context of a deployment.

    Args:
        deployment: the resolved trtbuild.yaml.
        checkpoint_config: config.json of the converted checkpoint.
        checkpoint_dir: folder of the converted checkpoint.
        tokenizer_dir: folder of the tokenizer.
        engine_dir: folder of the built engine; needed by the target `tensorrt`.
        draft: the build of its draft model.
        engine_later: whether the engine need not be there yet.
        path_map: (folder here, the same folder as the server sees it), for a server in a container.

    Raises:
        UsageError: a value does not fit, or the engine and the deployment disagree.
        TrtbuildError: a file is missing or damaged.
    """
    paths = {
        "checkpoint_dir": checkpoint_dir,
        "tokenizer_dir": tokenizer_dir,
        **({} if engine_dir is None else {"engine_dir": engine_dir}),
    }
    engine = open_engine(engine_dir, is_later=engine_later) if VARIANTS[deployment.target] == "engine" else None
    try:
        limits = resolve_limits(
            deployment, checkpoint_config["max_position_embeddings"], checkpoint_config.get("rotary_scaling")
        )
        return context_from(
            deployment, checkpoint_config, limits=limits, paths=paths, engine=engine, draft=draft, path_map=path_map
        )
    except KeyError as error:
        raise TrtbuildError(
            f"{checkpoint_dir / 'config.json'} has no {error}", hint="convert the model again with `trtbuild convert`"
        ) from error


def context_from(
    deployment: Deployment,
    checkpoint_config: Mapping[str, Any],
    *,
    limits: ResolvedLimits,
    paths: Mapping[str, Path],
    engine: Engine | None,
    draft: DraftBuild | None,
    path_map: tuple[str, str] | None,
) -> RepoContext:
    """Return the context of a deployment whose folders were read; opens none of them.

    Args:
        deployment: the resolved trtbuild.yaml.
        checkpoint_config: config.json of the converted checkpoint, or what it will say.
        limits: of the deployment and the model.
        paths: checkpoint_dir, tokenizer_dir and, for the target `tensorrt`, engine_dir.
        engine: the built engine; None when it comes later, or when there is none.
        draft: the build of the draft model, as far as it is there.
        path_map: see `build_context`.

    Raises:
        UsageError: a value does not fit, or the engine and the deployment disagree.
        KeyError: the configuration lacks a key.
    """
    try:
        return _converted(deployment, checkpoint_config, limits, paths, engine, draft, path_map)
    except msgspec.ValidationError as error:
        raise UsageError(f"the deployment cannot be rendered: {error}", hint="correct trtbuild.yaml") from error


def _converted(
    deployment: Deployment,
    checkpoint_config: Mapping[str, Any],
    limits: ResolvedLimits,
    paths: Mapping[str, Path],
    engine: Engine | None,
    draft: DraftBuild | None,
    path_map: tuple[str, str] | None,
) -> RepoContext:
    variant, serving = VARIANTS[deployment.target], deployment.serving
    # The reference target computes logits in float32 whatever the checkpoint's dtype, an engine as it was built.
    logits_dtype, max_batch_size = "float32", limits.max_batch_size
    kv_cache_max_tokens: int | None = limits.kv_tokens
    more: dict[str, Any] = {}
    release = serving_release(deployment, engine)
    if variant == "engine":
        logits_dtype, max_batch_size = batch_and_logits(engine, checkpoint_config, deployment, limits.max_batch_size)
        kv_cache_max_tokens = deployment.kv_cache.max_tokens
        more = engine_values(deployment, engine, release, lambda folder: _seen_by_server(folder, path_map), paths)
    else:
        require_none(engine_faults(deployment))
    if variant == "llmapi":
        more = _of_llm_api(deployment, checkpoint_config, limits, paths, path_map)
    else:
        more |= {"tensorrt_llm": release.name, "signatures": signatures(release, _logits_datatype(logits_dtype))}
    if draft is not None:
        more |= draft_values(
            draft, deployment, checkpoint_config,
            engine=engine, release=release, limits=limits, tokenizer_dir=paths["tokenizer_dir"],
            seen=lambda folder: _seen_by_server(folder, path_map),
        )  # fmt: skip
    values = dict(
        more,
        variant=variant,
        max_batch_size=max_batch_size,
        max_seq_len=limits.max_seq_len,
        max_num_tokens=limits.max_num_tokens,
        vocab_size=checkpoint_config["vocab_size"],
        logits_datatype=_logits_datatype(logits_dtype),
        decoupled=serving.streaming,
        queue=Queue.of(serving),
        preprocessing_instances=serving.preprocessing_instances,
        bls_instances=serving.bls_instances,
        add_special_tokens=serving.add_special_tokens,
        skip_special_tokens=serving.skip_special_tokens,
        chat_template=serving.chat_template,
        system_prompt=serving.system_prompt or None,
        stop_words=tuple(word for word in dict.fromkeys(serving.stop_words) if word),
        tokens_per_block=limits.tokens_per_block,
        num_blocks=limits.num_blocks,
        kv_cache_max_tokens=kv_cache_max_tokens,
        **{name: _seen_by_server(path, path_map) for name, path in paths.items()},
    )
    return msgspec.convert(values, RepoContext)


def _of_llm_api(
    deployment: Deployment,
    checkpoint_config: Mapping[str, Any],
    limits: ResolvedLimits,
    paths: Mapping[str, Path],
    path_map: tuple[str, str] | None,
) -> dict[str, Any]:
    """Return what the model of the LLM API needs besides: its arguments, and which tensors its release has.

    Raises:
        UsageError: the release has no LLM API, or the deployment asks for what the one model does not do.
    """
    release, serving = find_release(deployment.tensorrt_llm or DEFAULT), deployment.serving
    if not release.has(Feature.LLM_API):
        raise UsageError(
            f"TensorRT-LLM {release} has no PyTorch backend that serves Hugging Face folders (target pytorch)",
            hint="set tensorrt_llm to 1.0.0 or later, or use --target tensorrt",
        )
    if serving.chat_template:
        raise UsageError(
            "serving.chat_template is on, and the model of target pytorch takes prompts as they are",
            hint="set it to false and send prompts with the template applied, or serve chats with trtllm-serve (serve.sh of the build)",
        )
    from trtbuild.trtllm.llm_settings import Facts, arguments  # other variants do without these tables

    facts = Facts(
        deployment,
        release,
        limits,
        checkpoint_config.get("kv_cache_quant_algo"),
        lambda folder: _seen_by_server(Path(folder), path_map),
    )
    folders = {"model": _seen_by_server(paths["checkpoint_dir"], path_map)}
    if paths["tokenizer_dir"] != paths["checkpoint_dir"]:
        folders["tokenizer"] = _seen_by_server(paths["tokenizer_dir"], path_map)
    return {
        "tensorrt_llm": release.name,
        "llm_args": {**folders, **arguments(facts)},
        "llmapi_lora_inputs": release.has(Feature.LLMAPI_LORA_INPUTS),
    }


def _logits_datatype(dtype: str) -> Literal["TYPE_FP32", "TYPE_FP16"]:
    if dtype not in LOGITS_DATATYPES:
        raise TrtbuildError(
            f"logits of dtype {dtype} cannot be served: the backend knows {', '.join(LOGITS_DATATYPES)}",
            hint="build the engine with --logits_dtype float32",
        )
    return LOGITS_DATATYPES[dtype]


def _seen_by_server(path: Path, path_map: tuple[str, str] | None) -> str:
    """Return the absolute path of a folder in the file system of the server."""
    absolute = path.expanduser().resolve()
    if path_map is None:
        return str(absolute)
    here, there = Path(path_map[0]).expanduser().resolve(), PurePosixPath(path_map[1])
    if not absolute.is_relative_to(here):
        raise UsageError(f"{absolute} is not below {here}, so the server cannot see it", hint="map a common parent")
    return str(there / absolute.relative_to(here))
