"""One evaluation from a folder to a report: opens the checkpoint and its source, loads the samples, runs both, checks the limits."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.checkpoint import Checkpoint
from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.console import progress
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.run import plan_deployment
from trtbuild.errors import TrtbuildError
from trtbuild.evaluate.agreement import require_agreement
from trtbuild.evaluate.report import Evaluation
from trtbuild.evaluate.tasks import TaskOptions, require_tasks, score_tasks
from trtbuild.evaluate.texts import TEXTS
from trtbuild.manifest import CHECKPOINT
from trtbuild.names import TARGETS
from trtbuild.quant.calibrate.samples import Samples, load_samples
from trtbuild.quant.sources import declared_method
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Accuracy, parse
from trtbuild.unified_checkpoint import UnifiedCheckpoint

logger = logging.getLogger(__name__)


def evaluate_folder(
    folder: Path,
    *,
    source: Path | None,
    accuracy: Accuracy,
    dtype: str = "float32",
    tasks: TaskOptions | None = None,
    quiet: bool,
) -> Evaluation:
    """Compare a checkpoint folder, or the checkpoint of a build folder, with its source.

    Args:
        folder: what was written; of either layout.
        source: the model it was made from; None takes it from the manifest.
        accuracy: which samples are used; its limits are not looked at here.
        dtype: "float32", "bfloat16" or "float16", of the computation.
        tasks: what lm-eval is to score besides; holds each model in memory as a whole.
        quiet: show no progress.

    Raises:
        TrtbuildError: the folder is no checkpoint, its source is unknown, gone or of another shape, or a sample is unusable.
        CheckFailed: ranks that hold the same tensor hold different copies.
    """
    from trtbuild.reference.environment import require_environment

    start = time.perf_counter()
    manager = require_tasks(tasks) if tasks else None
    folder = _checkpoint_of(folder)
    checkpoint = open_checkpoint(folder)
    if isinstance(checkpoint, Checkpoint):
        require_agreement(checkpoint)
    plan = _source_of(folder, checkpoint, source)
    samples = _samples(plan, accuracy)
    logger.info(
        "evaluating %s against %s on %d samples, %d tokens (%s), in %s",
        folder,
        plan.source.path,
        len(samples.rows),
        samples.tokens,
        samples.origin,
        dtype,
    )
    require_environment()
    # First, since a dataset that cannot be had is found out here; and while nothing else is in memory.
    scores = score_tasks(checkpoint, plan, tasks, manager, dtype=dtype) if tasks else ()
    from trtbuild.evaluate.compare import compare, steps
    from trtbuild.evaluate.models import QuantizedModel
    from trtbuild.streaming.model import compute_device
    from trtbuild.streaming.source import source_model

    device = compute_device()
    quantized = QuantizedModel(checkpoint, dtype=dtype, device=device)
    original = source_model(plan, dtype=dtype, device=device)
    total = steps(samples.rows, original.num_layers)
    with progress("evaluating", total, quiet=quiet, unit="tokens x layers") as advance:
        quality, layers = compare(original, quantized, samples.rows, advance=advance)
    found = Evaluation(
        folder=str(folder),
        source=str(plan.source.path),
        quant_algo=checkpoint.quant_algo,
        kv_cache_quant_algo=checkpoint.kv_cache_quant_algo,
        samples={
            "origin": samples.origin,
            "rows": len(samples.rows),
            "tokens": samples.tokens,
            "sha256": samples.digest,
        },
        dtype=dtype,
        quality=quality,
        layers=layers,
        seconds=round(time.perf_counter() - start, 3),
        peak_rss_bytes=manifest.peak_rss_bytes(),
        tasks=scores,
    )
    logger.info(
        "evaluated %d tokens and %d layers in %.1f s, peak memory %d MiB",
        quality.tokens,
        len(layers),
        found.seconds,
        found.peak_rss_bytes >> 20,
    )
    return found


def _checkpoint_of(folder: Path) -> Path:
    """Return the folder of the checkpoint itself.

    Raises:
        TrtbuildError: there are several.
    """
    if (folder / CHECKPOINT / "config.json").is_file():
        return folder / CHECKPOINT
    inside = [name for name in TARGETS if (folder / name / "config.json").is_file()]
    if inside and not (folder / "config.json").is_file():
        raise TrtbuildError(
            f"{folder} holds the checkpoints of several targets", hint=f"evaluate one: {folder / inside[0]}"
        )
    return folder


def _source_of(folder: Path, checkpoint: Checkpoint | UnifiedCheckpoint, source: Path | None) -> ConversionPlan:
    """Return the source as a plan that quantizes nothing, of as many layers as the checkpoint has.

    Raises:
        TrtbuildError: it is not known, not there, or another model.
    """
    made = _made_from(folder, source)
    path = Path(made["model"]["path"])
    if not path.is_dir():
        raise TrtbuildError(f"{path}, the source of {folder}, is not there", hint="name it with --source MODEL")
    is_quantized = declared_method(SourceCheckpoint.open(path)) is not None
    plain = {"scheme": "none", "dequantize": is_quantized}
    deployment = parse({"model": made["model"], "target": "reference", "quantization": plain}, origin=str(folder))
    whole = plan_deployment(deployment)
    if checkpoint.dims.num_layers > whole.dims.num_layers:
        raise TrtbuildError(
            f"{path} has {whole.dims.num_layers} layers, {folder} has {checkpoint.dims.num_layers}: it is not the source of this checkpoint",
            hint="name the model it was converted from with --source",
        )
    plan = plan_deployment(deployment, layers=checkpoint.dims.num_layers)
    if plan.dims.num_layers < whole.dims.num_layers:
        logger.warning(
            "a trial: the first %d of %d layers of both models are compared; their perplexities say nothing about the whole",
            plan.dims.num_layers,
            whole.dims.num_layers,
        )
    for name in ("architecture", "hidden_size", "vocab_size", "num_layers"):
        expected, found = getattr(checkpoint.dims, name), getattr(plan.dims, name)
        if expected != found:
            raise TrtbuildError(
                f"{path} has {name} {found}, {folder} has {expected}: it is not the source of this checkpoint",
                hint="name the model it was converted from with --source",
            )
    return plan


def _made_from(folder: Path, source: Path | None) -> dict[str, Any]:
    """Return the sections of the deployment that say what the source is.

    Raises:
        TrtbuildError: the manifest does not say, or says that it is the folder's own copy.
    """
    if source is not None:
        return {"model": {"path": str(source.resolve())}}
    hint = "name the model it was made from with --source MODEL"
    if not (folder / manifest.NAME).is_file():
        raise TrtbuildError(f"{folder} has no {manifest.NAME}, so its source is not known", hint=hint)
    made = manifest.read(folder, kind="checkpoint")
    if "kept" in made:
        raise TrtbuildError(f"{folder} is a copy of a model that was quantized already", hint=hint)
    return dict(made["deployment"])


def _samples(plan: ConversionPlan, accuracy: Accuracy) -> Samples:
    """Return the samples of held-out text.

    Raises:
        TrtbuildError: they cannot be loaded, or none has two tokens.
    """
    samples = load_samples(
        plan.source,
        Path(accuracy.file) if accuracy.file else None,
        vocab_size=plan.dims.vocab_size,
        max_samples=accuracy.max_samples,
        max_length=min(accuracy.max_length_tokens, plan.dims.max_position_embeddings),
        texts=TEXTS,
        purpose="evaluation",
    )
    if all(len(row) < 2 for row in samples.rows):
        raise TrtbuildError(
            f"{samples.origin}: no sample has two tokens, so there is nothing to predict", hint="add longer texts"
        )
    return samples
