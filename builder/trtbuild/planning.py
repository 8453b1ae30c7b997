"""The deployment plan: what a build will write, what every rank will hold, whether it fits and how fast it could be, before anything is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trtbuild.arch.sized import ModelSize, architecture_of, size_model
from trtbuild.checks import check_deployment, without_effect
from trtbuild.convert.plan import ConversionPlan
from trtbuild.convert.work import Work, work_of
from trtbuild.errors import CheckFailed, Lacking, TrtbuildError, UsageError, Way
from trtbuild.evaluate.limits import has_limits
from trtbuild.integrity import held
from trtbuild.limits import ResolvedLimits
from trtbuild.memory import report
from trtbuild.memory.estimate import Estimate, estimate
from trtbuild.memory.explain import of_estimate, of_host, of_limits
from trtbuild.memory.fit import problems
from trtbuild.memory.host import HostNeeds, host_needs
from trtbuild.memory.kv import element_bytes, rank_caches
from trtbuild.repo.planned import tokenizer_notes
from trtbuild.source import SourceCheckpoint, read_config
from trtbuild.spec import Deployment
from trtbuild.targets.base import Job, check_job
from trtbuild.ways import only_ways_that_work

_ON_THE_CPU = "reference"
#: Between two settings of one what-if: a comma in front of the next key.
_NEXT_KEY = re.compile(r",(?=[a-z_][a-z_.]*=)")


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is stated for.

    Attributes:
        input_len, output_len: tokens of a request; None: what suits the limits.
        copies: of the model on each GPU.
        what_ifs: "KEY=VALUE[,KEY=VALUE]" each, compared with the plan.
        is_measured: ask aiconfigurator-core for times as well.
        output: folder that will be written to, whose disk must be large enough; None: not checked.
    """

    input_len: int | None = None
    output_len: int | None = None
    copies: int = 1
    what_ifs: tuple[str, ...] = ()
    is_measured: bool = False
    output: Path | None = None


def plan(deployment: Deployment, options: PlanOptions | None = None) -> dict[str, Any]:
    """Return the plan of a deployment as plain data; it contains the conversion plan, or the size of a model that is not converted.

    Whether it fits is in the plan (`fit`), see `require_fit`.

    Raises:
        TrtbuildError: the deployment cannot be built.
    """
    options, model = options or PlanOptions(), Path(deployment.model.path)
    if (architecture := architecture_of(read_config(model))) is not None:
        return _sized(deployment, size_model(SourceCheckpoint.open(model), architecture), options)
    with only_ways_that_work(deployment):
        return _plan(deployment, options)


def _room(deployment: Deployment, work: Work, output: Path, disk_bytes: int) -> int:
    """Return the bytes that a build into a folder takes on the disk: without the stages that it will keep."""
    from trtbuild.stages import NAMES, needed, stage_inputs, stage_keys

    keys = stage_keys(work.key, stage_inputs(deployment))
    kept = {name: stage for name, stage in held(output).items() if stage.key == keys.get(name) and not stage.problems}
    if all(stage.name in kept for stage in needed(deployment, NAMES[-1])):
        return 0
    return max(0, disk_bytes - sum(int(entry["bytes"]) for stage in kept.values() for entry in stage.files.values()))


