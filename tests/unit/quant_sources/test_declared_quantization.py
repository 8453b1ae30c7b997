"""Which folders count as quantized, and what is said about those that are not read."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.quant_sources.folders import X, read_folder, write_folder

from trtbuild.errors import TrtbuildError
from trtbuild.quant.sources import declared_method
from trtbuild.quant.sources.registry import METHODS
from trtbuild.source import SourceCheckpoint

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(allow_nan=False) | st.text("abc:re(", max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text("ab", max_size=2), children, max_size=3),
    max_leaves=6,
)
_FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
_GROUP = {
    "weights": _FLOAT8,
    "input_activations": {"num_bits": 8, "dynamic": True},
    "targets": ["Linear"],
    "format": None,
}
#: A sound declaration of each method, any value of which is replaced.
SOUND: dict[str, dict[str, Any]] = {
    "modelopt": {"quant_algo": "W4A16_AWQ", "group_size": 4, "kv_cache_scheme": None, "config_groups": {"g": _GROUP}},
    "compressed-tensors": {
        "format": "float-quantized", "config_groups": {"g": _GROUP}, "kv_cache_scheme": None, "sparsity_config": {},
        "transform_config": {},
    },
    "awq": {"bits": 4, "group_size": 4, "version": "gemm", "backend": "autoawq", "zero_point": True},
    "gptq": {"bits": 4, "group_size": 4, "checkpoint_format": "gptq", "desc_act": False, "dynamic": {}, "pack_dtype": "int32"},
    "fp8": {"weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}  # fmt: skip

AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": ["gate"],
}


def test_declared_but_absent_tensors_are_their_own_error(make_model: Callable[..., Path]) -> None:
    # As reported by users: quantization_config of AWQ over a model whose weights are all plain.
    folder = make_model(quantization_config=AWQ)
    with pytest.raises(TrtbuildError, match="declares awq W4A16_AWQ, but none of its linears is quantized") as error:
        read_folder(folder)
    assert str(folder) in error.value.message
    assert "remove quantization_config" in error.value.hint


def test_int32_words_never_become_a_plain_weight(make_model: Callable[..., Path]) -> None:
    # The other half: real qweight tensors, of one linear only; its gate stays plain.
    def edit(tensors: dict[str, np.ndarray]) -> None:
        rows, columns = tensors.pop(f"{X}.weight").shape
        tensors[f"{X}.qweight"] = np.zeros((columns, rows // 8), dtype=np.int32)
        tensors[f"{X}.qzeros"] = np.zeros((columns // 32, rows // 8), dtype=np.int32)
        tensors[f"{X}.scales"] = np.ones((columns // 32, rows), dtype=np.float16)

    folder = make_model(quantization_config=AWQ, edit=edit)
    read = read_folder(folder)
    plain = SourceCheckpoint.open(make_model(name="plain"))
    assert {name: tensor.shape for name, tensor in read.source.tensors.items()} == {
        name: tensor.shape for name, tensor in plain.tensors.items()
    }
    assert read.source.tensors[f"{X}.weight"].dtype == "F32"
    assert {tensor.dtype for tensor in read.source.tensors.values()} == {"F32", "BF16"}


def test_int32_words_under_the_name_of_a_weight_are_refused(make_model: Callable[..., Path]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{X}.weight"] = np.zeros((4, 4), dtype=np.int32)

    with pytest.raises(TrtbuildError, match=f"missing: {X}.qweight, .*surplus: {X}.weight"):
        read_folder(make_model(quantization_config=AWQ, edit=edit))


def test_bitsandbytes_is_answered_with_the_way_to_deploy_a_qlora_model(tmp_path: Path) -> None:
    block = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    folder = write_folder(tmp_path / "m", {f"{X}.weight": np.zeros((8, 1), dtype=np.uint8)}, block)
    with pytest.raises(TrtbuildError, match="quantized with quant_method 'bitsandbytes', which is not read") as error:
        read_folder(folder)
    assert "unquantized model" in error.value.hint
    assert "merge the adapter into the unquantized base model" in error.value.hint
    assert all(method in error.value.hint for method in METHODS)


@pytest.mark.parametrize("method", ["hqq", "aqlm", "quanto", "eetq", "mxfp4", "auto-round", "vptq", "torchao"])
def test_other_methods_are_named_with_what_is_read(tmp_path: Path, method: str) -> None:
    with pytest.raises(TrtbuildError, match=f"quant_method '{method}'") as error:
        read_folder(write_folder(tmp_path / "m", {}, {"quant_method": method}))
    assert "read are: modelopt, compressed-tensors, awq, gptq, fp8" in error.value.hint
    assert "take the unquantized model" in error.value.hint


@pytest.mark.parametrize("block", [{"bits": 4}, "fp8", ["awq"]])
def test_a_block_without_a_method_is_refused(tmp_path: Path, block: Any) -> None:
    with pytest.raises(TrtbuildError, match="quant_method 'none'"):
        read_folder(write_folder(tmp_path / "m", {}, block))


def test_an_unquantized_folder_declares_nothing(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    assert declared_method(SourceCheckpoint.open(folder)) is None
    with pytest.raises(TrtbuildError, match="declares no quantization"):
        read_folder(folder)


def test_methods_may_be_spelled_with_underscores_and_capitals(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {}, {"quant_method": "Compressed_Tensors"})
    assert declared_method(SourceCheckpoint.open(folder)) == "compressed-tensors"


def test_the_file_of_modelopt_alone_declares_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {}, None)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert declared_method(SourceCheckpoint.open(folder)) == "modelopt"


def test_tensors_without_a_module_stay_as_they_are(tmp_path: Path) -> None:
    scale, codes = np.ones((4, 1), dtype=np.float16), np.ones((4, 4), dtype=np.int8)
    block = {"quant_method": "modelopt", "quant_algo": "W8A16"}
    tensors = {"weight": np.ones(3, dtype=np.float16), f"{X}.weight": codes, f"{X}.weight_scale": scale}
    assert "weight" in read_folder(write_folder(tmp_path / "m", tensors, block)).source.tensors


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """Return a declaration with one value replaced, at any depth."""
    method = draw(st.sampled_from(sorted(SOUND)))
    block: dict[str, Any] = copy.deepcopy(SOUND[method])
    place: Any = block
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        place[key] = draw(JSON)
        return {**block, "quant_method": method}


def test_every_method_has_a_sound_declaration_to_damage() -> None:
    assert set(SOUND) == set(METHODS)


@given(block=damaged())
@settings(max_examples=400)
def test_whatever_the_config_holds_the_answer_is_a_message(block: dict[str, Any]) -> None:
    linear = {
        "weight": np.ones((8, 8), dtype=np.int8),
        "weight_scale": np.ones(8, dtype=np.float32),
        "qweight": np.ones((8, 1), dtype=np.int32),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder), {f"{X}.{part}": array for part, array in linear.items()}, block)
        with pytest.raises(TrtbuildError) as error:
            read_folder(path)
    assert error.value.hint
