"""Hands a checkpoint and its source to EleutherAI's lm-evaluation-harness, for scores of its tasks.

Knows how lm-eval is called; tasks, prompts and datasets are its own. Memory bound: one whole model in the dtype of the computation, the
source first, then the checkpoint. No network unless lm-eval needs it for the dataset of a task.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.evaluate.report import TaskScore

if TYPE_CHECKING:
    from trtbuild.checkpoint import Checkpoint
    from trtbuild.convert.plan import ConversionPlan
    from trtbuild.unified_checkpoint import UnifiedCheckpoint

logger = logging.getLogger(__name__)

_HARNESS = "lm_eval"
#: What lm-eval raises when a dataset is not there or a task is malformed; errors of `datasets` and `requests` are among them.
_FAILURES = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What lm-eval is asked for.

    Attributes:
        names: tasks or groups of lm-eval.
        limit: documents of each task at most, None for all.
        include_path: folder with task files (YAML) of one's own.
    """

    names: tuple[str, ...]
    limit: int | None = None
    include_path: Path | None = None


def require_tasks(options: TaskOptions) -> Any:
    """Return lm-eval's index of tasks.

    Raises:
        TrtbuildError: lm-eval is not installed, or cannot be imported.
        UsageError: it knows no such task, or the folder of task files is not there.
    """
    if options.include_path is not None and not options.include_path.is_dir():
        raise UsageError(f"--include-path {options.include_path} is not a folder", hint="name a folder with task files")
    _harness()
    try:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=str(options.include_path) if options.include_path else None)
        unknown = [name for name in options.names if not manager.match_tasks([name])]
    except _FAILURES as error:
        raise TrtbuildError(
            f"lm-eval cannot list its tasks: {error}", hint="check the files of --include-path"
        ) from error
    if unknown:
        raise UsageError(
            f"lm-eval knows no task {', '.join(unknown)}",
            hint="`lm-eval ls tasks` (before 0.4.10 `lm-eval --tasks list`) prints all; --include-path adds files of your own",
        )
    return manager


def score_tasks(
    checkpoint: Checkpoint | UnifiedCheckpoint, plan: ConversionPlan, options: TaskOptions, manager: Any, *, dtype: str
) -> tuple[TaskScore, ...]:
    """Return the scores of the source and of the checkpoint, its simulated arithmetic included.

    Args:
        checkpoint: what was written.
        plan: its source, unquantized; brings the tokenizer of both.
        options: what is asked for.
        manager: of `require_tasks`.
        dtype: "float32", "bfloat16" or "float16", of weights and computation.

    Raises:
        TrtbuildError: there is no tokenizer, or lm-eval fails.
    """
    from trtbuild.quant.calibrate.encode import require_tokenizer
    from trtbuild.quant.calibrate.libraries import transformers
    from trtbuild.reference.model import load_model
    from trtbuild.streaming.model import compute_device
    from trtbuild.streaming.source import whole_source_model

    require_tokenizer(plan.source, "lm-eval's")
    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(
            plan.source.path, local_files_only=True, trust_remote_code=False
        )
    except _FAILURES as error:
        raise TrtbuildError(
            f"{plan.source.path}: the tokenizer cannot be loaded: {error}", hint="check the tokenizer files"
        ) from error
    logger.info("lm-eval: %s, the source and then the checkpoint, each in memory as a whole", ", ".join(options.names))
    device = compute_device()
    source = _scores(whole_source_model(plan, dtype=dtype), device, tokenizer, options, manager)
    gc.collect()  # the first model is gone before the second comes
    quantized = _scores(load_model(checkpoint, dtype=dtype), device, tokenizer, options, manager)  # type: ignore[arg-type]  # no other dtype gets here
    gc.collect()
    return tuple(
        TaskScore(*key, source=value, quantized=quantized[key][0], stderr=quantized[key][1])
        for key, (value, _) in source.items()
        if key in quantized
    )


def _scores(
    model: Any, device: str, tokenizer: Any, options: TaskOptions, manager: Any
) -> dict[tuple[str, str], tuple[float, float | None]]:
    """Return (task, metric) -> (score, its standard error)."""
    from lm_eval.models.huggingface import HFLM

    try:
        with redirect_stdout(sys.stderr):  # stdout is the report's
            given = HFLM(pretrained=model.to(device), tokenizer=tokenizer)
            results = _harness().simple_evaluate(
                model=given, tasks=list(options.names), limit=options.limit, task_manager=manager, log_samples=False
            )
    except _FAILURES as error:
        raise TrtbuildError(
            f"lm-eval failed on {', '.join(options.names)}: {type(error).__name__}: {error}",
            hint="the dataset of a task may have to be downloaded once, or its file may be elsewhere",
        ) from error
    return dict(_read(results["results"]))


def _read(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], tuple[float, float | None]]]:
    """Read lm-eval's results: task -> "metric,filter" -> value; "metric_stderr,filter" has the standard error."""
    for task, values in results.items():
        for name, value in values.items():
            metric, comma, chosen = name.partition(",")
            if (
                not comma
                or metric.endswith("_stderr")
                or isinstance(value, bool)
                or not isinstance(value, (int, float))
            ):
                continue
            error = values.get(f"{metric}_stderr,{chosen}")
            label = metric if chosen == "none" else f"{metric} ({chosen})"
            yield (task, label), (float(value), float(error) if isinstance(error, (int, float)) else None)


def _harness() -> ModuleType:
    """Return lm_eval.

    Raises:
        TrtbuildError: it is not installed, or cannot be imported.
    """
    hint = "pip install 'trtbuild[eval]'"
    if _HARNESS not in sys.modules and find_spec(_HARNESS) is None:
        raise TrtbuildError("--tasks needs lm-eval, which is not installed", hint=hint)
    try:
        import lm_eval
        import lm_eval.models.huggingface
    except ImportError as error:
        raise TrtbuildError(f"--tasks needs lm-eval, which cannot be imported: {error}", hint=hint) from error
    return lm_eval  # type: ignore[no-any-return]  # follow_imports=skip makes it Any


def task_names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas, each once.

    Raises:
        UsageError: there is none.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--tasks names no task", hint="e.g. --tasks hellaswag,arc_easy")
    return names
