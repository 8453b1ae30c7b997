"""Files that a person, a broken download or an attacker may hand over: each is one error with a hint, never a defect and never a hang."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.arch.registry import resolve
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.initialize import setting
from trtbuild.safetensors_file import read_header
from trtbuild.yaml_text import parse_document, read_yaml

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]

_LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BROKEN: list[Any] = [
    pytest.param("model: {path: m}\nmodel: {path: n}\n", "line 2, column 1: key 'model' is given twice", id="duplicate"),
    pytest.param("limits: {a: 1, 'a': 2}\n", "key 'a' is given twice", id="nested duplicate"),
    pytest.param("limits:\n\tmax_batch_size: 1\n", "indent with spaces", id="tab"),
    pytest.param("target: pyt\0orch\n", "character #x0000", id="NUL"),
    pytest.param("target: a\x07b\n", "character #x0007", id="control character"),
    pytest.param("target: *nope\n", "undefined alias", id="alias of nothing"),
    pytest.param(_LAUGHS, "more than 50,000 values", id="billion laughs"),
    pytest.param("a: &a\n  b: *a\n", "contains itself", id="cycle"),
    pytest.param("a: " + "[" * 60 + "]" * 60 + "\n", "more than 40 levels", id="deep"),
    pytest.param("a: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply", id="very deep"),
    pytest.param("a: " + "{b: " * 5000 + "1" + "}" * 5000 + "\n", "nested too deeply", id="very deep mappings"),
    pytest.param("a: " + "9" * 5000 + "\n", "no usable whole number", id="huge number"),
    pytest.param("a: 0123\n", "0123 is another number", id="octal by a zero"),
    pytest.param("a: 12:30\n", "12:30 is another number", id="base sixty"),
    pytest.param("a: !!binary aGVsbG8=\n", "binary", id="binary"),
    pytest.param("a: !!set {b, c}\n", "set", id="set"),
    pytest.param("a: !!python/object/apply:os.system [ls]\n", "python/object", id="code"),
    pytest.param("? [a]\n: 1\n", "unhashable key", id="list as a key"),
    pytest.param("a: 1\n---\nb: 1\n", "another document", id="two documents"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_broken_yaml_is_a_usage_error_that_names_the_file(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="x.yaml") as caught:
        parse_document(text, origin="x.yaml")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: 2024-01-01\n", {"a": "2024-01-01"}),
        ("a: 1_000\nb: 0x10\nc: 0\nd: -7\n", {"a": 1000, "b": 16, "c": 0, "d": -7}),
        ("x: &x {a: 1}\ny: {<<: *x, b: 2}\n", {"x": {"a": 1}, "y": {"a": 1, "b": 2}}),
        ("a: &a [1, 2]\nb: *a\n", {"a": [1, 2], "b": [1, 2]}),
    ],
)
def test_plain_yaml_is_read_as_it_is_written(text: str, data: Any) -> None:
    assert parse_document(text, origin="x.yaml").data == data


def test_scalars_that_are_no_text_are_known_by_their_characters() -> None:
    document = parse_document("a: 1.10\nb: [yes, 'no', text]\nc: {d: null}\ne: '1.10'\n", origin="x.yaml")
    assert document.unquoted == {("a",): "1.10", ("b", 0): "yes", ("c", "d"): "null"}
    assert document.data["a"] == 1.1


def _folder(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_folder, "is a folder"),
        (_fifo, "is not a regular file"),
        (lambda path: path.write_bytes("model: {path: café}".encode("latin-1")), "is not UTF-8 text"),
        (lambda path: path.write_bytes("model: {path: m}".encode("utf-16")), "is not UTF-8 text"),
        (lambda path: path.write_bytes(b" " * 5_000_000), "5,000,000 bytes"),
    ],
)
def test_what_is_no_file_of_text_is_a_usage_error(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "t.yaml"
    make(path)
    with pytest.raises(UsageError, match="t.yaml") as caught:
        read_yaml(path)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tensorrt_llm: 1.2",
            'tensorrt_llm = 1.2: expected text, or null; YAML reads it as another type, so quote it: "1.2"',
        ),
        ("tensorrt_llm: 1.10", 'quote it: "1.10"'),
        ("model: {path: m, revision: 1234567}", 'quote it: "1234567"'),
        (
            "model: {path: m, revision: yes}",
            'model.revision = yes: expected text, or null; YAML reads it as another type, so quote it: "yes"',
        ),
        ("quantization: {scheme: off}", 'quote it: "off"'),
        ("serving: {stop_words: [end, 7, no]}", 'quote it: "7", "no"'),
        (
            "accuracy: {max_mean_kl: 1e-3}",
            "= '1e-3': expected number, 0 or more, or null; YAML reads it as text, so write 0.001",
        ),
        ("accuracy: {max_mean_kl: 1e-7}", "so write 1.0e-07"),
        ("kv_cache: {free_gpu_memory_fraction: '.5'}", "so write 0.5"),
        ("hardware: {memory_bytes: 80e9}", "so write 80000000000"),
        ("limits: {max_batch_size: '8'}", "YAML reads it as text, so write 8"),
        ("kv_cache: {max_attention_window: [1e2, 64]}", "so write [100, 64]"),
        ("quantization: {scheme: }", "quantization.scheme = null: expected text"),
        ("limits: {max_batch_size: true}", "limits.max_batch_size = true: expected whole number"),
        ("limits: {max_batch_size: '8'}", "limits.max_batch_size = '8': expected whole number"),
        ("limits: {max_batch_size: 8.0}", "limits.max_batch_size = 8.0: expected whole number"),
        ("serving: {streaming: 'yes'}", "serving.streaming = 'yes': expected true or false"),
        ("serving: {streaming: 1}", "serving.streaming = 1: expected true or false"),
        ("limits:", "limits = null: expected a mapping"),
        ("kv_cache: {free_gpu_memory_fraction: .nan}", "expected number, more than 0, less than 1"),
        ("llm_api: {extra: {a: .inf}}", "llm_api.extra"),
        ("model: {path: ''}", "model.path = '' names no file"),
        ('model: {path: "a\\0b"}', "names no file"),
        ("model: {path: ~nobody-of-that-name/x}", "names no file"),
    ],
)
def test_a_value_of_another_type_is_named_as_it_is_written(tmp_path: Path, cli: Cli, line: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(line + "\n" + ("" if line.startswith("model") else "model: {path: m}\n"))
    code, _, err = cli("plan", file)
    assert code == 2
    assert message in err
    assert "t.yaml" in err


@pytest.mark.parametrize("text", ["1.0e-07", "0.001", "1.0e+22"])
def test_numbers_that_are_suggested_are_read_as_numbers(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"accuracy: {{max_mean_kl: {text}}}")
    assert read_yaml(file).data == {"accuracy": {"max_mean_kl": float(text)}}


@pytest.mark.parametrize("text", ["1.5e0", "1e9999", "1e300", "-1e0", "0x10", "1_000", "eight"])
def test_text_that_is_no_number_of_the_field_gets_no_such_hint(tmp_path: Path, cli: Cli, text: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"model: {{path: m}}\nlimits: {{max_batch_size: '{text}'}}")
    code, _, err = cli("plan", file)
    assert code == 2
    assert "so write" not in err


def test_the_same_text_means_the_same_in_a_file_and_in_an_option(
    make_model: Callable[..., Path], tmp_path: Path, cli: Cli
) -> None:
    said = "= '5e-1': expected number, more than 0, less than 1; YAML reads it as text, so write 0.5"
    key, model = "kv_cache.free_gpu_memory_fraction", make_model()
    file = tmp_path / "t.yaml"
    file.write_text(f"model: {{path: {model}}}\ntarget: tensorrt\nkv_cache: {{free_gpu_memory_fraction: 5e-1}}")
    (code, _, err), (again, _, same) = (
        cli("plan", file),
        cli("plan", model, "--target", "tensorrt", "--set", f"{key}=5e-1"),
    )
    assert code == again == 2
    assert said in err and said in same


def test_text_behind_set_needs_no_quotes() -> None:
    assert setting("tensorrt_llm=1.10") == ("tensorrt_llm", "1.10")
    assert setting("model.revision=0123") == ("model.revision", "0123")
    assert setting("model.revision=null") == ("model.revision", None)
    assert setting("model.revision='null'") == ("model.revision", "null")
    assert setting("model.path=a: [b") == ("model.path", "a: [b")
    assert setting("limits.max_batch_size=8") == ("limits.max_batch_size", 8)
    assert setting("serving.stop_words=[a, b]") == ("serving.stop_words", ["a", "b"])


HOSTILE: list[Any] = [
    None, True, "x", "1", [], ["x"], {}, {"a": 1}, -1, 0, 1, 1.5, math.nan, math.inf, 10**30, 2**31, "\0",
]  # fmt: skip


@pytest.mark.parametrize("target", ["tensorrt", "pytorch", "reference"])
def test_no_value_in_config_json_is_a_defect(make_model: Make, cli: Cli, target: str) -> None:
    """Each field of the file, at every depth, with each value that it should not have."""
    folder = make_model(
        rope_scaling={"rope_type": "linear", "factor": 2.0}, transformers_version="4.57.0", sliding_window=None
    )
    file = folder / "config.json"
    whole: dict[str, Any] = json.loads(file.read_text())
    for place in [*((key,) for key in whole), ("rope_scaling", "rope_type"), ("rope_scaling", "factor")]:
        for value in HOSTILE:
            config = json.loads(json.dumps(whole))
            node = config
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = value
            file.write_text(json.dumps(config))
            code, out, err = cli("plan", folder, "--target", target, "--json")
            assert code in (0, 1, 2), (place, value, err)
            assert "unexpected" not in err, (place, value, err)
            if code:
                assert err.count("hint:") == 1, (place, value, err)
            else:
                json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in the output"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": ' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"rope_theta": NaN}', "rope_theta is NaN or infinite"),
        ('{"rope_scaling": {"factor": [1, 1e999]}}', "rope_scaling.factor.1 is NaN or infinite"),
        ("[]", "holds a list"),
        ("", "not valid JSON"),
        ("\udcff", "not valid JSON"),
    ],
)
def test_a_config_json_that_cannot_be_read_is_one_error(make_model: Make, cli: Cli, text: str, message: str) -> None:
    folder = make_model()
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, _, err = cli("plan", folder, "--target", "tensorrt")
    assert code == 1
    assert message in err
    assert "config.json" in err
    assert err.count("hint:") == 1


def _header(path: Path, text: str, data: int) -> Path:
    raw = text.encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data))
    return path


def _entry(**changes: Any) -> str:
    return json.dumps({"a": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8], **changes}})


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' * 50_000 + "1" + "}" * 50_000,
        "[]",
        '{"a": 1}',
        _entry(shape=[True, 4]),
        _entry(shape=[2.0, 2]),
        _entry(shape=[10**30, 0]),
        _entry(shape=[2**40] * 40),
        _entry(shape="22"),
        _entry(dtype=["F16"]),
        _entry(dtype=None),
        _entry(data_offsets=[0, 9]),
        _entry(data_offsets=[-8, 0]),
        _entry(data_offsets=[True, 8]),
        _entry(data_offsets=[0]),
        _entry(data_offsets=[0, math.inf]),
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_a_damaged_safetensors_header_is_one_error(tmp_path: Path, text: str) -> None:
    file = _header(tmp_path / "x.safetensors", text, 8)
    with pytest.raises(TrtbuildError, match="x.safetensors") as caught:
        read_header(file)
    assert caught.value.hint
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ([0, 8], [4, 12], "overlap"),
        ([0, 8], [12, 20], "a gap"),
        ([4, 12], [12, 20], "a gap"),
        ([0, 8], [0, 8], "overlap"),
    ],
)
def test_tensors_lie_one_behind_the_other(tmp_path: Path, first: list[int], second: list[int], problem: str) -> None:
    entry = {"dtype": "F16", "shape": [4]}
    text = json.dumps({"a": {**entry, "data_offsets": first}, "b": {**entry, "data_offsets": second}})
    file = _header(tmp_path / "x.safetensors", text, max(*first, *second))
    with pytest.raises(TrtbuildError, match=problem):
        read_header(file)


def test_a_tensor_that_is_named_twice_is_found(tmp_path: Path) -> None:
    """A reader of JSON keeps the second; the first one's bytes then belong to nobody."""
    entry = '"a": {"dtype": "F16", "shape": [4], "data_offsets": [%d, %d]}'
    file = _header(tmp_path / "x.safetensors", "{" + entry % (0, 8) + ", " + entry % (8, 16) + "}", 16)
    with pytest.raises(TrtbuildError, match="a gap"):
        read_header(file)


