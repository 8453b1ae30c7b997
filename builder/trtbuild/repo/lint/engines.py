"""Rules about a configuration and the engine that it names: what was built in cannot be changed when it is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtbuild.errors import TrtbuildError
from trtbuild.manifest import worded
from trtbuild.repo.lint.facts import EngineFolder
from trtbuild.repo.lint.findings import Problem, Rule
from trtbuild.repo.lint.repository import CORE, Model, Repository
from trtbuild.repo.proto import datatype_name
from trtbuild.safetensors_file import refuse_lfs_pointer
from trtbuild.trtllm.backend_parameters import BOOLEANS
from trtbuild.trtllm.compatibility import Installed, compare
from trtbuild.trtllm.engine import Engine

#: decoding_mode of speculative decoding, for which an engine is built.
SPECULATIVE = frozenset(["medusa", "redrafter", "lookahead", "eagle"])
#: Parameter -> whether the backend does it when the parameter is not set (Triton specification 1.8); both need paged-context attention.
NEEDS_PAGED = {"enable_kv_cache_reuse": True, "enable_chunked_context": False}
#: A Git LFS pointer is smaller than this.
_POINTER_BYTES = 1024
_LOGITS = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}


def readable(repository: Repository) -> Iterator[Problem]:
    """Find folders that are named as engines and are none."""
    for model, folder in _folders(repository):
        if folder.error:
            yield _problem(model, "gpt_model_path", folder.error, "name the folder that trtllm-build wrote")
        elif folder.artifact is not None and folder.artifact.kind != "engine":
            yield _problem(
                model,
                "gpt_model_path",
                f"{folder.path} is a {folder.artifact.kind}, not an engine",
                "build it with trtllm-build, and name the folder that it wrote",
            )


def files(repository: Repository) -> Iterator[Problem]:
    """Find engines that lost a file, or a part of one, since they were built."""
    for model, folder in _folders(repository):
        if folder.problems:
            yield _problem(
                model,
                "gpt_model_path",
                worded(folder.problems),
                "copy the whole folder again, or build the engine again",
            )


def generation(repository: Repository) -> Iterator[Problem]:
    """Find engines whose config.json has another schema than the backend reads."""
    yield from _mismatches(repository, frozenset(["generation"]))


def versions(repository: Repository) -> Iterator[Problem]:
    """Find engines of another TensorRT-LLM or TensorRT than the one that will serve them."""
    yield from _mismatches(repository, frozenset(["backend", "tensorrt"]))


def batch_size(repository: Repository) -> Iterator[Problem]:
    """Find larger batches than an engine was built for."""
    for model, engine in _engines(repository):
        built = engine.build.get("max_batch_size")
        if isinstance(built, int) and model.config.max_batch_size > built:
            yield Problem(
                model.file,
                f"max_batch_size is {model.config.max_batch_size}, {engine.path / 'config.json'} was built for {built}",
                f"use at most {built}, or build the engine for more",
                model.line("max_batch_size"),
            )


def limits(repository: Repository) -> Iterator[Problem]:
    """Find limits that trtbuild's preprocessing and postprocessing state, and that the engine does not have."""
    for engine in (each for core, each in _engines(repository) if core.folder == CORE):
        for model in (each for each in repository.parsed() if each.role):
            longest, asked = engine.build.get("max_seq_len"), _number(model, "max_seq_len")
            if isinstance(longest, int) and asked is not None and asked > longest:
                yield _problem(
                    model, "max_seq_len", f"max_seq_len is {asked:g}, {engine.path / 'config.json'} was built for {longest}", f"use at most {longest}"
                )  # fmt: skip
            built, stated = engine.pretrained.get("vocab_size"), _number(model, "vocab_size")
            if isinstance(built, int) and stated is not None and stated != built:
                yield _problem(
                    model, "vocab_size", f"vocab_size is {stated:g}, {engine.path / 'config.json'} has {built}", f"use {built}"
                )  # fmt: skip


def beam_width(repository: Repository) -> Iterator[Problem]:
    """Find more beams than an engine was built for."""
    for model, engine in _engines(repository):
        asked, built = _number(model, "max_beam_width"), engine.build.get("max_beam_width")
        if asked is not None and isinstance(built, int) and asked > built:
            yield _problem(
                model,
                "max_beam_width",
                f"max_beam_width is {asked:g}, {engine.path / 'config.json'} was built for {built}",
                f"use at most {built}, or build the engine for more",
            )


