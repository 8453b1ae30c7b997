"""The layout of a unified Hugging Face folder: every tensor of every file, from dims and options alone.

The tensors keep their Hugging Face names; only suffixes for scales are added. Writing (`convert/unified.py`) and reading
(`unified_checkpoint.py`) both go by it. Knows names, dtypes and shapes; opens no file.
Source: unified checkpoint specification 2 and 2.5 (ModelOpt's export_hf_checkpoint), transformers' names of shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from trtbuild.arch.rules import transposed
from trtbuild.layout import Layout, Part, Slot, StoredTensor
from trtbuild.quant.scheme import MODEL_DTYPE, Form
from trtbuild.quant.unified import check_kv_cache, unified_form
from trtbuild.rank_config import MIXED

#: Bytes of tensors in one file at most, as transformers cut for many years; a larger tensor is alone in its file.
MAX_FILE_BYTES = 5 * 10**9
SINGLE = "model.safetensors"
#: The file that TensorRT-LLM looks for first (2.10).
QUANT_CONFIG = "hf_quant_config.json"
#: The head is never quantized, whether it is stored or tied to the embedding.
HEAD = "lm_head"
#: The scales of a layer's KV cache, under the module that holds its attention (2.5).
KV_SCALES = ("k_proj.k_scale", "v_proj.v_scale")
_QKV = "attention.qkv.weight"


@dataclass(frozen=True, slots=True)
class UnifiedWeight:
    """One source tensor as the folder holds it.

    Attributes:
        part: the whole of the source, [out, in] if it is quantized.
        tensor: as stored.
        scales: stored beside it, in the order of the form; empty for a tensor that is not quantized.
        is_transposed: the file holds [out, in], transformers wants [in, out] (Conv1D).
        form: how it is quantized, None for a plain tensor.
        folds: Hugging Face module of a linear whose input multiplier is folded into this norm, "" for other tensors.
        offset: what a norm adds to its weight.
        folded_into: Hugging Face name of the norm that carries the multiplier of this linear's input, "" when a tensor beside it does.
    """

    part: Part
    tensor: StoredTensor
    scales: tuple[StoredTensor, ...]
    is_transposed: bool
    form: Form | None = None
    folds: str = ""
    offset: float = 0.0
    folded_into: str = ""

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """Everything that is stored for it."""
        return (self.tensor, *self.scales)


@dataclass(frozen=True)
class UnifiedLayout:
    """Names, dtypes, shapes and files.

    Attributes:
        layout: the slots, dims and options; how it cuts over ranks is not used.
        max_file_bytes: limit of one file.
    """

    layout: Layout
    max_file_bytes: int = MAX_FILE_BYTES

    @classmethod
    def of(cls, layout: Layout, *, max_file_bytes: int = MAX_FILE_BYTES) -> UnifiedLayout:
        """Return the layout of the folder for the options of rank files.

        Raises:
            TrtbuildError: scheme or KV cache format have no form that the PyTorch backend loads.
        """
        check_kv_cache(layout.kv_format.quant_algo if layout.kv_format else None)
        for scheme in layout.schemes:
            unified_form(scheme)
        return cls(layout, max_file_bytes)

    @property
    def form(self) -> Form:
        """The form of all linears that no override names."""
        return unified_form(self.layout.scheme)

    @property
    def quant_algo(self) -> str | None:
        """What hf_quant_config.json says."""
        return MIXED if self.layout.is_mixed else self.form.quant_algo

    @cached_property
    def by_slot(self) -> dict[tuple[int, str], tuple[UnifiedWeight, ...]]:
        """(layer, target) of a slot -> the source tensors it is the first to use: a tied head has none of its own."""
        seen: set[str] = set()
        found = {}
        for slot in self.layout.slots:
            sources = [source for source in slot.sources if source not in seen]
            seen.update(sources)
            found[slot.layer, slot.target] = tuple(self._weight(slot, source) for source in sources)
        return found

    @cached_property
    def weights(self) -> tuple[UnifiedWeight, ...]:
        """All source tensors in storage order."""
        return tuple(weight for weights in self.by_slot.values() for weight in weights)

    @cached_property
    def kv_scales(self) -> tuple[tuple[StoredTensor, StoredTensor], ...]:
        """The scales of keys and values per layer; empty when the cache keeps the model's dtype."""
        if self.layout.kv_format is None:
            return ()
        names = [
            slot.parts[0].module.rpartition(".")[0] for slot in self.layout.slots if slot.target.endswith(_QKV)
        ]  # the module that holds q_proj, or c_attn, or query_key_value
        return tuple(
            (StoredTensor(f"{name}.{KV_SCALES[0]}", "F32", ()), StoredTensor(f"{name}.{KV_SCALES[1]}", "F32", ()))
            for name in names
        )

    @cached_property
    def files(self) -> dict[str, tuple[StoredTensor, ...]]:
        """File name -> its tensors; a weight and its scales are never apart."""
        shards: list[list[StoredTensor]] = [[]]
        size = 0
        for tensors in self._stored_together():
            nbytes = sum(tensor.nbytes for tensor in tensors)
            if shards[-1] and size + nbytes > self.max_file_bytes:
                shards.append([])
                size = 0
            shards[-1].extend(tensors)
            size += nbytes
        if len(shards) == 1:
            return {SINGLE: tuple(shards[0])}
        return {
            f"model-{number:05}-of-{len(shards):05}.safetensors": tuple(tensors)
            for number, tensors in enumerate(shards, 1)
        }

    @cached_property
    def file_of(self) -> dict[str, str]:
        """Tensor name -> file name."""
        return {tensor.name: file for file, tensors in self.files.items() for tensor in tensors}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.files.values() for tensor in tensors)

    @property
    def exclude_modules(self) -> list[str]:
        """Modules with a matrix that is not quantized, and the head: embeddings, routers, gates."""
        plain = {
            weight.part.module
            for weight in self.weights
            if weight.form is None and len(weight.tensor.shape) > 1 and weight.tensor.name.endswith(".weight")
        }
        return sorted({*plain, HEAD})

    def _weight(self, slot: Slot, source: str) -> UnifiedWeight:
        first = next(part for part in slot.parts if part.source == source)
        shape = first.source_shape
        scheme = self.layout.scheme_of(slot)
        form = scheme.unified if scheme and scheme.unified and scheme.unified.codec else None
        if form is None:
            folds = self._folded(slot)
            return UnifiedWeight(
                part=Part(source, shape, None, first.expert),
                tensor=StoredTensor(source, self.layout.dtype, shape),
                scales=(),
                is_transposed=False,
                folds=folds.parts[0].module if folds else "",
                offset=slot.rule.offset,
            )
        is_transposed = first.view is not None and first.view.is_transposed
        if is_transposed:
            part = Part(source, shape[::-1], transposed(*shape[::-1]), first.expert)
        else:
            part = Part(source, shape, None, first.expert)
        form = form.of_shape(*part.shape)
        assert form.codec is not None
        (rows, columns), (packed_rows, packed_columns) = part.shape, form.codec.packing
        norm = self._norm_of(slot) if form.folds_norms else ""
        return UnifiedWeight(
            part=part,
            tensor=StoredTensor(source, form.dtype, (rows // packed_rows, columns // packed_columns)),
            scales=tuple(
                StoredTensor(
                    f"{part.module}.{scale.suffix}",
                    self.layout.dtype if scale.dtype == MODEL_DTYPE else scale.dtype,
                    scale.shape(rows, columns, form.codec.group_size),
                )
                for scale in form.scales
                if not (norm and scale.role == "pre_quant")
            ),
            is_transposed=is_transposed,
            form=form,
            folded_into=norm,
        )

    def _norm_of(self, slot: Slot) -> str:
        """Return the Hugging Face name of the norm that can take the multiplier of a linear's input, "" when there is none.

        As in ModelOpt, a norm with a bias takes none.
        """
        norm = self.layout.norm_of(slot)
        return norm[0].parts[0].source if len(norm) == 1 else ""

    def _folded(self, norm: Slot) -> Slot | None:
        """Return a linear whose input multiplier is folded into a norm."""
        slot = self.layout.behind(norm)
        scheme = self.layout.scheme_of(slot) if slot and self._norm_of(slot) else None
        return slot if scheme and scheme.unified and scheme.unified.folds_norms else None

    def _stored_together(self) -> Iterator[tuple[StoredTensor, ...]]:
        for weight in self.weights:
            yield weight.tensors
        yield from self.kv_scales
