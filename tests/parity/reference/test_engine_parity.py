"""The engine answers what transformers' own `generate` answers, token for token, for every family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.unit.reference.conftest import SIZES, Listener, ask_all
from tests.unit.reference.tiny_models import FAMILIES, FakeCheckpoint, greedy, prompts, tiny_model
from transformers import PreTrainedModel

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.engine import Engine
from trtbuild.reference.factory import make_engine
from trtbuild.reference.model import load_model
from trtbuild.reference.simulate import round_e4m3
from trtbuild.reference.static import StaticEngine

NUM_PROMPTS = 8
MAX_TOKENS = 24


@pytest.fixture(scope="module", params=FAMILIES)
def original(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def served(original: PreTrainedModel) -> Iterator[BaseEngine]:
    with make_engine(load_model(FakeCheckpoint(original)), SIZES) as engine:
        yield engine


def test_prompts_sent_at_once_get_the_answers_of_generate(original: PreTrainedModel, served: BaseEngine) -> None:
    texts = prompts(NUM_PROMPTS, longest=100, seed=1)
    assert sum(map(len, texts)) > SIZES.max_num_tokens, "else no prompt is read in pieces"
    listeners = [Listener() for _ in texts]
    for text, listener in zip(texts, listeners, strict=True):
        served.submit(text, MAX_TOKENS, listener)
    answers = [listener.finish() for listener in listeners]
    assert answers == [greedy(original, text, MAX_TOKENS) for text in texts]
    assert len({token for answer in answers for token in answer}) > 10, "the answers say something"


def test_prompts_sent_one_by_one_get_the_answers_of_generate(original: PreTrainedModel, served: BaseEngine) -> None:
    for text in prompts(NUM_PROMPTS, longest=100, seed=2):
        assert served.generate(text, MAX_TOKENS).token_ids == greedy(original, text, MAX_TOKENS)


def test_prompts_that_begin_alike_get_the_answers_of_generate(original: PreTrainedModel, served: BaseEngine) -> None:
    beginning = prompts(1, longest=60, seed=3)[0] + list(range(20))
    for text in ([*beginning, *end] for end in ([1], [2, 3], [1, 4, 5])):
        assert served.generate(text, MAX_TOKENS).token_ids == greedy(original, text, MAX_TOKENS)
    assert not isinstance(served, Engine) or served.stats().kv_blocks_reused > 0


#: What ends the names of the linear layers of a block, by family.
LINEARS = {
    "qwen2": ("_proj.weight",),
    "gpt2": ("attn.c_attn.weight", "c_proj.weight", "c_fc.weight"),
    "gpt_neox": ("query_key_value.weight", "dense.weight", "h_to_4h.weight", "4h_to_h.weight"),
    "falcon_7b": ("query_key_value.weight", "dense.weight", "h_to_4h.weight", "4h_to_h.weight"),
}


@pytest.mark.parametrize("kv_cache", [None, "FP8", "INT8"])
@pytest.mark.parametrize("family", LINEARS)
def test_simulated_quantization_is_the_same_in_the_engine_as_in_a_plain_forward(
    family: str, kv_cache: str | None
) -> None:
    checkpoint = FakeCheckpoint(tiny_model(family))
    checkpoint.quant_algo = "FP8"
    checkpoint.scales = {
        name.removesuffix(".weight"): 0.02 for name in checkpoint.tensors if name.endswith(LINEARS[family])
    }
    checkpoint.kv_cache_quant_algo = kv_cache
    checkpoint.kv = None if kv_cache is None else [0.03] * 3
    model = load_model(checkpoint)
    texts = prompts(4, longest=40, seed=6)
    expected = [greedy(model, text, 8) for text in texts]
    with make_engine(load_model(checkpoint), SIZES) as engine:
        assert [engine.generate(text, 8).token_ids for text in texts] == expected
    assert expected != [greedy(tiny_model(family), text, 8) for text in texts], "quantization makes a difference"


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gpt_neox", "falcon_7b"])
def test_a_rounded_kv_cache_makes_a_difference_alone(family: str) -> None:
    checkpoint = FakeCheckpoint(tiny_model(family))
    checkpoint.kv_cache_quant_algo, checkpoint.kv = "INT8", [0.2] * 3
    texts = prompts(4, longest=40, seed=6)
    expected = [greedy(load_model(checkpoint), text, 8) for text in texts]
    assert expected != [greedy(tiny_model(family), text, 8) for text in texts]
    with make_engine(load_model(checkpoint), SIZES) as engine:
        assert [engine.generate(text, 8).token_ids for text in texts] == expected


def test_answers_that_grow_past_the_length_of_the_long_rotations_are_those_of_generate() -> None:
    model = tiny_model("phi4_mini_long")
    texts = [list(range(size)) for size in (10, 12, 15, 20, 30, 39, 40, 41, 60)]
    expected = [greedy(model, text, MAX_TOKENS) for text in texts]
    with make_engine(tiny_model("phi4_mini_long"), SIZES) as engine:
        assert isinstance(engine, StaticEngine)
        assert ask_all(engine, texts, MAX_TOKENS) == expected


def test_an_fp8_model_computes_what_its_formula_says() -> None:
    model = tiny_model("llama")
    checkpoint = FakeCheckpoint(model)
    checkpoint.quant_algo = "FP8"
    checkpoint.scales = {"model.layers.2.mlp.down_proj": 0.05}
    ids = torch.arange(16).unsqueeze(0)
    captured: dict[str, torch.Tensor] = {}
    layer = model.model.layers[2]
    layer.mlp.down_proj.register_forward_hook(lambda _, inputs, __: captured.update(hidden=inputs[0]))
    layer.mlp.register_forward_pre_hook(lambda _, inputs: captured.update(normed=inputs[0]))
    layer.register_forward_hook(lambda _, __, output: captured.update(output=output))
    with torch.no_grad():
        model(ids)
        exact = layer.mlp.down_proj.weight @ captured["hidden"].transpose(1, 2)
        rounded = layer.mlp.down_proj.weight @ round_e4m3(captured["hidden"], 0.05).transpose(1, 2)
        hidden = captured["output"] + (rounded - exact).transpose(1, 2)
        expected = model.lm_head(model.model.norm(hidden))
        found = load_model(checkpoint)(ids).logits
    assert (found - expected).abs().max() <= 1e-4
    assert (found - model(ids).logits).abs().max() > 1e-3
