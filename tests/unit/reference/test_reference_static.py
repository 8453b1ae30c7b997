"""Static batches: who answers together, and which models are served so."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.reference.conftest import SIZES, Listener, ask_all
from tests.unit.reference.tiny_models import FAMILIES, greedy, prompts, tiny_model

from trtbuild.arch.registry import MODEL_TYPES
from trtbuild.reference.engine import Engine
from trtbuild.reference.factory import make_engine
from trtbuild.reference.sampling import SamplingParams
from trtbuild.reference.static import StaticEngine
from trtbuild.reference.support import STATIC_BATCHES, batching_of, rope_switch

LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "max_seq_len", "batching"),
    [
        ({"model_type": "llama"}, 4096, "continuous"),
        ({"model_type": "gpt2"}, 1024, "continuous"),
        ({"model_type": "gpt_neox"}, 16, "static"),
        ({"model_type": "falcon"}, 16, "static"),
        ({"model_type": "phi3", "rope_parameters": {"rope_type": "default"}}, 4096, "continuous"),
        ({"model_type": "phi3", "rope_parameters": None}, 4096, "continuous"),
        ({"model_type": "phi3", "rope_parameters": LONGROPE}, 64, "continuous"),
        ({"model_type": "phi3", "rope_parameters": LONGROPE}, 65, "static"),
    ],
)
def test_a_model_is_served_as_its_config_says(config: dict[str, Any], max_seq_len: int, batching: str) -> None:
    assert batching_of(config, max_seq_len) == batching


def test_the_length_at_which_rotations_change_is_found_beside_the_block_too() -> None:
    beside = {"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 16}
    assert rope_switch(beside) == 16


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", Engine), ("gemma2", Engine), ("gpt_neox", StaticEngine), ("falcon_7b", StaticEngine)]
)
def test_the_factory_makes_the_engine_of_the_model(family: str, kind: type) -> None:
    assert type(make_engine(tiny_model(family), SIZES)) is kind


def test_every_architecture_that_can_be_converted_is_compared_with_generate() -> None:
    assert set(MODEL_TYPES) == {settings["model_type"] for settings in FAMILIES.values()}


def test_the_table_is_read_without_heavy_libraries() -> None:
    code = "import sys; import trtbuild.reference.support; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert {"gpt_neox", "falcon"} == STATIC_BATCHES


def test_requests_that_wait_together_are_answered_together() -> None:
    texts = prompts(5, longest=40, seed=2)
    with StaticEngine(tiny_model("gpt_neox"), SIZES) as engine:
        first = Listener()
        engine.submit([1], 60, first)
        first.next()
        listeners = [Listener() for _ in texts]
        for text, listener in zip(texts, listeners, strict=True):
            engine.submit(text, 3, listener)
        assert engine.stats().waiting == 5
        first.finish()
        for listener in listeners:
            listener.finish()
        # One pass per piece of the prompts, and one per token after the first.
        pieces = -(-max(map(len, texts)) // (SIZES.max_num_tokens // len(texts)))
        assert engine.stats().iteration == (1 + 59) + pieces + 2
        assert engine.stats().active == engine.stats().kv_blocks_used == 0


def test_a_small_pool_makes_small_batches() -> None:
    model, texts = tiny_model("falcon_40b"), prompts(7, longest=30, seed=8)
    sizes = replace(SIZES, max_tokens_in_paged_kv_cache=128, max_seq_len=64)
    with StaticEngine(tiny_model("falcon_40b"), sizes) as engine:
        assert ask_all(engine, texts, 20) == [greedy(model, text, 20) for text in texts]


def test_answers_of_different_lengths_end_by_themselves() -> None:
    model, texts = tiny_model("gpt_neox"), prompts(6, longest=50, seed=4)
    listeners = [Listener() for _ in texts]
    expected = [greedy(model, text, 4 * index + 1) for index, text in enumerate(texts)]
    with StaticEngine(tiny_model("gpt_neox"), SIZES) as engine:
        engine.submit([1], 20, Listener())  # so that the others wait for one another
        for index, (text, listener) in enumerate(zip(texts, listeners, strict=True)):
            engine.submit(text, 4 * index + 1, listener)
        assert [listener.finish() for listener in listeners] == expected


def test_a_seed_gives_the_same_text_in_both_kinds_of_batches() -> None:
    params = [SamplingParams(seed=seed, top_p=0.9, repetition_penalty=1.3) for seed in range(4)]
    text = prompts(1, seed=6)[0]
    answers = []
    for kind in (Engine, StaticEngine):
        with kind(tiny_model("qwen2"), SIZES) as engine:
            answers.append([engine.generate(text, 12, params=each).token_ids for each in params])
    assert answers[0] == answers[1] and len({tuple(answer) for answer in answers[0]}) > 1
