"""The stages of a build: what each depends on, and what it leaves.

A stage is known by a key: the digest of everything its result depends on, the stage before it included. What has the same key need not be done
again; what has another key is never replaced unless asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import __version__, manifest
from trtbuild.convert.run import CONVERTED_BY
from trtbuild.evaluate.limits import has_limits
from trtbuild.manifest import CHECKPOINT
from trtbuild.spec import Deployment
from trtbuild.spec.changes import Change, change_of
from trtbuild.spec.fields import fields

#: The report of the accuracy gate; only in builds that have one.
EVALUATION = "evaluation.json"
#: Kinds of change that make the result of the last stage another one: an engine holds only what is fixed when it is built, the YAML of the LLM
#: API holds what a restart reads.
_MATTERS: dict[str, tuple[Change, ...]] = {
    "tensorrt": ("rebuild",),
    "pytorch": ("rebuild", "restart"),
    "reference": ("rebuild",),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a build.

    Attributes:
        name: as in --from and --until.
        sections: of trtbuild.yaml that it depends on, beyond those of the stages before.
        outputs: files and folders it leaves, by target; "*" is for every target.
    """

    name: str
    sections: tuple[str, ...]
    outputs: Mapping[str, tuple[str, ...]]

    def leaves(self, target: str) -> tuple[str, ...]:
        """Return what the stage leaves for a target."""
        return (*self.outputs.get("*", ()), *self.outputs.get(target, ()))


STAGES: tuple[Stage, ...] = (
    Stage("checkpoint", CONVERTED_BY, {"*": (CHECKPOINT,)}),
    Stage("accuracy", ("accuracy",), {"*": (EVALUATION, "evaluation.html")}),
    Stage(
        "engine",
        ("tensorrt_llm", "limits", "kv_cache", "scheduling", "engine", "llm_api", "speculative", "lora", "hardware", "serving"),
        {"tensorrt": ("engine",), "pytorch": ("llm_api.yaml", "serve.sh")},
    ),
)  # fmt: skip
NAMES = tuple(stage.name for stage in STAGES)
#: Fields that name files or folders whose content a stage depends on.
_CONTENT = (
    ("model", "merge_lora"), ("quantization", "calibration", "file"), ("accuracy", "file"), ("speculative", "draft_model"),
    ("lora", "adapters"),
)  # fmt: skip
#: Stands before the name of a field where its files are meant.
FILES_OF = "what is in "


def stage_inputs(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """Return stage -> what it depends on, beyond the stages before it and the model folder: values by their dotted keys, and of files and
    folders that they name each file's size and time.
    """
    data = deployment.as_dict()
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        values = {
            ".".join(field.path): _at(data, field.path)
            for field in fields()
            if field.path[0] in stage.sections
            and field.section is None
            and _matters(stage, field.path, deployment.target)
        }
        content = {
            FILES_OF + ".".join(place): [_identity(Path(name)) for name in _as_list(_at(data, place))]
            for place in _CONTENT
            if place[0] in stage.sections
        }
        found[stage.name] = {**values, **content}
    found["checkpoint"]["trtbuild"] = __version__
    return found


def stage_keys(checkpoint_key: str, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the key of every stage, by name.

    Args:
        checkpoint_key: of the checkpoint, which `convert` knows.
        inputs: see `stage_inputs`.
    """
    # Whether a checkpoint was judged, and by which limits, does not change what is made of it.
    later = {name: manifest.digest([checkpoint_key, name, inputs[name]]) for name in NAMES[1:]}
    return {NAMES[0]: checkpoint_key, **later}


def _matters(stage: Stage, place: tuple[str, ...], target: str) -> bool:
    return stage.name != "engine" or change_of(place, target) in _MATTERS[target]


def _at(data: Any, place: tuple[str, ...]) -> Any:
    for part in place:
        data = data[part]
    return data


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _identity(path: Path) -> list[list[Any]]:
    """Return name, size and time of a file, or of the files of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def needed(deployment: Deployment, until: str) -> tuple[Stage, ...]:
    """Return the stages that a deployment goes through, up to one by name; without limits nothing is judged."""
    last = NAMES.index(until)
    return tuple(stage for stage in STAGES[: last + 1] if stage.name != "accuracy" or has_limits(deployment.accuracy))


def has_checkpoint(folder: Path, key: str | None) -> bool:
    """Say whether a folder holds the whole checkpoint of a key; a manifest that cannot be read is of none."""
    if not (folder / manifest.NAME).is_file():
        return False
    try:
        found = manifest.read(folder, kind="checkpoint")
    except manifest.DamagedManifest:
        return False
    return found["inputs_key"] == key and manifest.is_complete(folder, found)