def ranks(repository: Repository) -> Iterator[Problem]:
    """Find engines whose ranks do not agree: tp times pp, the stated world size, and the files."""
    for model, engine in _engines(repository):
        mapping = engine.mapping
        product = mapping["tp_size"] * mapping["pp_size"] * mapping["cp_size"]
        if product != mapping["world_size"]:
            yield _problem(
                model,
                "gpt_model_path",
                f"{engine.path / 'config.json'}: tp {mapping['tp_size']} x pp {mapping['pp_size']} x cp {mapping['cp_size']} is {product}, "
                f"world_size says {mapping['world_size']}",
                "build the engine again",
            )
        found = {file.name for file in engine.path.glob("rank*.engine")}
        wanted = {f"rank{rank}.engine" for rank in range(mapping["world_size"])}
        for file in sorted(engine.path.glob("rank*.engine")):
            if why := _damage(file):
                yield _problem(model, "gpt_model_path", f"{file} {why}", "copy it again")
        # Without any, the folder is a configuration that was copied for a look.
        if found and found != wanted:
            wrong = ", ".join(sorted(found ^ wanted))
            yield _problem(
                model,
                "gpt_model_path",
                f"{engine.path} has {len(found)} rank files for {len(wanted)} rank(s); missing or too many: {wrong}",
                "copy the whole folder, or build the engine again",
            )


def paged_context(repository: Repository) -> Iterator[Problem]:
    """Find reuse of the KV cache and chunked context on an engine without paged-context attention."""
    for model, engine in _engines(repository):
        if engine.plugins.get("use_paged_context_fmha") is not False:
            continue
        for key, default in NEEDS_PAGED.items():
            written = BOOLEANS.get(model.values.get(key, ""))
            if written if written is not None else default:
                yield Problem(
                    model.file,
                    f"{key} is {'on' if written else 'on unless it is set to false'}, and use_paged_context_fmha is false in "
                    f"{engine.path / 'config.json'}",
                    f"set {key} to false, or build the engine with --use_paged_context_fmha enable",
                    model.parameter_line(key),
                    severity=None if written else "warning",
                )


def logits(repository: Repository) -> Iterator[Problem]:
    """Find logits declared with another type than the engine computes."""
    for model, engine in _engines(repository):
        wanted = _LOGITS.get(engine.logits_dtype)
        for tensor in model.config.output:
            if tensor.name not in ("context_logits", "generation_logits"):
                continue
            declared = datatype_name(tensor.data_type)
            if wanted is not None and declared in _LOGITS.values() and declared != wanted:
                yield Problem(
                    model.file,
                    f"output '{tensor.name}' is {declared}, the engine's logits are {engine.logits_dtype}",
                    f"declare {wanted}, here and in ensemble and BLS",
                    model.tensor_line("output", tensor.name),
                )


def lora(repository: Repository) -> Iterator[Problem]:
    """Find settings of the LoRA cache for an engine that was built without LoRA."""
    for model, engine in _engines(repository):
        keys = [key for key in model.values if key.startswith("lora_") and model.values[key]]
        if keys and "lora_plugin" in engine.plugins and not engine.plugins["lora_plugin"]:
            yield _problem(
                model,
                keys[0],
                f"{', '.join(keys)}: the engine was built without lora_plugin",
                "remove it, or build the engine with --lora_plugin",
            )


def decoding(repository: Repository) -> Iterator[Problem]:
    """Find settings for kinds of decoding or of models that an engine was not built for."""
    for model, engine in _engines(repository):
        mode, tokens = model.values.get("decoding_mode", ""), engine.build.get("max_draft_len")
        if mode in SPECULATIVE and tokens == 0:
            yield _problem(
                model, "decoding_mode", f"decoding_mode is {mode}, and the engine was built with max_draft_len 0",
                f"build it with --speculative_decoding_mode for {mode}",
            )  # fmt: skip
        share = _number(model, "gpu_weights_percent")
        if share is not None and share < 1 and engine.build.get("weight_streaming") is False:
            yield _problem(
                model, "gpu_weights_percent", f"gpu_weights_percent is {share:g}, and the engine was built without weight streaming",
                "remove it, or build the engine with --weight_streaming",
            )  # fmt: skip


