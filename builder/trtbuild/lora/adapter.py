"""A LoRA adapter folder as PEFT writes it: adapter_config.json and the places of A and B in adapter_model.safetensors.

Opening reads JSON and one safetensors header. No pickle is ever opened. Knows nothing about base models.
Source: https://huggingface.co/docs/peft/en/developer_guides/checkpoint (names of the tensors, shapes of A and B).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.dtypes import FLOATS
from trtbuild.errors import TrtbuildError
from trtbuild.lora.config import MERGE_ELSEWHERE, NAME, AdapterConfig
from trtbuild.safetensors_file import TensorInfo, read_header, refuse_lfs_pointer

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
#: What a tensor that is neither A nor B means; the first pattern found in its name counts.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (r"lora_embedding_", "LoRA on an embedding"),
    (r"lora_magnitude_vector|weight_m_wdecomp", "a DoRA magnitude vector"),
    (r"lora_[AB]\.bias$", "a bias of A or B"),
    (r"\.lora_[AB]\.", "A or B under a name that PEFT does not save"),
    (r"\.bias$", "a trained bias"),
    (r"", "a weight saved whole (modules_to_save, or a resized embedding)"),
)


@dataclass(frozen=True, slots=True)
class AdapterModule:
    """A and B of one linear module; what it adds to the output is scaling * (x @ A.T) @ B.T.

    Attributes:
        name: Hugging Face name of the module in the base model, for example "model.layers.0.self_attn.q_proj".
        a: lora_A, [r, in], float16, bfloat16 or float32.
        b: lora_B, [out, r], float16, bfloat16 or float32.
        scaling: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA.
    """

    name: str
    a: TensorInfo
    b: TensorInfo
    scaling: float

    @property
    def rank(self) -> int:
        """Return r."""
        return self.a.shape[0]

    @property
    def in_features(self) -> int:
        """Return the length of an input."""
        return self.a.shape[1]

    @property
    def out_features(self) -> int:
        """Return the length of an output."""
        return self.b.shape[0]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An opened adapter folder.

    Attributes:
        path: the folder.
        rank: r of adapter_config.json; `rank_pattern` may give single modules another one.
        alpha: lora_alpha of adapter_config.json.
        use_rslora: whether scaling is alpha / sqrt(r).
        fan_in_fan_out: whether the base keeps its weights as [in, out] (Conv1D); A and B are the same either way.
        base_model_name: name of the model it was trained on, None when it is not given.
        modules: the adapted modules, sorted by name.
    """

    path: Path
    rank: int
    alpha: float
    use_rslora: bool
    fan_in_fan_out: bool
    base_model_name: str | None
    modules: tuple[AdapterModule, ...]

    @classmethod
    def open(cls, path: Path) -> Adapter:
        """Open an adapter folder.

        Raises:
            TrtbuildError: anything that makes the folder unusable, or the adapter more than A and B of linear modules;
                the message names the file and the field or tensor.
        """
        config = AdapterConfig.read(_file(path, NAME))
        return cls(
            path=path,
            rank=config.rank,
            alpha=config.alpha,
            use_rslora=config.use_rslora,
            fan_in_fan_out=config.fan_in_fan_out,
            base_model_name=config.base_model_name,
            modules=_modules(config, read_header(_file(path, WEIGHTS))),
        )

    @property
    def max_rank(self) -> int:
        """Return the largest r of a module."""
        return max(module.rank for module in self.modules)

    def identity(self) -> dict[str, Any]:
        """Return what tells one state of the folder from another, for manifest.json."""
        weights = (self.path / WEIGHTS).stat()
        return {
            "path": str(self.path.resolve()),
            "base_model_name": self.base_model_name,
            "config_sha256": hashlib.sha256((self.path / NAME).read_bytes()).hexdigest(),
            "files": [{"name": WEIGHTS, "bytes": weights.st_size, "mtime_ns": weights.st_mtime_ns}],
        }


