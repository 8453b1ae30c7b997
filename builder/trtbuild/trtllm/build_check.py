"""Whether a built engine is what was asked for: all ranks are there, and config.json says what the arguments said.

Layout: checkpoint specification 4.10. Knows what the builder may change on its own (4.4, 4.6) and counts nothing else as equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.errors import ToolFailed, TrtbuildError
from trtbuild.trtllm.build_options import CALLER, OPTIONS
from trtbuild.trtllm.build_tool import check_version
from trtbuild.trtllm.engine import Engine

if TYPE_CHECKING:
    from trtbuild.targets.base import Job

#: Options that build_config does not repeat, or that the builder replaces: by the model's length (max_input_len, 4.4 rule 3), by None on
#: one GPU (nccl_plugin), by what the quantization allows (use_fused_mlp), by an enum's number.
_NOT_COMPARED = (
    "max_input_len", "nccl_plugin", "use_fused_mlp", "lora_dir", "lora_ckpt_source", "speculative_decoding_mode", "log_level",
    "profiling_verbosity", "monitor_memory", "fast_build",
)  # fmt: skip
#: Option -> its name in build_config, where it differs.
_NAMES = {"strip_plan": "use_strip_plan"}
#: Options whose value lies in lora_config.
_IN_LORA = ("lora_target_modules", "max_lora_rank")
#: Speculation makes these larger than asked (4.4, rules 2 and 6).
_GROW_WITH_DRAFTS = ("max_seq_len", "max_num_tokens", "opt_num_tokens", "max_draft_len")


def check_files(folder: Path, world_size: int, *, how: str) -> None:
    """Refuse a folder that lacks the file of a rank (field report EB19).

    Args:
        folder: that the builder wrote.
        world_size: ranks that must be there.
        how: end of the message: what the builder printed last.

    Raises:
        ToolFailed: no engine at all, or not of all ranks.
    """
    missing = [rank for rank in range(world_size) if not _is_file(folder / f"rank{rank}.engine")]
    if len(missing) == world_size:
        raise ToolFailed(
            f"trtllm-build ended without an error, but wrote no engine{how}",
            hint="the log says what it did instead; a --dry_run or a build of another folder ends like this",
        )
    if missing:
        names = ", ".join(f"rank{rank}.engine" for rank in missing)
        raise ToolFailed(
            f"trtllm-build ended without an error, but wrote {world_size - len(missing)} of {world_size} ranks: {names} "
            f"{'is' if len(missing) == 1 else 'are'} missing or empty{how}",
            hint="a worker died without a word, mostly for lack of memory: set engine.workers: 1 and look at the log",
        )
    if not _is_file(folder / "config.json"):
        raise ToolFailed(
            f"trtllm-build wrote {world_size} ranks but no config.json{how}", hint="rank 0 writes it; see the log"
        )


def _is_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def check_engine(job: Job, folder: Path, asked: Mapping[str, Any]) -> tuple[Engine, list[str]]:
    """Compare config.json with what was asked for.

    Args:
        job: the resolved deployment.
        folder: that the builder wrote; all files are there.
        asked: option -> value, from `build_options.requested`.

    Returns:
        The engine, and notes.

    Raises:
        ToolFailed: of another release, or a value differs; all that differ are named.
    """
    try:
        engine = Engine.open(folder)
    except TrtbuildError as error:
        raise ToolFailed(f"trtllm-build wrote an unusable engine: {error.message}", hint=error.hint) from error
    notes = check_version(engine.version, job.release, where="the engine")
    weights = [f"rank{rank}_managed_weights.safetensors" for rank in range(job.parallel.world_size)]
    if job.deployment.engine.fast_build and (missing := [name for name in weights if not _is_file(folder / name)]):
        notes.append(f"engine.fast_build should put weights beside the engine, and {', '.join(missing)} are not there")
    has_drafts = job.deployment.speculative.mode != "none"
    different = [
        *different_build(asked, engine, dtype=job.dtype, has_drafts=has_drafts),
        *_different_model(job, engine),
    ]
    if different:
        raise ToolFailed(
            f"the engine is not what was asked for: {'; '.join(different)}",
            hint="the builder changed it on its own: its log says why (lines with [W]); ask for what it can build",
        )
    return engine, notes


def different_build(asked: Mapping[str, Any], engine: Engine, *, dtype: str, has_drafts: bool) -> Iterator[str]:
    """Yield the options of trtllm-build that config.json says otherwise; what it does not repeat is not compared.

    Args:
        asked: option -> value; None and empty: not asked for.
        engine: what was built.
        dtype: of the model, which `auto` may have become.
        has_drafts: whether speculation may have made lengths larger.
    """
    lora = engine.build.get("lora_config")
    for option in OPTIONS:
        if option.place == CALLER or option.name in _NOT_COMPARED or asked.get(option.name) in (None, ()):
            continue
        name = _NAMES.get(option.name, option.name)
        places: tuple[Any, ...] = (lora if name in _IN_LORA else engine.build, engine.plugins)
        place = next((each for each in places if isinstance(each, Mapping) and name in each), None)
        if place is not None and not _is_same(
            option.name, asked[option.name], place[name], dtype=dtype, has_drafts=has_drafts
        ):
            yield f"{option.name} was to be {worded(asked[option.name])}, and is {worded(place[name])}"


def _different_model(job: Job, engine: Engine) -> Iterator[str]:
    quantization = engine.pretrained.get("quantization") or {}
    wanted = {
        "tp_size": (job.parallel.tp_size, engine.mapping["tp_size"]),
        "pp_size": (job.parallel.pp_size, engine.mapping["pp_size"]),
        "dtype": (job.dtype, engine.pretrained.get("dtype")),
        "quant_algo": (job.quant_algo, quantization.get("quant_algo")),
        "kv_cache_quant_algo": (job.kv_cache_quant_algo, quantization.get("kv_cache_quant_algo")),
    }
    for name, (asked, found) in wanted.items():
        if asked != found:
            yield f"{name} was to be {worded(asked)}, and is {worded(found)}"


def _is_same(name: str, asked: Any, found: Any, *, dtype: str, has_drafts: bool) -> bool:
    if asked == "disable":
        return found in (None, False, "disable")
    if asked == "auto":
        return found in ("auto", dtype)
    if name in _GROW_WITH_DRAFTS and has_drafts:
        return isinstance(found, int) and found >= asked
    if isinstance(asked, (list, tuple)):
        return isinstance(found, list) and sorted(asked) == sorted(found)
    if isinstance(asked, str):
        return str(found).rpartition(".")[2].lower() == asked.lower()
    return bool(found == asked)


def worded(value: Any) -> str:
    """Return a value as trtbuild.yaml writes it; None as "none"."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
