"""Filling a transformers model from a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.reference.tiny_models import FAMILIES, FakeCheckpoint, tiny_model

from trtbuild.errors import TrtbuildError
from trtbuild.reference import environment
from trtbuild.reference.model import load_model
from trtbuild.reference.simulate import round_e4m3

IDS = torch.arange(20).unsqueeze(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_comes_out_as_it_went_in(family: str) -> None:
    model = tiny_model(family)
    loaded = load_model(FakeCheckpoint(model))
    assert type(loaded) is type(model) and not loaded.training
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_tied_weights_stay_one_tensor() -> None:
    loaded = load_model(FakeCheckpoint(tiny_model("llama_tied")))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_weights_do_not_alias_the_arrays_they_came_from() -> None:
    checkpoint = FakeCheckpoint(tiny_model())
    loaded = load_model(checkpoint)
    loaded.lm_head.weight.add_(1.0)
    assert not np.array_equal(checkpoint.tensors["lm_head.weight"], loaded.lm_head.weight.numpy())


def test_bfloat16_weights_are_widened_exactly() -> None:
    checkpoint = FakeCheckpoint(tiny_model(), bfloat16=True)
    weight = load_model(checkpoint).lm_head.weight
    assert weight.dtype == torch.float32
    assert np.array_equal(weight.numpy(), checkpoint.tensors["lm_head.weight"].astype(np.float32))


def test_the_model_can_be_loaded_in_a_smaller_dtype() -> None:
    assert {
        parameter.dtype for parameter in load_model(FakeCheckpoint(tiny_model()), dtype="bfloat16").parameters()
    } == {torch.bfloat16}


def test_a_missing_tensor_is_named() -> None:
    checkpoint = FakeCheckpoint(tiny_model())
    del checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(
        TrtbuildError, match=r"1 parameters of LlamaForCausalLM: model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_model(checkpoint)


def test_a_tensor_without_a_place_is_named() -> None:
    checkpoint = FakeCheckpoint(tiny_model("llama_tied"))
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"]
    with pytest.raises(TrtbuildError, match=r"lm_head\.weight.*no place"):
        load_model(checkpoint)


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    checkpoint = FakeCheckpoint(tiny_model())
    checkpoint.tensors["model.norm.weight"] = np.ones(65, np.float32)
    with pytest.raises(TrtbuildError, match=r"model\.norm\.weight.*\[65\].*\[64\]"):
        load_model(checkpoint)


def test_fp8_rounds_the_inputs_of_the_named_layers() -> None:
    model = tiny_model()
    checkpoint = FakeCheckpoint(model)
    checkpoint.quant_algo = "FP8"
    checkpoint.scales = {"model.layers.0.self_attn.q_proj": 0.01}
    seen: list[torch.Tensor] = []
    loaded = load_model(checkpoint)
    loaded.model.layers[0].self_attn.q_proj.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    loaded(IDS)
    normed = model.model.layers[0].input_layernorm(model.model.embed_tokens(IDS))
    assert torch.equal(seen[0], round_e4m3(normed, 0.01))


def test_a_quantized_kv_cache_without_scales_is_an_error() -> None:
    checkpoint = FakeCheckpoint(tiny_model())
    checkpoint.kv_cache_quant_algo = "FP8"
    with pytest.raises(TrtbuildError, match="0 KV cache scales for 3 layers"):
        load_model(checkpoint)


@pytest.mark.parametrize(("found", "fine"), [("5.23.9", False), ("5.24.0", True), ("6.0", True), ("5.24.0.dev0", True)])
def test_an_old_transformers_is_refused_by_version(monkeypatch: pytest.MonkeyPatch, found: str, fine: bool) -> None:
    monkeypatch.setattr(environment, "version", lambda package: {"transformers": found}.get(package, "7.0+cpu"))
    if fine:
        environment.require_environment()
        return
    with pytest.raises(TrtbuildError, match=r"transformers >= 5\.24, found 5\.23\.9"):
        environment.require_environment()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise environment.PackageNotFoundError(package)

    monkeypatch.setattr(environment, "version", missing)
    with pytest.raises(TrtbuildError, match="torch.*not installed"):
        environment.require_environment()