def listed(names: Iterable[str], *, most: int = 3) -> str:
    """Return the first names and how many more there are, for messages."""
    every = sorted(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def _file(path: Path, name: str) -> Path:
    """Return a file of the folder, or say what the folder is instead."""
    if not path.is_dir():
        kind = "is a file, not an adapter folder" if path.exists() else "does not exist"
        raise TrtbuildError(f"{path} {kind}", hint=f"name a folder with {NAME} and {WEIGHTS}")
    file = path / name
    if not file.exists():
        if name == WEIGHTS and (path / PICKLE).exists():
            raise TrtbuildError(
                f"{path} holds the pickled {PICKLE} only, which is never opened: loading it runs code",
                hint=f"save the adapter as {WEIGHTS} where you trust it (PEFT's save_pretrained does by default)",
            )
        is_model = name == NAME and (path / "config.json").is_file()
        hint = "it looks like a model folder; name the adapter's" if is_model else "download the whole adapter folder"
        raise TrtbuildError(f"{path} has no {name}", hint=hint)
    refuse_lfs_pointer(file)
    return file


def _modules(config: AdapterConfig, tensors: Mapping[str, TensorInfo]) -> tuple[AdapterModule, ...]:
    sides: dict[str, dict[str, TensorInfo]] = {}
    strange: dict[str, list[str]] = {}
    for name, info in tensors.items():
        found = _TENSOR.fullmatch(name.removeprefix(_PREFIX))
        if found is None:
            meaning = next(text for pattern, text in _MEANINGS if re.search(pattern, name))
            strange.setdefault(meaning, []).append(name)
            continue
        module = sides.setdefault(found["module"], {})
        if found["side"] in module:
            raise TrtbuildError(
                f"{info.path}: {name} and {module[found['side']].name} are the same tensor of the same module",
                hint="remove the one that does not belong to the adapter",
            )
        module[found["side"]] = info
    for meaning, names in strange.items():
        raise TrtbuildError(f"{config.path.parent / WEIGHTS} holds {meaning}: {listed(names)}", hint=MERGE_ELSEWHERE)
    if not sides:
        raise TrtbuildError(
            f"{config.path.parent / WEIGHTS} holds no lora_A and no lora_B", hint="save the adapter again"
        )
    modules = tuple(_module(config, name, found) for name, found in sorted(sides.items()))
    outside = [name for name in sides if not config.selection.takes(name)]
    if outside:
        raise TrtbuildError(
            f"{config.path.parent / WEIGHTS} holds A and B of {len(outside)} of {len(sides)} modules that {NAME} does not select "
            f"(target_modules, exclude_modules, layers_to_transform): {listed(outside)}",
            hint="PEFT leaves them out; correct these fields if they belong to the adapter, else save it again without them",
        )
    return modules


def _module(config: AdapterConfig, name: str, sides: Mapping[str, TensorInfo]) -> AdapterModule:
    if len(sides) == 1:
        there, missing = ("A", "B") if "A" in sides else ("B", "A")
        raise TrtbuildError(
            f"{sides[there].path}: module {name} has lora_{there} but no lora_{missing}", hint="save the adapter again"
        )
    a, b = sides["A"], sides["B"]
    for info in (a, b):
        if info.dtype not in FLOATS:
            raise TrtbuildError(
                f"{info.path}: {info.name} is {info.dtype}, which is not supported",
                hint=f"save the adapter as one of {', '.join(FLOATS)}",
            )
        if len(info.shape) != 2 or 0 in info.shape:
            raise TrtbuildError(
                f"{info.path}: {info.name} has the shape {list(info.shape)}; A is [r, in], B is [out, r]",
                hint="only adapters of linear modules are supported; " + MERGE_ELSEWHERE,
            )
    rank = config.rank_of(name)
    if (a.shape[0], b.shape[1]) != (rank, rank):
        raise TrtbuildError(
            f"{a.path}: rank of module {name} is {rank} in {NAME}, A {list(a.shape)} has {a.shape[0]} and "
            f"B {list(b.shape)} has {b.shape[1]}",
            hint=f"{NAME} and {WEIGHTS} do not belong together, or rank_pattern is incomplete; save the adapter again",
        )
    return AdapterModule(name, a, b, config.scaling_of(name))
