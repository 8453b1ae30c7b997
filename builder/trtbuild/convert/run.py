"""One conversion from a deployment to a finished checkpoint folder: plan, check, calibrate, execute, manifest."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild import manifest
from trtbuild.console import progress
from trtbuild.convert.opening import OpenedSource, open_source
from trtbuild.convert.plan import ConversionOptions, ConversionPlan, plan_conversion
from trtbuild.convert.unified_plan import unified_warnings
from trtbuild.errors import CheckFailed, Lacking
from trtbuild.names import LAYOUTS
from trtbuild.parallel import Parallel
from trtbuild.quant.recipes import Recipes
from trtbuild.source import read_json
from trtbuild.spec import Deployment
from trtbuild.trtllm.notices import transformers_notices
from trtbuild.unified_layout import UnifiedLayout

if TYPE_CHECKING:
    from trtbuild.convert.encoding import Knowledge
    from trtbuild.convert.rank_files import RankSink
    from trtbuild.convert.unified import UnifiedSink

logger = logging.getLogger(__name__)

#: Sections of trtbuild.yaml that a checkpoint depends on; all else is for what is made of it.
CONVERTED_BY = ("model", "parallel", "quantization", "target")
#: Ranges found before an interruption; in the folder under construction only.
_CALIBRATION = "calibration.json"


def plan_deployment(
    deployment: Deployment, *, layers: int | None = None, also: Sequence[str] = (), is_done: bool = True
) -> ConversionPlan:
    """Plan the conversion of a deployment; reads headers only.

    Args:
        deployment: what to convert.
        also: layouts that will be written from the same read.
        layers: convert only so many layers, for trials.
        is_done: it will be carried out, so what a calibration needs must be there.

    Raises:
        UsageError: an option this version does not have.
        TrtbuildError: the model cannot be converted like this.
    """
    hardware = check_formats(deployment)
    plan = plan_opened(deployment, open_source(deployment), layers=layers, also=also, is_done=is_done)
    return replace(plan, warnings=(*plan.warnings, *hardware))


def plan_opened(
    deployment: Deployment,
    opened: OpenedSource,
    *,
    layers: int | None = None,
    also: Sequence[str] = (),
    is_done: bool = True,
) -> ConversionPlan:
    """Plan the conversion of a model that is open already; whether the GPU takes the format is not looked at.

    Args:
        deployment: what to convert.
        opened: its model.
        layers: convert only so many layers, for trials.
        also: layouts that will be written from the same read.
        is_done: see `plan_deployment`.

    Raises:
        UsageError: an option this version does not have.
        TrtbuildError: the model cannot be converted like this.
    """
    quantization, parallel = deployment.quantization, deployment.parallel
    is_unified = LAYOUTS[deployment.target] == "unified"
    source = opened.source
    options = ConversionOptions(
        quantization=quantization.scheme,
        kv_cache=quantization.kv_cache,
        dtype=deployment.model.dtype,
        parallel=Parallel()
        if is_unified
        else Parallel(
            parallel.tp_size,
            parallel.pp_size,
            moe_ep_size=parallel.ep_size,
            vocab_embedding=parallel.embedding == "vocab",
            hidden_embedding=parallel.embedding == "hidden",
        ),
        group_size=quantization.group_size,
        smoothquant_alpha=quantization.smoothquant_alpha,
        smoothquant_mode=quantization.smoothquant_mode,
        act_order=quantization.act_order,
        exclude=quantization.exclude,
        overrides=tuple(quantization.overrides.items()),
        allow_unverified=quantization.allow_unverified,
        layouts=tuple(dict.fromkeys((LAYOUTS[deployment.target], *also))),
        serving_tp_size=parallel.tp_size,
    )
    plan = plan_conversion(opened, options, layers=layers)
    if is_unified:
        plan = replace(plan, warnings=(*opened.notes, *unified_warnings(plan, parallel)))
    plan = replace(plan, warnings=(*plan.warnings, *transformers_notices(source.path)))
    if is_done:
        check_calibration(plan, deployment)
    for file in source.tokenizer_files():
        if file.name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
            read_json(file)
    return plan


def check_calibration(plan: ConversionPlan, deployment: Deployment) -> None:
    """Refuse what would fail when the calibration begins; nothing where there is none.

    Raises:
        Lacking: the model folder has no tokenizer, or a package is not installed.
        TrtbuildError: the file of samples is missing.
        UsageError: it is of a kind that is not read.
    """
    if not plan.needs_calibration:
        return
    from trtbuild.quant.calibrate.samples import check_samples

    check_samples(plan.source, _calibration_file(deployment))
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise Lacking(
            f"calibration needs {' and '.join(missing)}, not installed here", hint="pip install 'trtbuild[build]'"
        )


def plan_deployments(deployments: Sequence[Deployment], *, layers: int | None = None) -> ConversionPlan:
    """Plan one conversion that serves several targets: one read of the source, one calibration.

    Args:
        deployments: alike but for their targets.
        layers: convert only so many layers, for trials.

    Raises:
        UsageError: an option this version does not have.
        TrtbuildError: the model cannot be converted like this for one of the targets.
    """
    first = next((each for each in deployments if LAYOUTS[each.target] == "ranks"), deployments[0])
    extra = [warning for each in deployments for warning in check_formats(each)]
    plan = plan_deployment(first, layers=layers, also=[LAYOUTS[each.target] for each in deployments])
    for deployment in deployments:
        if LAYOUTS[deployment.target] != LAYOUTS[first.target]:
            extra += unified_warnings(plan, deployment.parallel)
    return replace(plan, warnings=tuple(dict.fromkeys((*plan.warnings, *extra))))


def check_formats(deployment: Deployment) -> list[str]:
    """Return warnings about number formats that are not documented for the GPU of a deployment.

    Raises:
        UsageError: one does not run there; see `hardware.check_hardware`.
    """
    if deployment.hardware.gpu is None:
        return []
    from trtbuild.hardware import check_hardware

    quantization = deployment.quantization
    return check_hardware(
        deployment.hardware.gpu,
        target=deployment.target,
        schemes=(quantization.scheme, *quantization.overrides.values()),
        kv_cache=quantization.kv_cache,
    )


def write_bytes(plan: ConversionPlan, target: str) -> int:
    """Return the bytes of all tensors that are written for a target."""
    return UnifiedLayout.of(plan.layout).nbytes if LAYOUTS[target] == "unified" else plan.write_bytes


def converted_by(deployment: Deployment) -> dict[str, Any]:
    """Return what a checkpoint depends on of a deployment, in its JSON form."""
    data = deployment.as_dict()
    return {name: data[name] for name in CONVERTED_BY}


def inputs_key(plan: ConversionPlan, deployments: Sequence[Deployment], kind: str) -> str:
    """Return what identifies the inputs of some work: the resolved deployments, the state of the model folder and of the calibration
    file, the version.
    """
    calibration = [Path(file).stat() if (file := _calibration_file(each)) else None for each in deployments]
    return manifest.digest(
        {
            **manifest.header(kind),
            "deployments": [converted_by(each) for each in deployments],
            "source": source_identity(plan, deployments[0]),
            "layers": plan.dims.num_layers,
            "calibration": [[stat.st_size, stat.st_mtime_ns] if stat else None for stat in calibration],
        }
    )


def source_identity(plan: ConversionPlan, deployment: Deployment) -> dict[str, Any]:
    """Return what tells one state of the model and its adapter from another."""
    identity = manifest.source_identity(plan.source)
    if deployment.model.merge_lora is None:
        return identity
    from trtbuild.lora import Adapter

    return {**identity, "adapter": Adapter.open(Path(deployment.model.merge_lora)).identity()}


def convert_into(
    plan: ConversionPlan, deployment: Deployment, folder: Path, *, key: str, memory_bytes: int, quiet: bool
) -> dict[str, Any]:
    """Write a complete checkpoint into a folder and return its manifest; see `convert_all`."""
    (written,) = convert_all(plan, [(deployment, folder)], key=key, memory_bytes=memory_bytes, quiet=quiet)
    return written


def convert_all(
    plan: ConversionPlan, places: Sequence[tuple[Deployment, Path]], *, key: str, memory_bytes: int, quiet: bool
) -> list[dict[str, Any]]:
    """Write complete checkpoints into folders from one read of the source and return their manifests.

    What an interrupted run finished there is kept.

    Args:
        plan: the conversion.
        places: what was asked for, and its folder: empty, or left by an interrupted run of the same work.
        key: identifies the inputs, see `inputs_key`.
        memory_bytes: what the conversion may use above the interpreter; calibration needs one decoder layer more.
        quiet: show no progress.

    Raises:
        TrtbuildError: weights or calibration data are unusable.
    """
    from trtbuild.convert.tied import check_tied_head  # numpy is needed from here on only

    check_tied_head(plan)
    seconds: dict[str, float] = {}
    stats, calibration = plan.known_stats, None
    kept = places[0][1] / _CALIBRATION
    if plan.needs_calibration:
        from trtbuild.convert.calibration import calibrate_once

        stats, calibration = calibrate_once(plan, places[0][0], kept, seconds, memory_bytes=memory_bytes, quiet=quiet)
    from trtbuild.convert.encoding import Knowledge
    from trtbuild.convert.execute import run_sinks

    known = plan.known.recipes if plan.known else None
    knowledge = Knowledge(plan, stats, known or Recipes.open(kept.with_suffix("")))
    start = time.perf_counter()
    with ExitStack() as stack:
        sinks: list[RankSink | UnifiedSink] = []
        for deployment, folder in places:
            sinks.append(_sink(knowledge, deployment, folder))
            stack.enter_context(sinks[-1])
        with progress("converting", sum(sink.rows_bytes for sink in sinks), quiet=quiet) as advance:
            run_sinks(plan, sinks, advance=advance, memory_bytes=memory_bytes)
        results = [sink.finish() for sink in sinks]
    seconds["convert"] = time.perf_counter() - start
    kept.unlink(missing_ok=True)
    shutil.rmtree(kept.with_suffix(""), ignore_errors=True)
    manifests = []
    for (deployment, folder), sink, result in zip(places, sinks, results, strict=True):
        sink.write_beside()
        written = {
            **manifest.header("checkpoint"),
            "target": deployment.target,
            "source": {**source_identity(plan, deployment), "revision": deployment.model.revision},
            "deployment": deployment.as_dict(),
            "calibration": calibration,
            "kv_scales": list(result.kv_scales),
            "inputs_key": key,
            "inputs_sha256": result.inputs,
            "read_bytes": plan.read_bytes,
            "write_bytes": sink.write_bytes,
            "sha256": result.digests,
            "warnings": list(plan.warnings),
            "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
            "peak_rss_bytes": manifest.peak_rss_bytes(),
        }
        manifest.write(folder, written)
        manifests.append(written)
        logger.info(
            "%d files, %s bytes written for target %s in %.1f s, peak memory %d MiB",
            len(result.digests),
            f"{sink.write_bytes:,}",
            deployment.target,
            sum(seconds.values()),
            written["peak_rss_bytes"] >> 20,
        )
    return manifests


def _sink(knowledge: Knowledge, deployment: Deployment, folder: Path) -> RankSink | UnifiedSink:
    """Open what writes a target's tensors."""
    from trtbuild.convert.rank_files import RankSink
    from trtbuild.convert.unified import UnifiedSink

    if LAYOUTS[deployment.target] == "unified":
        return UnifiedSink(knowledge, UnifiedLayout.of(knowledge.plan.layout), folder)
    return RankSink(knowledge, folder)


def verify_source(plan: ConversionPlan, target: str, expected: Mapping[str, str], *, quiet: bool) -> None:
    """Read the source again and compare it with what was converted.

    Args:
        plan: the conversion.
        target: what was converted to: the layouts read different parts.
        expected: label of a part -> SHA-256 of its rows, from the manifest.
        quiet: show no progress.

    Raises:
        CheckFailed: a tensor is another than then, though size and time of its file are the same.
    """
    from trtbuild.convert.execute import digest_source

    is_unified = LAYOUTS[target] == "unified"
    parts = [weight.part for weight in UnifiedLayout.of(plan.layout).weights] if is_unified else plan.layout.parts
    with progress("verifying inputs", sum(map(plan.part_bytes, parts)), quiet=quiet) as advance:
        found = digest_source(plan, parts, advance=advance)
    changed = sorted(label for label, digest in found.items() if expected.get(label) != digest)
    if changed:
        raise CheckFailed(
            f"{plan.source.path}: {len(changed)} tensors are not those that were converted: {', '.join(changed[:5])}",
            hint="convert again with --force, or restore the model",
        )


def _calibration_file(deployment: Deployment) -> Path | None:
    file = deployment.quantization.calibration.file
    return Path(file) if file else None
