"""The calibration stage of a conversion: once, resumable, and described for the manifest."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from trtbuild.console import progress
from trtbuild.convert.calibration_set import calibration_set
from trtbuild.convert.plan import ConversionPlan
from trtbuild.output import write_atomically
from trtbuild.quant.scheme import default_feed
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import read_json
from trtbuild.spec import Deployment

logger = logging.getLogger(__name__)


def calibrate_once(
    plan: ConversionPlan,
    deployment: Deployment,
    file: Path,
    seconds: dict[str, float],
    *,
    memory_bytes: int,
    quiet: bool,
) -> tuple[CalibrationStats, dict[str, Any]]:
    """Calibrate, or read what an interrupted run found.

    Args:
        plan: what will be converted.
        deployment: says what on.
        file: keeps the result until the conversion is through; a folder of the same name keeps the recipes.
        seconds: gets the time it took under "calibrate".
        memory_bytes: what may be used above one decoder layer.
        quiet: show no progress.

    Returns:
        The ranges, and what the manifest says about the calibration.

    Raises:
        TrtbuildError: the calibration data or the model are unusable.
        UsageError: the memory does not suffice.
    """
    if file.is_file():
        found = read_json(file)
        logger.info("calibration of an interrupted run is used")
        return CalibrationStats.from_json(found["stats"]), found["described"]
    stats, described = _calibrate(
        plan, deployment, file.with_suffix(""), seconds, memory_bytes=memory_bytes, quiet=quiet
    )
    write_atomically(file, json.dumps({"stats": stats.to_json(), "described": described}))
    return stats, described


def _calibrate(
    plan: ConversionPlan,
    deployment: Deployment,
    folder: Path,
    seconds: dict[str, float],
    *,
    memory_bytes: int,
    quiet: bool,
) -> tuple[CalibrationStats, dict[str, Any]]:
    from trtbuild.quant.calibrate.forward import calibrate
    from trtbuild.quant.calibrate.memory import require_memory

    require_memory(plan, memory_bytes)
    settings = deployment.quantization.calibration
    feed = default_feed(plan.layout.schemes) if settings.feed == "auto" else settings.feed
    start = time.perf_counter()
    samples, warnings = calibration_set(plan.source, settings, plan.dims)
    logger.info(
        "calibrating on %d samples, %d tokens (%s), in %s",
        len(samples.rows),
        samples.tokens,
        samples.origin,
        settings.dtype,
    )
    with progress("calibrating", samples.tokens * plan.dims.num_layers, quiet=quiet, unit="tokens") as advance:
        stats = calibrate(
            plan,
            samples,
            dtype=settings.dtype,
            folder=folder,
            memory_bytes=memory_bytes // 2,
            advance=advance,
            feed=feed,
        )
    seconds["calibrate"] = time.perf_counter() - start
    _warn_about_ranges(stats, plan)
    described = {
        "origin": samples.origin,
        "field": settings.field,
        "seed": settings.seed,
        "samples": stats.samples,
        "tokens": stats.tokens,
        "dtype": settings.dtype,
        "feed": feed,
        "sha256": stats.digest,
        "warnings": warnings,
    }
    return stats, described


def _warn_about_ranges(stats: CalibrationStats, plan: ConversionPlan) -> None:
    """One factor serves K and V of a layer: where their ranges differ much, integers lose the smaller one."""
    kv_format = plan.layout.kv_format
    if kv_format is None or kv_format.quant_algo != "INT8":
        return
    pairs = [(max(k, v), min(k, v), layer) for layer, (k, v) in enumerate(zip(stats.k_amax, stats.v_amax, strict=True))]
    large, small, layer = max(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-30))
    if large > 16 * small:
        logger.warning(
            "int8 KV cache: in layer %d one of K and V reaches %.4g, the other %.4g; sharing a scale costs the smaller one up to %.4g per value",
            layer, large, small, large / kv_format.limit / 2,
        )  # fmt: skip
