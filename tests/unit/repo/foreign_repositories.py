"""Repositories of other people: fine ones of many backends, and files of every kind that somebody may have put into one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

#: Model -> config.pbtxt, None for none, and other files.
Models = Mapping[str, tuple[str | bytes | None, Mapping[str, str | bytes]]]
_PYTHON = {"1/model.py": "class TritonPythonModel: ...\n"}
_IN_OUT = (
    "input [{ name: 'a' data_type: TYPE_FP32 dims: [ 1 ] }]\noutput [{ name: 'b' data_type: TYPE_FP32 dims: [ 1 ] }]\n"
)
_CORE = 'name: "tensorrt_llm"\nbackend: "tensorrtllm"\nmax_batch_size: 4\n'


def step(model: str, before: str, after: str, tensors: tuple[str, str] = ("a", "b")) -> str:
    """Return a step of an ensemble."""
    return (
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "{tensors[0]}" value: "{before}" }} '
        f'output_map {{ key: "{tensors[1]}" value: "{after}" }} }}'
    )


#: What other people serve, and nothing is wrong with.
FINE: dict[str, Models] = {
    "vllm": {"vllm_model": ('backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n', {"1/model.json": '{"model": "facebook/opt-125m"}'})},
    "onnx": {
        "densenet": (
            'name: "densenet"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 0\n'
            'input [ { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] } } ]\n'
            'output [ { name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" } ]\n',
            {"1/model.onnx": b"x", "labels.txt": "a"},
        ),
        "folder": ('backend: "onnxruntime"\n', {"1/model.onnx/model.onnx": b"x", "1/model.onnx/weights.bin": b"y"}),
        "completed": (None, {"1/model.onnx": b"x"}),
    },
    "python": {
        "add": ('name: "add"\nbackend: "python"\n' + _IN_OUT + "instance_group [ { kind: KIND_CPU } ]\n"
                'parameters: { key: "EXECUTION_ENV_PATH" value: { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n', {**_PYTHON, "env.tar.gz": b"\x1f\x8b"}),
        "completed": ('backend: "python"', _PYTHON),
        "decoupled": ('backend: "python"\nmodel_transaction_policy { decoupled: True }\n' + _IN_OUT, _PYTHON),
        "versions": ('backend: "python"\nversion_policy: { latest { num_versions: 2 } }\n' + _IN_OUT, {**_PYTHON, "7/model.py": "class TritonPythonModel: ...\n", "notes/a.txt": "", "configs/h100.pbtxt": 'backend: "python"'}),
        "zero": ('backend: "python"\n' + _IN_OUT, {"0/model.py": "class TritonPythonModel: ...\n"}),
        "own_settings": ('backend: "python"\n' + _IN_OUT, {**_PYTHON, "1/model.yaml": "layers: 5\nmodel: resnet\n"}),
        "elsewhere": ('backend: "python"\ndefault_model_filename: "serve.py"\n' + _IN_OUT, {"1/serve.py": "from base import TritonPythonModel\n"}),
    },
    "images": {  # the names of NVIDIA's language models, and something else
        "preprocessing": (
            'name: "preprocessing"\nbackend: "python"\nmax_batch_size: 16\ninput { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] }\n'
            'output { name: "b" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }\ninstance_group [ { count: 4 kind: KIND_CPU } ]\n', _PYTHON),
        "resnet": ('name: "resnet"\nplatform: "tensorrt_plan"\nmax_batch_size: 32\ninput { name: "a" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }\n'
                   'output { name: "b" data_type: TYPE_FP32 dims: [ 1000 ] }\n', {"1/model.plan": b"x"}),
        "postprocessing": ('name: "postprocessing"\nbackend: "python"\nmax_batch_size: 8\ninput { name: "a" data_type: TYPE_FP32 dims: [ 1000 ] }\n'
                           'output { name: "b" data_type: TYPE_STRING dims: [ 1 ] }\ninstance_group [ { count: 4 kind: KIND_CPU } ]\n'
                           'parameters { key: "labels" value { string_value: "" } }', _PYTHON),
        "ensemble": ('name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: 8\ninput { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] }\n'
                     'output { name: "CLASS" data_type: TYPE_STRING dims: [ 1 ] }\nensemble_scheduling { step [ '
                     + ", ".join([step("preprocessing", "IMAGE", "x", ("IMAGE", "b")), step("resnet", "x", "y"), step("postprocessing", "y", "CLASS")]) + " ] }", {"1/.keep": ""}),
    },
    "completed members": {
        "first": ('backend: "python"\n', _PYTHON),
        "net": (None, {"1/model.onnx": b"x"}),
        "chain": ('platform: "ensemble"\nmax_batch_size: 4\ninput { name: "I" data_type: TYPE_FP32 dims: [ 1 ] }\noutput { name: "O" data_type: TYPE_FP32 dims: [ 1 ] }\n'
                  f'ensemble_scheduling {{ step [ {step("first", "I", "t")}, {step("net", "t", "O")} ] }}', {"1/.keep": ""}),
    },
    "batches for a dimension": {  # as in the tests of NVIDIA's server
        "single": ('backend: "python"\nmax_batch_size: 0\ninput { name: "a" data_type: TYPE_FP32 dims: [ -1, 16 ] }\noutput { name: "b" data_type: TYPE_FP32 dims: [ -1, 16 ] }', _PYTHON),
        "plain": ('backend: "python"\n' + _IN_OUT, _PYTHON),
        "chain": ('platform: "ensemble"\nmax_batch_size: 2\ninput { name: "I" data_type: TYPE_FP32 dims: [ 16 ] }\noutput { name: "O" data_type: TYPE_FP32 dims: [ 16 ] }\n'
                  f'ensemble_scheduling {{ step [ {step("single", "I", "O")} ] }}', {"1/.keep": ""}),
        "other": (f'platform: "ensemble"\nmax_batch_size: 2\n{_IN_OUT}ensemble_scheduling {{ step [ {step("plain", "a", "b")} ] }}', {"1/.keep": ""}),
    },
    "half a declaration": {
        "code": ('backend: "python"\ninput { name: "a" dims: [ 1 ] }\noutput { name: "b" data_type: TYPE_FP32 }',
                 {"1/model.py": "class TritonPythonModel:\n    def auto_complete_config(c):\n        return c\n"}),
        "file": ('platform: "tensorrt_plan"\ninput { name: "a" }\n', {"1/model.plan": b"x"}),
        "no": (None, {"1/model.py": "class TritonPythonModel: ...\n"}),
    },
    "crossed on purpose": {
        "sub": ('backend: "python"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput { name: "b" data_type: TYPE_FP32 dims: [ 1 ] }', _PYTHON),
        "bus": ('platform: "ensemble"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput { name: "b" data_type: TYPE_FP32 dims: [ 1 ] }\n'
                'ensemble_scheduling { step { model_name: "sub" model_version: -1 input_map { key: "X" value: "Y" } input_map { key: "Y" value: "X" } output_map { key: "b" value: "b" } } }', {"1/.keep": ""}),
    },
    "others": {
        "torch": ('platform: "pytorch_libtorch"\nparameters: { key: "INFERENCE_MODE" value: { string_value: "" } }', {"1/model.pt": b"x"}),
        "tensorflow": ('platform: "tensorflow_savedmodel"\n', {"1/model.savedmodel/saved_model.pb": b"x"}),
        "dali": ('backend: "dali"\n' + _IN_OUT, {"1/model.dali": b"x"}),
        "openvino": ('backend: "openvino"', {"1/model.xml": b"x", "1/model.bin": b"x"}),
        "forest": ('backend: "fil"\nmax_batch_size: 32768\n' + _IN_OUT + "instance_group [ { kind: KIND_AUTO } ]\ndynamic_batching { }", {"1/xgboost.model": b"x"}),
        "own": ('backend: "our_own"\n' + _IN_OUT, {"1/x": ""}),
    },
    "unusual text": {
        "crlf": ('name: "crlf"\r\nbackend: "python"\r\n', _PYTHON),
        "terse": ("name: 'terse';\nbackend: 'py' 'thon', max_batch_size: 0x4\n# ${x}\ninput <name: 'a', data_type: 11, dims: [0x1]>\n", _PYTHON),
    },
}  # fmt: skip


def _core(*parameters: tuple[str, str], extra: str = "") -> Models:
    rows = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters)
    return {"tensorrt_llm": (_CORE + extra + rows, {"1/.keep": ""})}


def _settings(text: str) -> Models:
    config = 'backend: "python"\nparameters { key: "gpu_device_ids" value { string_value: "0,1;2" } }'
    return {"tensorrt_llm": (config, {**_PYTHON, "1/model.yaml": text})}


_LONG = "9" * 5000
#: What nobody should have put there.
BROKEN: dict[str, Models] = {
    "binary": {"m": (bytes(range(256)) * 40, {"1/model.py": bytes(range(256))})},
    "zeros": {"m": (b"\0" * 1000, {"1/model.py": b"\0"})},
    "utf-16": {"m": ('backend: "python"'.encode("utf-16"), _PYTHON)},
    "latin-1": {"m": ('backend: "python" # \xe4'.encode("latin-1"), _PYTHON)},
    "mark": {"m": ('\ufeffbackend: "python"', _PYTHON)},
    "no text in quotes": {"m": ('name: "\\377"\nparameters { key: "a\\377" value { string_value: "\\xff" } }', _PYTHON)},
    "braces": {"m": ("input {" * 3000 + "}" * 3000, _PYTHON)},
    "open braces": {"m": ('parameters { key: "a" value ' + "< string_value: 'x' " * 3000, _PYTHON)},
    "open lists": {"m": ("version_policy { specific { versions: " + "[" * 5000, _PYTHON)},
    "many tensors": {"m": ('backend: "python"\n' + "".join(f'input {{ name: "k{i}" data_type: TYPE_FP32 }}\n' for i in range(300)), _PYTHON)},
    "no type, and nobody who knows it": {"m": ('backend: "python"\ninput { name: "a" dims: [ 1 ] }', _PYTHON)},
    "an enum that is no name": {"m": ('backend: "python"\ninput { name: "a" data_type: 99 dims: 1 }', _PYTHON)},
    "a number out of range": {"m": ('backend: "python"\nmax_batch_size: 99999999999999999999', _PYTHON)},
    "parameters without keys": {"m": ('backend: "python"\nparameters { }\nparameters { value { string_value: "x" } }\nparameters [ { key: "a" }, { key: "a" value { } } ]', _PYTHON)},
    "an ensemble of itself": {"e": (f'platform: "ensemble"\n{_IN_OUT}ensemble_scheduling {{ step [ {step("e", "a", "b")} ] }}', {"1/.keep": ""})},
    "two that hold each other": {
        "x": (f'platform: "ensemble"\n{_IN_OUT}ensemble_scheduling {{ step [ {step("y", "a", "b")} ] }}', {"1/.keep": ""}),
        "y": (f'platform: "ensemble"\n{_IN_OUT}ensemble_scheduling {{ step [ {step("x", "a", "b")} ] }}', {"1/.keep": ""}),
    },
    "an ensemble of nothing": {"e": ('platform: "ensemble"\nensemble_scheduling { step [ {} ] } input [ {} ] output [ {} ]', {"1/.keep": ""})},
    "a core of nothing": _core(),
    "long values": _core(("gpt_model_path", "/" + "x" * 10000), ("tokenizer_dir", "/" + "a/" * 5000), ("max_beam_width", _LONG), ("gpu_device_ids", _LONG),
                         ("max_attention_window_size", f"{_LONG},{_LONG}"), ("kv_cache_free_gpu_mem_fraction", "1e999"), ("kv_cache_host_memory_bytes", "٣")),
    "values with zeros": _core(("gpt_model_path", "/a\\000b"), ("tokenizer_dir", "/x\\000"), ("lora_prefetch_dir", "\\000")),
    "values with lines": _core(("gpt_model_path", "/a\\nb"), ("a\\nb", "x")),
    "devices for folders": _core(("gpt_model_path", "/dev/null"), ("tokenizer_dir", "/proc/self/fd")),
    "the root for an engine": _core(("gpt_model_path", "/"), ("tokenizer_dir", "/")),
    "counts of nobody": _core(("gpu_device_ids", "-1,0"), extra="instance_group [ { count: -3 }, { count: 2147483647 } ]\n"),
    "many instances": _core(("gpu_device_ids", ";".join(["0,1"] * 5000))),
} | {
    f"model.yaml {number}": _settings(text)
    for number, text in enumerate([
        "- a", "{", "&a [*a]", "a: !!python/object/apply:os.system [id]", "triton_config: [1]", "triton_config: {decoupled: yes, max_batch_size: x}", "'x",
        "model: 5\ntriton_config: {decoupled: false}", "tensor_parallel_size: two\ntriton_config: {decoupled: false}", "\x00", "? {a: b}\n: c", "1: 2", "<<: 5",
        "triton_config: {decoupled: false}\nkv_cache_config: [1, 2]\ncuda_graph_config: 5\nspeculative_config: x",
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "[" * 5000, "triton_config: {decoupled: 2024-01-01, max_batch_size: 1.5}\nmodel: 2024-01-01", 'model: "\\0bad"\ntriton_config: {decoupled: false}',
    ])
}  # fmt: skip
#: What config.json of an engine may say.
ENGINES = (
    "[]", "NaN", "{", "[" * 100_000, '{"build_config": 5, "pretrained_config": []}', '{"version": {"a": 1}, "build_config": {}, "pretrained_config": {"num_hidden_layers": null}}',
    '{"version": 5, "build_config": {"plugin_config": null, "max_batch_size": "x"}, "pretrained_config": {"mapping": null, "logits_dtype": ["x"]}}',
    '{"version": "1.2.1", "build_config": {"max_batch_size": 1e400}, "pretrained_config": {"mapping": {"tp_size": 99999999999, "world_size": 1000000000000}}}',
    '{"version": "1.2.1", "build_config": {}, "pretrained_config": {"mapping": {"tp_size": -1, "pp_size": 0, "world_size": true}}}',
    '{"version": "1.2.1", "build_config": {"lora_config": 5, "speculative_decoding_mode": {}}, "pretrained_config": {"quantization": "x", "dtype": [], "mapping": "x"}}',
    '{"version": "1.2.1", "build_config": {"lora_config": 5, "speculative_decoding_mode": {}, "plugin_config": 5}, "pretrained_config": {"quantization": "x", "dtype": []}}',
    '{"version": "1.2.1", "build_config": {"lora_config": {"lora_target_modules": 5}, "max_seq_len": "y", "plugin_config": {"tokens_per_block": "x", "lora_plugin": []}},'
    ' "pretrained_config": {"quantization": {"quant_algo": 5, "kv_cache_quant_algo": []}, "mapping": {"moe_ep_size": "x"}}}',
)  # fmt: skip
#: What tokenizer_config.json may say.
TOKENIZERS = (
    "[]", "null", '{"chat_template": [1, {"name": 5}, {"name": "default"}], "eos_token": "e"}', '{"chat_template": {"a": 1}, "eos_token": {"content": "</s>"}}',
    '{"auto_map": 5}', '{"eos_token": [], "chat_template": "{{"}', '{"eos_token": "e", "chat_template": 5}',
)  # fmt: skip


def write_models(folder: Path, models: Models) -> Path:
    """Write a repository."""
    for name, (config, files) in models.items():
        (folder / name).mkdir(parents=True)
        for file, content in (files if config is None else {"config.pbtxt": config, **files}).items():
            place = folder / name / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def _python(repository: Path) -> Path:
    return write_models(repository, {"m": ('backend: "python"', _PYTHON)}) / "m"


def _loops(repository: Path) -> None:
    model = _python(repository)
    (model / "1" / "up").symlink_to(model)
    (model / "1" / "self.py").symlink_to(model / "1" / "self.py")
    (repository / "again").symlink_to(repository)
    (repository / "x").symlink_to(repository / "y")
    (repository / "y").symlink_to(repository / "x")
    (repository / "run.sh").symlink_to(repository / "run.sh")


def _config_is_link_to_itself(repository: Path) -> None:
    config = _python(repository) / "config.pbtxt"
    config.unlink()
    config.symlink_to(config)


def _config_is_folder(repository: Path) -> None:
    config = _python(repository) / "config.pbtxt"
    config.unlink()
    config.mkdir()


def _pipes(repository: Path) -> None:
    """Pipes, on which reading would wait forever."""
    model = _python(repository)
    (model / "config.pbtxt").unlink()
    for place in (model / "config.pbtxt", model / "1" / "x.py", model / "1" / "model.yaml", repository / "serve.sh", repository / "manifest.json"):  # fmt: skip
        os.mkfifo(place)


def _huge(repository: Path) -> None:
    """Files of 8 GiB, of which nothing is on the disk."""
    model = _python(repository)
    for place in (model / "1" / "x.py", model / "1" / "model.yaml", model / "config.pbtxt", repository / "serve.sh"):
        with place.open("wb") as file:
            file.truncate(8 << 30)


def _names(repository: Path) -> None:
    _python(repository)
    model = repository / os.fsdecode(b"m\xff\xfe")
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python"')
    (model / "1" / os.fsdecode(b"mod\xffel.py")).write_text("trust_remote_code=True\n")
    write_models(repository, {"a\n\x1b[31mb": ('backend: "python"', {"1/model.py": "trust_remote_code=True\n"})})


def _versions(repository: Path) -> None:
    write_models(repository, {"file": ('backend: "python"', {}), "link": ('backend: "python"', {})})
    (repository / "file" / "1").write_text("x")
    (repository / "link" / "1").symlink_to("/etc")


def _stray(repository: Path) -> None:
    _python(repository)
    for name in (".git", "__pycache__", "docs", "lost+found", "Dockerfile", "manifest.json"):
        (repository / name).mkdir()


def _manifest(text: str | bytes) -> Callable[[Path], None]:
    def make(repository: Path) -> None:
        _python(repository)
        (repository / "manifest.json").write_bytes(text.encode() if isinstance(text, str) else text)

    return make


def _launch(content: bytes) -> Callable[[Path], None]:
    def make(repository: Path) -> None:
        _python(repository)
        for name in ("compose.yaml", "run.sh", "Dockerfile"):
            (repository / name).write_bytes(content)

    return make


def _engine(number: int) -> Callable[[Path], None]:
    def make(repository: Path) -> None:
        engine = repository.parent / "engine"
        engine.mkdir()
        (engine / "config.json").write_text(ENGINES[number])
        (engine / "rank0.engine").write_text("x")
        keys = {"gpt_model_path": str(engine), "gpt_model_type": "inflight_fused_batching", "max_tokens_in_paged_kv_cache": "5", "max_beam_width": "2",
                "lora_cache_max_adapter_size": "3", "max_attention_window_size": "1,2", "decoding_mode": "medusa"}  # fmt: skip
        write_models(repository, _core(*keys.items()))

    return make


def _tokenizer(number: int) -> Callable[[Path], None]:
    def make(repository: Path) -> None:
        folder = repository.parent / "tokenizer"
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text(TOKENIZERS[number])
        text = 'backend: "python"\ninput { name: "QUERY" data_type: TYPE_STRING dims: [ 1 ] }\nparameters { key: "chat_template" value { string_value: "true" } }\n'
        text += f'parameters {{ key: "tokenizer_dir" value {{ string_value: "{folder}" }} }}\n'
        write_models(repository, {"preprocessing": (text, _PYTHON)})

    return make


#: What only functions can make -> the function, which gets the repository's folder.
MADE: dict[str, Callable[[Path], None]] = {
    "loops": _loops, "a configuration that leads to itself": _config_is_link_to_itself, "a configuration that is a folder": _config_is_folder, "pipes": _pipes,
    "huge files": _huge, "names of no encoding": _names, "versions that are none": _versions, "stray folders": _stray,
    "a manifest of no encoding": _manifest(b"\xff\xfe"), "a manifest of lists": _manifest("[" * 100_000),
    "a manifest of another kind": _manifest('{"context": {"tensorrt_llm": ["x"], "variant": 5}, "files": {"m/1/../../../../etc/passwd": 5, "/etc/nothing/x": ""}}'),
    "a manifest with files for a list": _manifest('{"context": [], "files": ["x"]}'), "launch files of no encoding": _launch(b"\xff\xfe\x00privileged: true"),
    "launch files of one line": _launch(b"- " * 100_000 + b"tritonserver -p 8000:8000"),
    **{f"engine {number}": _engine(number) for number in range(len(ENGINES))},
    **{f"tokenizer {number}": _tokenizer(number) for number in range(len(TOKENIZERS))},
}  # fmt: skip
