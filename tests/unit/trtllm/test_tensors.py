"""The table of tensors by release agrees with upstream's 1.2, and with the changes that the specification dates."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.repo.public_tensors import PUBLIC

from trtbuild.trtllm.tensors import CHOSEN_TYPES, ENGINE_MODELS, LLMAPI, Signature, Tensor
from trtbuild.trtllm.versions import RELEASES, Version, find_release

SIGNATURES = (*ENGINE_MODELS.values(), LLMAPI)


def flat(tensor: Tensor) -> tuple[str, tuple[int, ...], frozenset[str]]:
    """Return a tensor in the form of the hand-written list; types that a deployment chooses are the usual ones."""
    flags = {"o": tensor.optional, "g": tensor.ragged, "r": tensor.scalar}
    return tensor.dtypes[0], tensor.dims, frozenset(flag for flag, is_set in flags.items() if is_set)


@pytest.mark.parametrize("model", PUBLIC)
def test_the_tensors_of_1_2_are_those_of_upstreams_templates(model: str) -> None:
    release = find_release("1.2.0")
    for side, expected in zip(("input", "output"), PUBLIC[model], strict=True):
        assert {name: flat(each) for name, each in ENGINE_MODELS[model].of(release, side).items()} == expected  # type: ignore[arg-type] # literals of the tuple


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda each: f"{each.model}{len(each.inputs)}")
def test_no_release_has_a_name_twice(signature: Signature) -> None:
    for release in RELEASES:
        for side in (signature.inputs, signature.outputs):
            names = Counter(tensor.name for tensor in side if tensor.is_in(release))
            assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    ("model", "old", "new", "last", "first"),
    [
        ("ensemble", "random_seed", "seed", "0.19.0", "0.20.0"),
        ("tensorrt_llm_bls", "min_length", "min_tokens", "0.19.0", "0.20.0"),
        ("tensorrt_llm", "return_kv_cache_reuse_stats", "return_perf_metrics", "0.18.2", "0.19.0"),
    ],
)
def test_a_renamed_tensor_has_one_name_in_each_release(model: str, old: str, new: str, last: str, first: str) -> None:
    signature = ENGINE_MODELS[model]
    for release, present, absent in ((last, old, new), (first, new, old)):
        names = signature.of(find_release(release), "input")
        assert present in names
        assert absent not in names
    assert next(tensor for tensor in signature.inputs if tensor.name == old).renamed_to == new


def test_what_came_with_0_19_is_not_in_0_18() -> None:
    before, since = (ENGINE_MODELS["tensorrt_llm"].of(find_release(name), "input") for name in ("0.18.2", "0.19.0"))
    new = since.keys() - before.keys()
    assert {"guided_decoding_guide", "lookahead_window_size", "mrope_position_deltas", "return_perf_metrics"} <= new
    assert "retention_decode_priority" not in new


def test_spans_and_types_are_ones_that_exist() -> None:
    for signature in SIGNATURES:
        for tensor in (*signature.inputs, *signature.outputs):
            assert all(Version.parse(text) is not None for text in (tensor.since, tensor.until) if text)
            assert tensor.dtype in CHOSEN_TYPES or tensor.dtypes == (tensor.dtype,)
            assert not tensor.renamed_to or tensor.until