def cross_attention(repository: Repository) -> Iterator[Problem]:
    """Find settings of encoder-decoder models where there is no encoder."""
    for model in repository.engine_models():
        if model.values.get("cross_kv_cache_fraction") and not model.values.get("encoder_model_path"):
            yield _problem(
                model,
                "cross_kv_cache_fraction",
                "cross_kv_cache_fraction is set, and there is no encoder_model_path: an assertion fails",
                "remove it",
            )


def kv_pool(repository: Repository) -> Iterator[Problem]:
    """Find pools of the KV cache that cannot hold one sequence, and sizes that are no whole number of blocks."""
    for model, engine in _engines(repository):
        key = "max_tokens_in_paged_kv_cache"
        tokens, longest = _number(model, key), engine.build.get("max_seq_len")
        block = engine.plugins.get("tokens_per_block")
        if tokens is not None and isinstance(longest, int) and tokens < longest:
            yield _problem(
                model, key, f"{key} is {tokens:g}, and a sequence may have {longest} tokens: none of that length ever runs",
                f"use {longest} or more",
            )  # fmt: skip
        elif tokens is not None and isinstance(block, int) and block > 0 and tokens % block:
            yield _problem(
                model, key, f"{key} is {tokens:g}, no whole number of blocks of {block} tokens (tokens_per_block of the engine)",
                f"use {tokens - tokens % block:g} or {tokens - tokens % block + block:g}",
            )  # fmt: skip


def attention_window(repository: Repository) -> Iterator[Problem]:
    """Find more attention windows than the engine has layers."""
    for model, engine in _engines(repository):
        windows, layers = model.values.get("max_attention_window_size", ""), engine.pretrained.get("num_hidden_layers")
        if windows and isinstance(layers, int) and len(windows.split(",")) > layers:
            yield _problem(
                model, "max_attention_window_size", f"max_attention_window_size has {len(windows.split(','))} values, the engine {layers} layers",
                "one value, or one for each layer",
            )  # fmt: skip


def guided(repository: Repository) -> Iterator[Problem]:
    """Find guided decoding without the file that it needs."""
    for model in repository.engine_models():
        if model.values.get("guided_decoding_backend") and not model.values.get("xgrammar_tokenizer_info_path"):
            yield _problem(
                model,
                "guided_decoding_backend",
                "guided_decoding_backend is set, and xgrammar_tokenizer_info_path is not",
                "name the JSON file that generate_xgrammar_tokenizer_info.py writes",
            )


def _folders(repository: Repository) -> Iterator[tuple[Model, EngineFolder]]:
    for model in repository.engine_models():
        if (folder := repository.facts.engines.get(model.folder)) is not None:
            yield model, folder


def _engines(repository: Repository) -> Iterator[tuple[Model, Engine]]:
    for model, folder in _folders(repository):
        if folder.engine is not None:
            yield model, folder.engine


def _damage(file: Path) -> str:
    """Return why a rank file cannot be an engine, empty when nothing speaks against it."""
    try:
        size = file.stat().st_size
        if size <= _POINTER_BYTES:
            refuse_lfs_pointer(file)
    except TrtbuildError as error:
        return error.message.removeprefix(f"{file} ")
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if size else "is empty"


def _mismatches(repository: Repository, kinds: frozenset[str]) -> Iterator[Problem]:
    release = repository.facts.release
    installed = Installed.of_release(release) if release is not None else Installed("the server")
    for model, folder in _folders(repository):
        for found in compare(folder.artifact, installed) if folder.artifact is not None else ():
            if found.rule in kinds:
                inferred = release is not None and release.evidence == "inferred" and found.rule == "tensorrt"
                yield Problem(
                    model.file, found.message, found.remedy, model.parameter_line("gpt_model_path"),
                    severity="error" if found.severity == "error" and not inferred else "warning",
                )  # fmt: skip


def _problem(model: Model, key: str, message: str, fix: str) -> Problem:
    return Problem(model.file, message, fix, model.parameter_line(key))


def _number(model: Model, key: str) -> float | None:
    """Return a parameter that is a plain number; what is not is the matter of another rule."""
    try:
        return float(model.values[key])
    except (KeyError, ValueError):
        return None


