"""What a folder says about the versions it is for: an engine, a checkpoint of rank files, or a Hugging Face folder. Reads JSON only.

Knows where versions are written; does not know which go together (`compatibility.py`). Engines: checkpoint specification 4.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtbuild import manifest
from trtbuild.errors import TrtbuildError
from trtbuild.gpus import find_gpu
from trtbuild.source import read_json
from trtbuild.trtllm.engine import MOST_RANKS

#: An SM number as tools write it: 90, sm90, sm_90a, 9.0.
_SM = re.compile(r"(?:sm_?)?(\d+)\.?(\d)[af]?")
Kind = Literal["engine", "checkpoint", "model"]
#: `kind` of the manifest beside an engine, which says what built it: tensorrt_llm, tensorrt, sm, gpu, driver.
MANIFEST_KIND = "engine"


@dataclass(frozen=True, slots=True)
class Generation:
    """A schema of an engine's config.json.

    Attributes:
        key: the key of the top level that only it has.
        since: first release that writes and reads it; None for the oldest.
        until: first release that no longer does; None for the newest.
    """

    key: str
    since: str | None
    until: str | None

    def __str__(self) -> str:
        since = f"TensorRT-LLM {self.since} and later" if self.since else ""
        return since or f"TensorRT-LLM before {self.until}"


#: Field report VC03; the change came with trtllm-build's BuildConfig in 0.8.
GENERATIONS = (Generation("builder_config", None, "0.8.0"), Generation("build_config", "0.8.0", None))


@dataclass(frozen=True, slots=True)
class Artifact:
    """Facts about one folder; what it does not say is empty or None.

    Attributes:
        called: how messages name it.
        kind: an engine, rank files, or a Hugging Face folder.
        tensorrt_llm: release that built the engine.
        tensorrt: version that built the engine; only a manifest says it.
        sm: of the GPU the engine was built on (compute capability times ten); only a manifest says it.
        driver: NVIDIA driver of the machine that built it.
        world_size: ranks, one GPU each.
        rank_bytes: size of the weights of each rank on the disk, which a GPU must hold at least.
        generation: schema of an engine's config.json.
        transformers: version that wrote a Hugging Face config.json.
    """

    called: str
    kind: Kind
    tensorrt_llm: str = ""
    tensorrt: str = ""
    sm: int | None = None
    driver: str = ""
    world_size: int = 1
    rank_bytes: tuple[int, ...] = ()
    generation: Generation | None = None
    transformers: str = ""


def read_artifact(folder: Path) -> Artifact:
    """Return the facts of a folder that has a config.json.

    Raises:
        TrtbuildError: there is no config.json, or it is none of an engine, a checkpoint or a model.
    """
    if not (folder / "config.json").is_file():
        inside = [folder / name for name in ("engine", "checkpoint") if (folder / name / "config.json").is_file()]
        raise TrtbuildError(
            f"{folder} has no config.json" if folder.is_dir() else f"{folder} is not a folder",
            hint=f"did you mean {inside[0]}?"
            if inside
            else "name a build, checkpoint, engine or model folder, or a model repository",
        )
    config = read_json(folder / "config.json", remedy="copy the whole folder again, or build or convert it again")
    generation = next((each for each in GENERATIONS if isinstance(config.get(each.key), dict)), None)
    if generation is not None:
        return _engine(folder, config, generation)
    if "architecture" in config or "mapping" in config:
        return _checkpoint(folder, config)
    if "architectures" in config or "model_type" in config:
        return Artifact(
            str(folder), "model", transformers=str(config.get("transformers_version") or ""),
            rank_bytes=(sum(file.stat().st_size for file in folder.glob("*.safetensors")),),
        )  # fmt: skip
    raise TrtbuildError(
        f"{folder} is not an engine folder, nor a checkpoint or a model: no key of its config.json says so",
        hint="name the folder that trtllm-build or `trtbuild convert` wrote, or a Hugging Face model folder",
    )


def _engine(folder: Path, config: Mapping[str, Any], generation: Generation) -> Artifact:
    built = _built_with(folder)
    file, pretrained, builder = folder / "config.json", config.get("pretrained_config"), config.get("builder_config")
    if isinstance(builder, dict):
        world_size = _old_world_size(builder, file)
    else:
        world_size = _world_size(pretrained.get("mapping") if isinstance(pretrained, dict) else None, file)
    return Artifact(
        str(folder),
        "engine",
        tensorrt_llm=str(config.get("version") or built.get("tensorrt_llm") or ""),
        tensorrt=_tensorrt(built),
        sm=_sm(built),
        driver=str(built.get("driver") or ""),
        world_size=world_size,
        rank_bytes=_rank_bytes(folder, world_size, "rank{}.engine", "rank{}_managed_weights.safetensors"),
        generation=generation,
    )


def _checkpoint(folder: Path, config: Mapping[str, Any]) -> Artifact:
    world_size = _world_size(config.get("mapping"), folder / "config.json")
    return Artifact(
        str(folder),
        "checkpoint",
        world_size=world_size,
        rank_bytes=_rank_bytes(folder, world_size, "rank{}.safetensors"),
    )


def _built_with(folder: Path) -> Mapping[str, Any]:
    """Return what the manifest beside the engine says about its build; empty when there is none, or one of something else."""
    file = folder / manifest.NAME
    found = read_json(file, remedy=manifest.REMEDIES[MANIFEST_KIND]) if file.is_file() else {}
    return found if found.get("kind") == MANIFEST_KIND else {}


def _tensorrt(built: Mapping[str, Any]) -> str:
    """Return the TensorRT that was seen when the engine was built; what was only taken from the table says nothing."""
    return str(built.get("tensorrt") or "") if built.get("tensorrt_is_measured", True) else ""


def _sm(built: Mapping[str, Any]) -> int | None:
    """Return the SM number that a manifest states, as 90, "sm_90a", "9.0" or the name of a GPU; None when it states none."""
    text = str(built.get("sm") or "").lower()
    if match := _SM.fullmatch(text):
        return int("".join(match.groups()))
    try:
        return find_gpu(str(built["gpu"])).sm if built.get("gpu") else None
    except ValueError:
        return None


def _world_size(mapping: object, file: Path) -> int:
    return read_mapping(mapping, file)["world_size"]


def read_mapping(mapping: object, file: Path) -> dict[str, int]:
    """Return tp_size, pp_size, cp_size and world_size of a mapping, which may leave any of them out.

    Args:
        mapping: of a config.json.
        file: that it stands in.

    Raises:
        TrtbuildError: one of them is no number of ranks.
    """
    found = mapping if isinstance(mapping, dict) else {}
    sizes = {key: _size(found, key, file) for key in ("tp_size", "pp_size", "cp_size")}
    product = {"world_size": sizes["tp_size"] * sizes["pp_size"] * sizes["cp_size"]}
    return {**sizes, "world_size": _size({**product, **found}, "world_size", file)}


def _old_world_size(builder: Mapping[str, Any], file: Path) -> int:
    product = _size(builder, "tensor_parallel", file) * _size(builder, "pipeline_parallel", file)
    return _size({"world_size": product}, "world_size", file)


def _size(found: Mapping[str, Any], key: str, file: Path) -> int:
    value = found.get(key, 1)
    if type(value) is not int or not 1 <= value <= MOST_RANKS:
        raise TrtbuildError(f"{file}: {key} = {value!r} is no number of ranks", hint="build or convert it again")
    return value


def _rank_bytes(folder: Path, world_size: int, *names: str) -> tuple[int, ...]:
    """Return the bytes that each rank's files hold; empty when a rank has none, since then nothing can be said."""
    sizes: list[int] = []
    for rank in range(world_size):
        files = [file for name in names if (file := folder / name.format(rank)).is_file()]
        sizes.append(sum(file.stat().st_size for file in files))
        if not sizes[-1]:
            return ()
    return tuple(sizes)