def _plan(deployment: Deployment, options: PlanOptions) -> dict[str, Any]:
    wishes = check_deployment(deployment)
    work = work_of(deployment, is_done=False)
    served, conversion = work.in_memory
    job = work.job()
    notes = [*wishes, *check_job(job), *tokenizer_notes(deployment, work.source.path)]
    notes += without_effect(deployment, calibrates=work.calibrates)
    lacking = _lacking(work)
    it = None if deployment.target == _ON_THE_CPU else _estimate(served, conversion, options)
    host = host_needs(work, it)
    if options.output is not None:
        from trtbuild.output import check_space

        check_space(options.output, _room(deployment, work, options.output, host.disk_bytes))
    limits, described = job.limits, work.describe()
    found = {
        "schema_version": report.SCHEMA_VERSION,
        "target": deployment.target,
        "tensorrt_llm": str(job.release),
        "is_converted": True,
        "conversion": described,
        "limits": {
            **asdict(limits),
            "kv_tokens": it.pool.tokens(limits.tokens_per_block) if it else limits.kv_tokens,
            "full_length_sequences": it.sequences(limits.max_seq_len) if it else limits.kv_tokens // limits.max_seq_len,
        },
        "kv_cache": _kv_cache(conversion, job, it),
        "disk_bytes": described["write_bytes"],
        "host": host.to_json(),
        "notes": list(dict.fromkeys(notes)),
        "lacking": lacking,
    }
    return {**found, **_of_gpus(work, it, options, limits=limits, host=host)}


def require_supported(plan: Mapping[str, Any]) -> None:
    """Raise TrtbuildError when a plan is of a model that is only sized, for a target that it cannot be built for."""
    if not plan["is_converted"]:
        from trtbuild.sized_plan import require_served

        require_served(plan["target"], plan["architecture"], plan["reason"])


def require_fit(plan: Mapping[str, Any]) -> None:
    """Raise CheckFailed when a plan says that the deployment does not fit, with what would."""
    fit = plan.get("fit")
    if not fit or fit["fits"] is not False:
        return
    ways = [each["way_out"] for each in fit["problems"] if each["way_out"]]
    ways += [", ".join(f"{key}={value}" for key, value in each["settings"].items()) for each in fit["suggestions"]]
    hint = (
        "what fits: " + "; ".join(dict.fromkeys(ways))
        if ways
        else "nothing that was tried fits: use more or larger GPUs"
    )
    raise CheckFailed("does not fit: " + "; ".join(each["message"] for each in fit["problems"]), hint=hint)


def require_what_ifs(plan: Mapping[str, Any]) -> None:
    """Raise CheckFailed when a plan was compared with what is refused or does not fit."""
    columns = plan.get("what_if") or []
    wrong = {
        "refused": [column["name"] for column in columns if column["error"]],
        "not fitting": [column["name"] for column in columns if column.get("fits") is False],
    }
    if any(wrong.values()):
        named = "; ".join(f"{word}: {', '.join(names)}" for word, names in wrong.items() if names)
        raise CheckFailed(f"not every what-if is possible ({named})", hint="the comparison says why, below its table")


def require_ready(plan: Mapping[str, Any]) -> None:
    """Raise Lacking when the build would stop before it begins: no size depends on what is missing, so this comes behind them."""
    lacking = plan.get("lacking")
    if lacking:
        words = "; ".join(each["message"] for each in lacking)
        raise Lacking(
            f"sized, but cannot be built yet: {words}", hint="; ".join(dict.fromkeys(each["hint"] for each in lacking))
        )


def parse_what_if(text: str) -> dict[str, Any]:
    """Split "limits.max_batch_size=8,parallel.tp_size=2" into dotted keys and values.

    Raises:
        UsageError: a part is not KEY=VALUE.
    """
    from trtbuild.initialize import setting

    return dict(setting(part) for part in _NEXT_KEY.split(text))


def _estimate(deployment: Deployment, conversion: ConversionPlan, options: PlanOptions) -> Estimate:
    return estimate(
        deployment, conversion, input_len=options.input_len, output_len=options.output_len, copies=options.copies
    )


def _lacking(work: Work) -> list[dict[str, str]]:
    """Return what the build will need and is not here, which no size depends on: a tokenizer to calibrate or to judge with, packages.

    Raises:
        TrtbuildError: a file of samples is missing, or of a kind that is not read.
    """
    found = []
    for check in (work.check_ready, partial(_check_gate, work)):
        try:
            check()
        except Lacking as error:
            found.append({"message": error.message, "hint": error.hint})
    return found


def _check_gate(work: Work) -> None:
    if has_limits(work.deployment.accuracy):
        from trtbuild.evaluate.gate import check_gate  # most deployments have no gate

        check_gate(work.source, work.deployment.accuracy)


