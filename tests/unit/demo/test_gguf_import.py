"""The import of a GGUF file: every weight, the config and the tokenizer, against files written with llama.cpp's package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("gguf")

import gguf
from tests.unit.demo import tiny_gguf

from trtbuild.demo.smollm import ORIGIN, import_model
from trtbuild.errors import TrtbuildError
from trtbuild.safetensors_file import TensorReader
from trtbuild.source import SourceCheckpoint


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """The tiny model, imported."""
    import_model(tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.hf_weights()), tmp_path / "model")
    return tmp_path / "model"


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def weights_of(folder: Path) -> dict[str, Any]:
    with TensorReader() as reader:
        return {name: reader.read(info) for name, info in SourceCheckpoint.open(folder).tensors.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_comes_back_to_the_bit(tmp_path: Path, tied: bool) -> None:
    original = tiny_gguf.hf_weights(1, tied=tied)
    import_model(tiny_gguf.write(tmp_path / "m.gguf", original), tmp_path / "model")
    found = weights_of(tmp_path / "model")
    assert set(found) == set(original)
    for name, weight in original.items():
        assert found[name].dtype == ml_dtypes.bfloat16
        assert np.array_equal(found[name].astype(np.float32), weight), name
    assert read(tmp_path / "model", "config.json")["tie_word_embeddings"] is tied


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_quantized_weights_come_back_within_half_a_step_of_their_block(tmp_path: Path, kind: str) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    original = tiny_gguf.hf_weights(2)
    quantization = gguf.GGMLQuantizationType[kind]
    import_model(tiny_gguf.write(tmp_path / "m.gguf", original, quantize={name: quantization}), tmp_path / "model")
    found = weights_of(tmp_path / "model")[name].astype(np.float32)
    blocks = original[name].reshape(-1, 32)
    span = blocks.max(1) - blocks.min(1) if kind == "Q4_1" else 2 * np.abs(blocks).max(1)
    step = np.repeat(span / (15 if kind == "Q4_1" else 254), 32).reshape(original[name].shape)
    # Half a step of the grid, the block's float16 scale and offset, and bfloat16's 8 bits of mantissa.
    bound = 0.5 * step + np.abs(original[name]).max() * (2**-10 + 2**-8)
    assert (np.abs(found - original[name]) <= bound).all()
    assert not np.array_equal(found, original[name])


def test_the_config_is_readable_by_old_and_new_transformers(imported: Path) -> None:
    config = read(imported, "config.json")
    assert config["rope_theta"] == 100000.0
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["rms_norm_eps"] == 1e-5
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert config["vocab_size"] == len(tiny_gguf.vocabulary())
    assert "quantization_config" not in config


def test_the_special_tokens_are_those_of_chatml_whatever_the_file_says(imported: Path) -> None:
    settings = read(imported, "tokenizer_config.json")
    assert settings["eos_token"] == settings["pad_token"] == "<|im_end|>"
    assert settings["bos_token"] == "<|im_start|>"
    assert settings["unk_token"] == "<|endoftext|>"
    assert settings["tokenizer_class"] == "GPT2Tokenizer"
    assert read(imported, "special_tokens_map.json")["eos_token"] == "<|im_end|>"
    expected = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert read(imported, "generation_config.json") == expected
    config = read(imported, "config.json")
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    "text", ["hello world", " hello\n\n  12345", "日本語 🎉 naïve\u200d", "<|im_start|>user\nhi<|im_end|>"]
)
def test_any_text_survives_the_tokenizer(imported: Path, text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(imported / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_merges_and_control_tokens_are_applied(imported: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(imported / "tokenizer.json"))
    assert tokenizer.encode("hello w<|im_end|>12").tokens == ["hello", "Ġw", "<|im_end|>", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("hello<|im_end|>").ids) == "hello"


def test_transformers_loads_the_folder_and_renders_chatml(imported: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(imported)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    config = transformers.AutoConfig.from_pretrained(imported)
    assert config.rope_parameters["rope_theta"] == 100000.0


def test_a_second_import_is_skipped_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.hf_weights())
    folder = tmp_path / "model"
    assert import_model(file, folder)
    assert not import_model(file, folder)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.truncate(100)
    assert import_model(file, folder)
    (folder / ORIGIN).write_text("[]")
    assert import_model(file, folder)
    assert SourceCheckpoint.open(folder).nbytes > 0


def test_another_gguf_file_is_imported_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    import_model(tiny_gguf.write(tmp_path / "a.gguf", tiny_gguf.hf_weights(1)), folder)
    assert import_model(tiny_gguf.write(tmp_path / "b.gguf", tiny_gguf.hf_weights(2)), folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'"),
        ({"rope_scaling": gguf.RopeScalingType.YARN}, "scaled RoPE"),
        ({"extra_tensor": "rope_freqs.weight"}, r"rope_freqs\.weight has no place"),
        ({"tokens": [t for t in tiny_gguf.vocabulary() if t != "<|im_end|>"]}, r"no token <\|im_end\|>"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    file = tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.hf_weights(), **changes)
    with pytest.raises(TrtbuildError, match=said):
        import_model(file, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all" * 10])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(TrtbuildError, match=r"m\.gguf"):
        import_model(tmp_path / "m.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_gguf_file_cut_off_in_its_tensors_is_refused(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.hf_weights())
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(TrtbuildError, match="not a whole GGUF file"):
        import_model(file, tmp_path / "model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"nothing\.gguf"):
        import_model(tmp_path / "nothing.gguf", tmp_path / "model")