@pytest.mark.parametrize("block", ["x", 1, True, [1], {"rope_type": ["x"]}, {"rope_theta": None}, {"rope_theta": "x"}])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_gemmas_rotary_blocks_are_objects(kind: str, block: Any) -> None:
    """Each kind of layer has a block of its own; null inside is as good as absent."""
    config = {
        **dict.fromkeys(("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"), 8),
        **dict.fromkeys(("num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings"), 8),
        "model_type": "gemma3_text",
        "rope_parameters": {"full_attention": {}, "sliding_attention": {}, kind: block},
    }  # fmt: skip
    if block == {"rope_theta": None}:
        architecture, arch = resolve(config, where="x")
        dims = arch.read_dims(config, architecture, "x")
        assert arch.config_fields(dims, config)["rope_local_base_freq"] == 1e4
    else:
        with pytest.raises(TrtbuildError, match="x: "):
            resolve(config, where="x")[1].read_dims(config, "Gemma3ForCausalLM", "x")


@pytest.mark.parametrize(
    ("drop", "note"),
    [
        ("architectures", "names no architecture: LlamaForCausalLM is taken, from model_type 'llama'"),
        ("max_position_embeddings", "says nothing of max_position_embeddings: 2048 is taken"),
        ("rope_theta", "says nothing of rope_theta: 10000 is taken"),
        ("rms_norm_eps", "says nothing of norm epsilon: 1e-06 is taken"),
    ],
)
def test_what_config_json_leaves_open_is_said(make_model: Make, cli: Cli, drop: str, note: str) -> None:
    code, out, err = cli("plan", make_model(drop=(drop,)), "--target", "tensorrt")
    assert code == 0, err
    assert note in out
    assert "config.json" not in cli("plan", make_model(name="whole"), "--target", "tensorrt")[1]


