"""Lengths and sizes: defaults with their origin, rules, and every contradiction refused (field reports EB01, EB02, EB05)."""

from __future__ import annotations

from typing import Any

import pytest

from trtbuild.errors import UsageError
from trtbuild.limits import ResolvedLimits, positions, resolve_limits
from trtbuild.spec import parse
from trtbuild.spec.changes import CHANGES, OF_TARGET, change_of
from trtbuild.spec.fields import fields


def _limits(positions: int = 256, target: str = "tensorrt", **sections: Any) -> ResolvedLimits:
    return resolve_limits(parse({"model": {"path": "m"}, "target": target, **sections}, origin="test"), positions)


def test_defaults_come_from_the_model_and_the_target() -> None:
    limits = _limits()
    assert (limits.max_seq_len, limits.max_input_len, limits.max_batch_size) == (256, 255, 256)
    assert limits.origins["max_seq_len"].origin == "model"
    assert limits.origins["max_batch_size"].origin == "default"
    assert _limits(target="reference").max_num_tokens == 512


@pytest.mark.parametrize(("chunked", "usable"), [(False, 8192), (True, 32767)])
def test_without_chunked_context_a_prompt_is_one_step(chunked: bool, usable: int) -> None:
    limits = _limits(
        32768, limits={"max_seq_len": 32768, "max_num_tokens": 8192}, scheduling={"chunked_context": chunked}
    )
    assert limits.max_input_len == usable
    assert bool(limits.notes) is not chunked


@pytest.mark.parametrize("given", [8192, 9000])
def test_a_prompt_without_room_for_an_answer_is_refused(given: int) -> None:
    with pytest.raises(UsageError, match="no room for an answer"):
        _limits(16384, limits={"max_input_len": given, "max_seq_len": 8192})


def test_a_prompt_longer_than_a_step_is_refused_without_chunked_context() -> None:
    with pytest.raises(UsageError, match="chunked_context is off"):
        _limits(
            16384,
            limits={"max_input_len": 9000, "max_seq_len": 16384, "max_num_tokens": 8192},
            scheduling={"chunked_context": False},
        )


def test_positions_are_the_model_s_own() -> None:
    with pytest.raises(UsageError, match="exceeds the 256 positions"):
        _limits(256, limits={"max_seq_len": 257})


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [(None, 256), ({"rope_type": "llama3", "factor": 4.0}, 256), ({"rope_type": "linear", "factor": 4.0}, 1024),
     ({"type": "yarn", "factor": 2.0}, 512), ({"type": "longrope"}, 256)],
)  # fmt: skip
def test_only_some_scalings_lengthen_the_positions(scaling: dict[str, Any] | None, expected: int) -> None:
    assert positions(256, scaling) == expected


def test_speculation_and_beams_count() -> None:
    limits = _limits(
        4096,
        limits={"max_batch_size": 2048, "max_beam_width": 1},
        speculative={"mode": "ngram", "max_draft_len": 7},
    )
    assert limits.max_num_tokens == 2048 * 8
    assert _limits(4096, limits={"max_beam_width": 4}).blocks_per_sequence == 4 * 128


def test_a_pool_below_one_sequence_names_what_would_do() -> None:
    with pytest.raises(UsageError) as error:
        _limits(4096, kv_cache={"tokens_per_block": 128, "max_tokens": 1664}, limits={"max_seq_len": 2560})
    assert "13 blocks" in str(error.value)
    assert "needs 20" in str(error.value)
    assert "max_seq_len <= 1664" in str(error.value.hint)


def test_every_field_says_what_changing_it_takes() -> None:
    places = [field.path for field in fields() if field.section is None]
    prefixes = {*CHANGES, *(prefix for table in OF_TARGET.values() for prefix in table)}
    assert all(change_of(place, target) for place in places for target in OF_TARGET)
    known = {".".join(place[:length]) for place in places for length in range(1, len(place) + 1)}
    assert prefixes <= known, "a prefix that no field has"
    assert change_of(("limits", "max_batch_size"), "tensorrt") == "rebuild"
    assert change_of(("limits", "max_batch_size"), "pytorch") == "restart"
    assert change_of(("kv_cache", "tokens_per_block"), "tensorrt") == "rebuild"
    assert change_of(("kv_cache", "max_tokens"), "tensorrt") == "restart"