def _sized(deployment: Deployment, model: ModelSize, options: PlanOptions) -> dict[str, Any]:
    from trtbuild.sized_plan import plan_sized

    given = {
        "--instances": options.copies > 1,
        "--measured": options.is_measured,
        "--output": options.output is not None,
    }
    if asked := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(asked)}: {model.architecture} is only sized, nothing is built of it", hint="leave it out"
        )
    return plan_sized(
        deployment,
        model,
        lengths=(options.input_len, options.output_len),
        what_ifs={text: parse_what_if(text) for text in options.what_ifs},
    )


def _kv_cache(conversion: ConversionPlan, job: Job, it: Estimate | None) -> list[dict[str, Any]]:
    """Return bytes per token and of the pool for every rank."""
    if it is not None:
        return [
            {"rank": number, "bytes_per_token": rank.own_cache.token_bytes, "pool_bytes": it.pool.pool_bytes[number]}
            for number, rank in enumerate(it.ranks)
        ]
    layout = conversion.layout
    element = element_bytes(job.kv_cache_quant_algo, layout.dtype)
    caches = rank_caches(
        job.dims,
        job.parallel,
        (None,) * job.dims.num_layers,
        element=element,
        tokens_per_block=job.limits.tokens_per_block,
    )
    return [
        {"rank": number, "bytes_per_token": cache.token_bytes, "pool_bytes": cache.token_bytes * job.limits.kv_tokens}
        for number, cache in enumerate(caches)
    ]


def _of_gpus(
    work: Work, it: Estimate | None, options: PlanOptions, *, limits: ResolvedLimits, host: HostNeeds
) -> dict[str, Any]:
    """Return memory, fit, speed and comparisons; only the comparisons' absence for the target that runs on the CPU."""
    if it is None:
        if options.what_ifs or options.is_measured:
            raise UsageError(
                "target reference runs on the CPU: there is no GPU memory to plan",
                ways=[Way(f"add --target {name}", {"target": name}) for name in ("tensorrt", "pytorch")],
            )
        return {
            "memory": None,
            "fit": None,
            "speed": None,
            "measured": None,
            "explain": [*of_limits(limits), *of_host(host)],
            "what_if": [],
        }
    speed, wrong = report.rates(it), problems(it)
    suggested = []
    if wrong:
        from trtbuild.memory.suggest import suggestions

        suggested = suggestions(it, work, copies=options.copies)
    measured = None
    if options.is_measured and not wrong:
        from trtbuild.memory.silicon import measured_speed

        measured = measured_speed(it, work.deployment.model.path, speed["requests"] if speed else 1).to_json()
    return {
        "memory": report.memory(it),
        "fit": report.fit(it, suggested),
        "speed": speed,
        "measured": measured,
        "explain": [*of_estimate(it), *of_host(host)],
        "what_if": _compared(work, it, options),
    }


def _compared(work: Work, it: Estimate, options: PlanOptions) -> list[dict[str, Any]]:
    """Return the plan and every what-if by the same figures; one that is impossible says why."""
    if not options.what_ifs:
        return []
    from trtbuild.memory.change import changed, planned

    columns: list[dict[str, Any]] = [
        {"name": "as planned", "settings": {}, "error": None, "hint": None, **report.summary(it)}
    ]
    for text in options.what_ifs:
        settings = parse_what_if(text)
        other = changed(work.deployment, settings, origin=f"--set {text}")
        column: dict[str, Any] = {**dict.fromkeys(columns[0]), "name": text, "settings": settings, "problems": []}
        try:
            with only_ways_that_work(other):
                check_deployment(other)
                replanned = planned(other, work, settings, is_done=False)
                check_job(replanned.job())
                column |= report.summary(_estimate(*replanned.in_memory, options))
        except TrtbuildError as error:
            column |= {"error": error.message, "hint": error.hint}
        columns.append(column)
    return columns
