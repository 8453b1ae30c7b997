"""The table of the C++ backend's parameters says what the specification says, and covers what we render."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trtbuild.repo.engine_context import PERIODS_MS
from trtbuild.repo.engine_settings import engine_parameters
from trtbuild.spec import parse
from trtbuild.trtllm.backend_parameters import (
    BACKEND_PARAMETERS,
    BOOLEANS,
    find_parameter,
    nearest,
    parameters_of,
    stock_placeholders,
)
from trtbuild.trtllm.versions import Version, find_release

NUMBERS: dict[str, Callable[[str], float]] = {"int": int, "uint": int, "size": int, "float": float}


def test_no_key_comes_twice() -> None:
    assert len({parameter.name for parameter in BACKEND_PARAMETERS}) == len(BACKEND_PARAMETERS)


@pytest.mark.parametrize("parameter", BACKEND_PARAMETERS, ids=lambda each: each.name)
def test_a_default_is_a_value_that_the_key_may_have(parameter) -> None:  # type: ignore[no-untyped-def] # one row
    if parameter.kind == "bool":
        assert parameter.default in {*BOOLEANS, ""}
    if parameter.kind in NUMBERS and parameter.default:
        value = NUMBERS[parameter.kind](parameter.default)
        assert parameter.lowest is None or value >= parameter.lowest
        assert parameter.highest is None or value <= parameter.highest
    if parameter.allowed and parameter.default and " " not in parameter.default:
        assert parameter.default in parameter.allowed
    assert all(Version.parse(text) is not None for text in (parameter.since, parameter.until) if text)
    assert not parameter.renamed_to or find_parameter(parameter.renamed_to) is not None


def test_every_parameter_that_is_rendered_is_one_that_the_backend_reads() -> None:
    release = find_release("1.2.1")
    deployment = parse({"model": {"path": "/m"}, "target": "tensorrt"}, origin="test")
    paths = {"tokenizer": "/m", "engine": "/e", "checkpoint": "/c"}
    written = engine_parameters(deployment, None, release, paths=paths, periods_ms=PERIODS_MS)
    read = {parameter.name for parameter in parameters_of(release)}
    assert written
    assert set(written) - read == set()


def test_the_stock_template_of_1_2_leaves_43_values_to_its_user_in_the_core_alone() -> None:
    assert len(stock_placeholders(find_release("1.2.0"))) == 43


@pytest.mark.parametrize(("release", "is_required"), [("0.18.2", False), ("0.19.0", True), ("1.2.1", True)])
def test_the_guided_decoding_keys_are_needed_since_0_19(release: str, is_required: bool) -> None:
    required = {each.name for each in BACKEND_PARAMETERS if each.is_key_required_by(find_release(release))}
    guided = {"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"}
    assert required == {"gpt_model_type", *(guided if is_required else ())}


def test_what_has_no_effect_is_not_read() -> None:
    read = {parameter.name for parameter in parameters_of(find_release("1.2.1"))}
    assert read.isdisjoint({"enable_trt_overlap", "worker_path", "max_num_sequences"})
    assert "lookahead_window_size" not in {parameter.name for parameter in parameters_of(find_release("0.18.0"))}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction"),
        ("max_beam_widht", "max_beam_width"),
        ("enable_chunked_prefill", "enable_chunked_context"),
        ("gpt_model_typ", "gpt_model_type"),
        ("prometheus", None),
    ],
)
def test_the_nearest_key_is_named(typed: str, meant: str | None) -> None:
    assert nearest(typed) == meant