@pytest.mark.parametrize("name", ["int3", "float8_e4m3fn", "torch.int8"])
def test_a_dtype_that_weights_are_not_in_is_refused_unless_one_is_given(make_model: Make, cli: Cli, name: Any) -> None:
    folder = make_model()
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "torch_dtype": name}))
    code, _, err = cli("plan", folder, "--target", "tensorrt")
    assert code == 1
    assert "is none of float16, bfloat16, float32" in err
    assert cli("plan", folder, "--target", "tensorrt", "--dtype", "float16")[0] == 0


WRONG_TYPES: list[Any] = [
    ("sliding_window", [True, "x", [], {}, -1, 1.5, 2**31]),
    ("attn_logit_softcapping", [True, "x", [], 0, -1.0]),
    ("query_pre_attn_scalar", [True, "x", 0]),
    ("sliding_window_pattern", [True, "x", 0, 1.5]),
    ("original_max_position_embeddings", ["x", 0, 10**30]),
    ("partial_rotary_factor", ["x", 0, 1.5, [1]]),
    ("layer_types", [True, "x", {}, [1]]),
    ("rope_parameters", [True, "x", [1], 1]),
    ("rope_parameters.rope_type", [["x"], [], 0, False]),
    ("rope_parameters.long_factor", ["x", [], ["x"], [0]]),
    ("rope_parameters.full_attention.rope_type", [["x"], 1]),
    ("torch_dtype", [16, ["float16"], {}]),
]


@pytest.mark.parametrize(("place", "values"), WRONG_TYPES)
def test_a_field_of_a_wrong_type_is_an_error_and_no_default(place: str, values: list[Any]) -> None:
    *parents, key = place.split(".")
    for value in values:
        config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
        node[key] = value
        with pytest.raises(TrtbuildError) as caught:
            resolve(config, where="x/config.json")
        assert caught.value.message.startswith(f"x/config.json: {place} = "), value
        node[key] = None
        resolve(config, where="x/config.json")
