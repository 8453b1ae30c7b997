"""One conversion from a deployment to a finished checkpoint folder: plan, check, calibrate, execute, manifest."""

from __future__ import annotations

import json
import logging
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtbuild import __version__, manifest
from trtbuild.checkpoint import TOKENIZER_FOLDER
from trtbuild.console import progress
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, check_options, plan_conversion
from trtbuild.errors import TrtbuildError
from trtbuild.parallel import Parallel
from trtbuild.quant.calibrate.samples import check_samples, load_samples
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint, read_json
from trtbuild.spec import Deployment

logger = logging.getLogger(__name__)


def plan_deployment(deployment: Deployment) -> ConversionPlan:
    """Plan the conversion of a deployment; reads headers only.

    Raises:
        UsageError: an option this version does not have.
        TrtbuildError: the model cannot be converted like this.
    """
    quantization, parallel = deployment.quantization, deployment.parallel
    check_options(quantization=quantization.scheme, target=deployment.target)
    source = SourceCheckpoint.open(Path(deployment.model.path))
    options = ConversionOptions(
        quantization=quantization.scheme,
        kv_cache=quantization.kv_cache,
        dtype=deployment.model.dtype,
        parallel=Parallel(
            parallel.tp_size,
            parallel.pp_size,
            moe_ep_size=parallel.ep_size,
            vocab_embedding=parallel.embedding == "vocab",
        ),
    )
    plan = plan_conversion(source, options)
    if plan.needs_calibration:
        check_samples(source, _calibration_file(deployment))
        missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
        if missing:
            raise TrtbuildError(
                f"calibration needs {' and '.join(missing)}, not installed here", hint="pip install 'trtbuild[build]'"
            )
    for file in source.tokenizer_files():
        if file.name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
            read_json(file)
    return plan


def convert_into(plan: ConversionPlan, deployment: Deployment, folder: Path, *, quiet: bool) -> dict[str, Any]:
    """Write a complete checkpoint into an existing, empty folder and return its manifest.

    Raises:
        TrtbuildError: weights or calibration data are unusable.
    """
    seconds: dict[str, float] = {}
    stats, calibration = _calibrate(plan, deployment, seconds, quiet=quiet) if plan.needs_calibration else (None, None)
    from trtbuild.convert.execute import execute  # numpy is needed from here on only

    start = time.perf_counter()
    with progress("converting", plan.read_bytes, quiet=quiet) as advance:
        result = execute(plan, folder, stats=stats, advance=advance)
    seconds["convert"] = time.perf_counter() - start
    tokenizer = plan.source.tokenizer_files()
    if tokenizer:
        (folder / TOKENIZER_FOLDER).mkdir()
        for file in tokenizer:
            shutil.copyfile(file, folder / TOKENIZER_FOLDER / file.name)
    config = {**plan.config(), "producer": {"name": "trtbuild", "version": __version__}}
    if plan.layout.kv_format:
        config["trtbuild"] = {"kv_cache_scale_floor": plan.layout.kv_format.floor}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    written = {
        **manifest.header("checkpoint"),
        "target": deployment.target,
        "source": {**manifest.source_identity(plan.source), "revision": deployment.model.revision},
        "deployment": deployment.model_dump(mode="json"),
        "calibration": calibration,
        "kv_scales": list(result.kv_scales),
        "read_bytes": plan.read_bytes,
        "write_bytes": plan.write_bytes,
        "sha256": result.digests,
        "warnings": list(plan.warnings),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "peak_rss_bytes": manifest.peak_rss_bytes(),
    }
    manifest.write(folder, written)
    logger.info(
        "%d ranks, %s bytes written in %.1f s, peak memory %d MiB",
        plan.layout.parallel.world_size,
        f"{plan.write_bytes:,}",
        sum(seconds.values()),
        written["peak_rss_bytes"] >> 20,
    )
    return written


def _calibrate(
    plan: ConversionPlan, deployment: Deployment, seconds: dict[str, float], *, quiet: bool
) -> tuple[CalibrationStats, dict[str, Any]]:
    from trtbuild.quant.calibrate.forward import calibrate

    settings = deployment.quantization.calibration
    start = time.perf_counter()
    samples = load_samples(
        plan.source,
        _calibration_file(deployment),
        vocab_size=plan.dims.vocab_size,
        max_samples=settings.max_samples,
        max_length=settings.max_length_tokens,
    )
    logger.info(
        "calibrating on %d samples, %d tokens (%s), in %s",
        len(samples.rows),
        samples.tokens,
        samples.origin,
        settings.dtype,
    )
    with progress("calibrating", samples.tokens, quiet=quiet, unit="tokens") as advance:
        stats = calibrate(plan, samples, dtype=settings.dtype, advance=advance)
    seconds["calibrate"] = time.perf_counter() - start
    _warn_about_ranges(stats, plan)
    described = {
        "origin": samples.origin,
        "samples": stats.samples,
        "tokens": stats.tokens,
        "dtype": settings.dtype,
        "sha256": stats.digest,
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


def _calibration_file(deployment: Deployment) -> Path | None:
    file = deployment.quantization.calibration.file
    return Path(file) if file else None
