"""Fixtures shared by all tests: a tiny Llama whose every weight is unique, written without the code under test."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings

# How long an example takes depends on the machine and on what else runs; nothing here is a timed test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A job in the background of a script, or under nohup, ignores these, and so would every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

#: What loading a tokenizer like a server does sets for its whole process.
_SERVER_VARIABLES = {
    name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM")
}

GOLDENS = Path(__file__).parent / "goldens"
_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}

#: config.json of the tiny model.
T0: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file by hand, so that neither our writer nor the library's is trusted."""
    header, chunks, position = {}, [], 0
    for name, array in tensors.items():
        raw = np.array(array, order="C", copy=True).tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + len(raw)],
        }
        chunks.append(raw)
        position += len(raw)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(chunks))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file by hand."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    special = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    plain = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I8": np.int8, "U8": np.uint8}
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            dtype = special.get(entry["dtype"]) or plain[entry["dtype"]]
            tensors[name] = np.frombuffer(raw[start:stop], dtype=dtype).reshape(entry["shape"])
    return tensors


def llama_tensors(
    config: dict[str, Any], *, biases: tuple[str, ...] = (), qk_norm: bool = False
) -> dict[str, np.ndarray]:
    """Return every tensor of a Llama-shaped model; each element of each tensor is unique before rounding to the dtype."""
    hidden, inter, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    kv = config.get("num_key_value_heads", heads)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    linears = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv * dim, hidden),
        "self_attn.v_proj": (kv * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        for name, shape in linears.items():
            shapes[f"{prefix}.{name}.weight"] = shape
            if name.split(".")[1] in biases:
                shapes[f"{prefix}.{name}.bias"] = shape[:1]
        if qk_norm:
            shapes[f"{prefix}.self_attn.q_norm.weight"] = shapes[f"{prefix}.self_attn.k_norm.weight"] = (dim,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    tensors, counter = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        values = (np.arange(counter, counter + size, dtype=np.float64) * 0.6180339887) % 1.0 - 0.5
        dtype = {"bfloat16": ml_dtypes.bfloat16}.get(config["torch_dtype"]) or np.dtype(config["torch_dtype"])
        tensors[name] = (values * 0.2).reshape(shape).astype(dtype)
        counter += size
    return tensors


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a tiny model folder and returns it.

    Keyword arguments change config.json; `biases`, `qk_norm`, `edit` (a function on the tensors) and `name` change the rest.
    """

    def make(
        *,
        name: str = "model",
        biases: tuple[str, ...] = (),
        qk_norm: bool = False,
        edit: Callable[[dict[str, np.ndarray]], Any] | None = None,
        drop: tuple[str, ...] = (),
        **config: Any,
    ) -> Path:
        merged = {**T0, **config}
        folder = tmp_path / name
        folder.mkdir()
        tensors = llama_tensors(merged, biases=biases, qk_norm=qk_norm)
        if edit is not None:
            edit(tensors)
        written = {key: value for key, value in merged.items() if key not in drop}
        (folder / "config.json").write_text(json.dumps(written))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    return make


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """Give the packages' loggers back to the root logger after each test: the command line takes them."""
    yield
    for name in ("trtbuild", "trtbuild_client"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def cli() -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command line in this process and returns (exit code, stdout, stderr)."""
    from trtbuild.cli.edge import run

    def call(*arguments: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    return call


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """Take back what a test, or a fixture of many tests, that loads a tokenizer in this process has set for it."""
    yield
    for name, value in _SERVER_VARIABLES.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Throw-away certificates: an authority, a server and a client; "other" is an authority that nobody knows."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", f"{name}.key", "-out",
            f"{name}.pem", "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
    for name, names in (
        ("server", "DNS:localhost,IP:127.0.0.1"),
        ("client", "DNS:client"),
        ("named", "DNS:llm.example"),
    ):
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n", encoding="utf-8")
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.pem", "-extfile", f"{name}.ext",
        )  # fmt: skip
    return folder
