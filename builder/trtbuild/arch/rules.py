"""The types an architecture is written in: `WeightRule` (one target tensor), `View` (rows of a fused source) and `ArchSpec`.

Knows names, shapes and how parts are joined and cut. Knows no files, no ranks and no quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.dims import ModelDims
from trtbuild.shard import Shard

Shape = tuple[int, ...]
#: Which pipeline stage holds a tensor: the first, the last, or the one of its layer.
Stage = Literal["first", "layer", "last"]
#: Stands for the number of an expert in the names of sources.
EXPERT = "{expert}"


def _always(_dims: ModelDims) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class View:
    """Where the rows of a part lie in a source tensor that holds more than it: groups of rows at equal distances.

    Row r of the part is row start + (r div size) * stride + (r mod size) of the source.

    Attributes:
        source_shape: full shape of the source as Hugging Face stores it.
        size: rows of a group.
        stride: distance of the first rows of neighbouring groups.
        is_transposed: the source is stored [in, out]; its columns are the part's rows.
    """

    source_shape: Shape
    start: int
    size: int
    stride: int
    is_transposed: bool = False

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield [first, last) row ranges of the source that make up rows [start, stop) of the part, in order."""
        while start < stop:
            group, inside = divmod(start, self.size)
            count = min(self.size - inside, stop - start)
            first = self.start + group * self.stride + inside
            yield first, first + count
            start += count


def rows_of(source_shape: Shape, start: int, count: int, *, is_transposed: bool = False) -> View:
    """Return the view of `count` consecutive rows."""
    return View(source_shape, start, count, count, is_transposed)


def transposed(out_features: int, in_features: int) -> View:
    """Return the view of a whole weight that is stored [in, out]."""
    return rows_of((in_features, out_features), 0, out_features, is_transposed=True)


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One target tensor and where it comes from.

    Attributes:
        target: TensorRT-LLM name; "{layer}" stands for the layer number (local to the stage when written).
        sources: Hugging Face names of the parts; the target is the parts below one another (axis 0). With "{expert}" in them they
            are repeated for every expert, and the target gets a leading axis of experts.
        shapes: dims -> full shape of each part, [rows, in] or [rows].
        shard: how each part is cut over ranks.
        stage: which pipeline stage holds it.
        quantizable: whether schemes that quantize linears apply to it.
        scale_group: quantizable rules of a layer with the same group share their weight and activation ranges.
        when: dims -> whether the tensor exists at all.
        views: dims -> where the rows of each part lie, None for parts that are whole source tensors.
        offset: is added to the values, in float32.
        dtype: safetensors dtype if it is not the model's.
        feeds: of weight and bias of a norm: the scale group that its output goes to, and nothing else.
    """

    target: str
    sources: tuple[str, ...]
    shapes: Callable[[ModelDims], tuple[Shape, ...]]
    shard: Shard
    stage: Stage = "layer"
    quantizable: bool = False
    scale_group: str = ""
    when: Callable[[ModelDims], bool] = _always
    views: Callable[[ModelDims], tuple[View, ...]] | None = None
    offset: float = 0.0
    dtype: str | None = None
    feeds: str = ""

    @property
    def is_per_expert(self) -> bool:
        """Whether the target has a leading axis of experts."""
        return EXPERT in self.sources[0]


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """A family of architectures; TensorRT-LLM uses the Hugging Face architecture names.

    Attributes:
        model_type: Hugging Face model type, used when config.json names no architecture.
        read_dims: (config, architecture, file name for messages) -> ModelDims.
        rules: all target tensors.
        ignored: patterns of source tensors that are deliberately not used.
        config_fields: (dims, Hugging Face config) -> the family's own fields of TensorRT-LLM's config.json.
        hf_fields: TensorRT-LLM's config.json -> the family's own fields of a Hugging Face config.json.
        hf_absent: general fields of a Hugging Face config that this family's must not have.
        prefixes: other beginnings of source names -> the one the rules know.
        has_pipeline: whether the loader can run the model in pipeline stages.
        shards_embedding: the loader expects the embedding cut over the vocabulary whenever tp > 1.
        unverified: what rests on reasoning alone when tp > 1, said in a note of the plan.
        has_smoothquant_layers: TensorRT-LLM's SmoothQuant attention, MLP and norms can stand for all of the family's decoder layers.
    """

    model_type: str
    read_dims: Callable[[Mapping[str, Any], str, str], ModelDims]
    rules: tuple[WeightRule, ...]
    ignored: tuple[str, ...]
    config_fields: Callable[[ModelDims, Mapping[str, Any]], dict[str, Any]]
    hf_fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    hf_absent: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    has_pipeline: bool = True
    shards_embedding: bool = False
    unverified: str = ""
    has_smoothquant_layers: bool = False
