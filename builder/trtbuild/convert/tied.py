"""A head that is stored although it is tied: it must be the embedding. Memory bound: two row blocks."""

from __future__ import annotations

import numpy as np

from trtbuild.convert.plan import ConversionPlan
from trtbuild.errors import TrtbuildError
from trtbuild.safetensors_file import TensorReader, num_rows

HEAD = "lm_head.weight"
_BLOCK_BYTES = 16 * 2**20


def check_tied_head(plan: ConversionPlan) -> None:
    """Raise TrtbuildError when a tied model stores a head of its own that differs from the embedding.

    transformers would use it, and rank files are made from the embedding.
    """
    head = plan.source.tensors.get(HEAD)
    if head is None or not plan.dims.tie_word_embeddings:
        return
    slot = next(slot for slot in plan.layout.slots if slot.target == HEAD)
    embedding = plan.source.tensors[slot.parts[0].source]
    rows = num_rows(embedding.shape)
    step = max(_BLOCK_BYTES * rows // max(embedding.nbytes, 1), 1)
    is_same = head.shape == embedding.shape
    with TensorReader() as reader:
        for start in range(0, rows if is_same else 0, step):
            stop = min(start + step, rows)
            one, other = (tensor.read_rows(reader, start, stop) for tensor in (head, embedding))
            is_same = is_same and bool(np.array_equal(one.astype(np.float32), other.astype(np.float32)))
    if not is_same:
        raise TrtbuildError(
            f"{plan.source.path}: config.json says tie_word_embeddings, but {HEAD} is not {embedding.name}",
            hint="set tie_word_embeddings to false in config.json if the head is one of its own, else remove the tensor",
        )
