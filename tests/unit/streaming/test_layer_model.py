"""Models run layer by layer compute what whole models compute, in memory that does not grow with depth."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.reference.tiny_models import FAMILIES, prompts, tiny_model
from transformers import PreTrainedModel

from trtbuild.errors import TrtbuildError
from trtbuild.streaming.activations import Activations
from trtbuild.streaming.model import LayerModel, Tensors

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


def tensors_of(model: PreTrainedModel) -> Tensors:
    def tensors(layer: int | None) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        for name, parameter in model.named_parameters():
            found = _LAYER.search(name)
            if (int(found[1]) if found else None) == layer:
                yield name, parameter.detach().numpy()

    return tensors


def stream(model: LayerModel, rows: list[list[int]]) -> list[torch.Tensor]:
    carried = list(model.embed(rows))
    for index in range(model.num_layers):
        with model.layer(index):
            carried = [model.run(index, hidden) for hidden in carried]
    return [model.logits(hidden) for hidden in carried]


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_logits_equal_those_of_the_whole_model(family: str) -> None:
    whole = tiny_model(family)
    rows = prompts(4)
    streamed = LayerModel(whole.config.to_dict(), tensors_of(whole), dtype="float32")
    for row, logits in zip(rows, stream(streamed, rows), strict=True):
        with torch.no_grad():
            expected = whole(input_ids=torch.tensor([row])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_only_what_is_in_use_is_in_memory() -> None:
    whole = tiny_model()
    sizes = {name: parameter.numel() for name, parameter in whole.named_parameters()}
    model = LayerModel(whole.config.to_dict(), tensors_of(whole), dtype="float32")

    def held() -> set[str]:
        parameters = {**model._outside, **{n: p for layer in model._of_layer for n, p in layer.items()}}
        assert all(parameter.numel() in (0, sizes[name]) for name, parameter in parameters.items())
        return {name for name, parameter in parameters.items() if parameter.numel()}

    assert held() == set()
    (hidden,) = model.embed([[1, 2, 3]])
    assert held() == {"model.norm.weight"}
    with model.layer(1):
        assert held() - {"model.norm.weight"} == {name for name in sizes if name.startswith("model.layers.1.")}
    assert held() == {"model.norm.weight"}
    model.logits(hidden)
    assert held() == {"lm_head.weight", "model.norm.weight"}


def test_logits_of_some_tokens_are_those_of_all_tokens() -> None:
    whole = tiny_model("gemma2")
    model = LayerModel(whole.config.to_dict(), tensors_of(whole), dtype="float32")
    hidden = torch.randn(1, 9, 64)
    parts = torch.cat([model.logits(hidden[:, :4]), model.logits(hidden[:, 4:])])
    torch.testing.assert_close(parts, model.logits(hidden))


def test_a_layer_that_lacks_a_tensor_is_refused() -> None:
    whole = tiny_model()

    def tensors(layer: int | None) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        return (pair for pair in tensors_of(whole)(layer) if "down_proj" not in pair[0])

    model = LayerModel(whole.config.to_dict(), tensors, dtype="float32")
    with (
        pytest.raises(TrtbuildError, match=r"no tensor for 1 parameters of LlamaDecoderLayer: model.layers.2.mlp.down"),
        model.layer(2),
    ):
        pass

    def strange(_layer: int | None) -> Generator[tuple[str, np.ndarray[Any, Any]], None, None]:
        yield "strange", np.ones(3)

    with pytest.raises(TrtbuildError, match="'strange' has no place in LlamaForCausalLM"):
        list(LayerModel(whole.config.to_dict(), strange, dtype="float32").embed([[1]]))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    width=st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
@pytest.mark.parametrize("in_file", [False, True])
def test_activations_come_back_as_they_were_put(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], width: int, dtype: torch.dtype, in_file: bool
) -> None:
    file = tmp_path_factory.mktemp("activations") / "rows"
    needed = sum(lengths) * width * dtype.itemsize
    store = Activations.fitting(lengths, width, dtype=dtype, file=file, memory_bytes=needed - in_file)
    rows = [torch.randn(1, length, width).to(dtype) for length in lengths]
    for index in reversed(range(len(rows))):
        store.put(index, rows[index])
    assert file.exists() == in_file
    assert all(torch.equal(store.get(index), row) for index, row in enumerate(rows))
    store.sync()
    store.close()
    if in_file:
        again = Activations(lengths, width, dtype=dtype, file=file)
        assert all(torch.equal(again.get(index), row) for index, row in enumerate(rows))
        again.close()


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def test_peak_memory_is_that_of_one_layer_at_any_depth() -> None:
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 4096, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    shapes = {f"mlp.{name}_proj": (4096, 512) for name in ("gate", "up")} | {"mlp.down_proj": (512, 4096)}
    shapes |= {f"self_attn.{name}_proj": (512, 512) for name in "qkvo"}
    shapes |= {"input_layernorm": (512,), "post_attention_layernorm": (512,)}
    outside = {"model.embed_tokens": (64, 512), "model.norm": (512,), "lm_head": (64, 512)}

    def tensors(layer: int | None) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        names = outside if layer is None else {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
        for name, shape in names.items():
            yield f"{name}.weight", np.full(shape, 0.01, np.float32)

    layer_bytes = 4 * sum(int(np.prod(shape)) for shape in shapes.values())

    def growth(depth: int) -> int:
        model = LayerModel({**config, "num_hidden_layers": depth}, tensors, dtype="float32")
        _reset_peak()
        before = _memory("VmRSS")
        stream(model, [[1, 2, 3]])
        return _memory("VmHWM") - before

    growth(1)
    assert growth(12) < 2 * layer_bytes  # a layer, and two copies of the largest tensor while it is read