RULES: dict[str, Rule] = {
    "engine-folder": Rule(
        "error", readable, "a `gpt_model_path` that names no engine", "The backend needs `config.json` as trtllm-build wrote it and `rank{N}.engine` (Triton specification 1.8).",
        "Name the folder that trtllm-build wrote.",
    ),
    "engine-files": Rule(
        "error", files, "an engine that lost a file, or a part of one", "The model does not load. Sizes are compared with the list in the engine's `manifest.json`.",
        "Copy the whole folder again, or build the engine again.",
    ),
    "engine-generation": Rule(
        "error", generation, "an engine whose `config.json` has another schema than the backend reads",
        "`key 'builder_config' not found`: the schema changed with TensorRT-LLM 0.8 (field report VC03). Renaming keys by hand does not help, since the engine itself is of "
        "that release.",
        "Build the engine again from the checkpoint.",
    ),
    "engine-release": Rule(
        "error", versions, "an engine of another TensorRT-LLM or TensorRT than will serve it",
        "Major, minor and patch of TensorRT-LLM must be equal, and TensorRT down to the last number (field reports VC01, VC08; Triton specification 0, 3.2). A warning where the "
        "release's TensorRT could only be concluded, or the engine does not say what built it.",
        "Serve it with the container that the message names, or build it again.", needs_release=True,
    ),
    "engine-batch-size": Rule(
        "error", batch_size, "larger batches than the engine was built for", "The engine's limit holds, or it does not load (field report CR05).", "Use at most the engine's.",
    ),
    "engine-limits": Rule(
        "error", limits, "a `max_seq_len` or `vocab_size` of pre- or postprocessing that is not the engine's",
        "Prompts that preprocessing lets pass are refused by the engine, or words and ids are checked against another vocabulary (field reports CR05, TK21).",
        "Use the engine's, or render the repository again.",
    ),
    "engine-beam-width": Rule(
        "error", beam_width, "more beams than the engine was built for", "It must not exceed the value that the engine was built with (Triton specification 1.8).", "Use at most the engine's.",
    ),
    "engine-ranks": Rule(
        "error", ranks, "an engine whose ranks do not agree: tp times pp, world size, files; and rank files that are empty or Git LFS pointers",
        "`mpiSize == tp * pp`, or a rank that finds no file (Triton specification 4.3, 7.4).", "Copy the whole folder, or build it again.",
    ),
    "engine-paged-context": Rule(
        "error", paged_context, "KV cache reuse or chunked context on an engine without paged-context attention",
        "The model does not load (field report EB22). Reuse is on in current releases unless it is switched off, of which a warning is made.",
        "Set the parameter to false, or build with `--use_paged_context_fmha enable`.",
    ),
    "engine-logits": Rule(
        "error", logits, "logits declared with another type than the engine computes", "They are read wrongly, every one (field report CR13).", "Declare the engine's type in all three files.",
    ),
    "engine-lora": Rule(
        "error", lora, "settings of the LoRA cache on an engine without LoRA", "Requests with an adapter fail (Triton specification 7.4).", "Remove them, or build with `--lora_plugin`.",
    ),
    "engine-decoding": Rule(
        "error", decoding, "speculative decoding or weight streaming that the engine was not built for", "The model does not load, or does not do it (Triton specification 1.8).",
        "Remove the parameter, or build the engine for it.",
    ),
    "cross-attention": Rule(
        "error", cross_attention, "`cross_kv_cache_fraction` without an encoder", "An assertion fails when the model loads (Triton specification 1.8, TensorRT-LLM #2814).", "Remove it.",
    ),
    "kv-pool": Rule(
        "warning", kv_pool, "a KV cache that cannot hold one sequence, or is no whole number of blocks", "Requests of that length are never scheduled; parts of a block are not used (field report EB08).",
        "Use at least `max_seq_len`, in multiples of `tokens_per_block`.",
    ),
    "attention-window": Rule(
        "error", attention_window, "more attention windows than the engine has layers", "One value holds for all layers, or there is one for each, repeated when there are fewer (Triton specification 1.8).",
        "Give one value, or as many as layers at most.",
    ),
    "guided-decoding": Rule(
        "error", guided, "guided decoding without the file that it needs", "Requests with a guide fail (Triton specification 1.8, 7.4).", "Name the tokenizer info file, or leave the backend empty.",
    ),
}  # fmt: skip
