"""Loads the Python that is shipped to the server, with a stand-in for Triton's own module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.repo.public_tensors import TEXT_OUTPUTS
from tests.unit.templates import tiny_tokenizers, triton_stub
from tests.unit.templates.triton_stub import InferenceRequest

from trtbuild.repo.locate import templates_dir

VOCAB_SIZE = 300


@pytest.fixture(scope="session", autouse=True)
def triton_utils() -> Iterator[None]:
    """Put the stand-in where `import triton_python_backend_utils` finds it."""
    name = "triton_python_backend_utils"
    before = sys.modules.get(name)
    sys.modules[name] = triton_stub.module()
    yield
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


@pytest.fixture(scope="session")
def shipped() -> Callable[..., SimpleNamespace]:
    """Return a function that imports the modules of a model (of a variant) as the server does, and returns them by name."""
    return _import_model


def _import_model(name: str, variant: str = "common") -> SimpleNamespace:
    folders = [templates_dir() / variant / name / "1", templates_dir() / "_shared"]
    names = [file.stem for folder in folders for file in folder.glob("*.py")]
    kept = {module: sys.modules.pop(module) for module in names if module in sys.modules}
    path, writes_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path[:0] = map(str, folders)
    sys.dont_write_bytecode = True
    try:
        return SimpleNamespace(**{module: importlib.import_module(module) for module in names})
    finally:
        sys.path[:], sys.dont_write_bytecode = path, writes_bytecode
        for module in names:
            sys.modules.pop(module, None)
        sys.modules.update(kept)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the tiny tokenizers."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {
        "byte": tiny_tokenizers.save(tiny_tokenizers.byte_level(), root / "byte"),
        "metaspace": tiny_tokenizers.save(tiny_tokenizers.metaspace(), root / "metaspace"),
        "bos": tiny_tokenizers.save(tiny_tokenizers.byte_level(adds_bos=True), root / "bos"),
    }


@pytest.fixture
def preprocessing(shipped: Callable[[str], SimpleNamespace]) -> Callable[..., Any]:
    """Return a function that loads `preprocessing` for a tokenizer folder and further parameters."""

    def load(folder: Path, **parameters: str) -> Any:
        values = {"tokenizer_dir": str(folder), "vocab_size": str(VOCAB_SIZE), "max_seq_len": "64", **parameters}
        model = shipped("preprocessing").model.TritonPythonModel()
        model.initialize(triton_stub.arguments(values))
        return model

    return load


@pytest.fixture
def postprocessing(shipped: Callable[[str], SimpleNamespace]) -> Callable[..., Any]:
    """Return a function that loads `postprocessing` for a tokenizer folder and further parameters."""

    def load(folder: Path, **parameters: str) -> Any:
        values = {"tokenizer_dir": str(folder), "vocab_size": str(VOCAB_SIZE), **parameters}
        model = shipped("postprocessing").model.TritonPythonModel()
        model.initialize(triton_stub.arguments(values))
        return model

    return load


@pytest.fixture
def ask_bls(
    shipped: Callable[[str], SimpleNamespace],
    preprocessing: Callable[..., Any],
    postprocessing: Callable[..., Any],
    tokenizers: dict[str, Path],
) -> Iterator[Callable[..., InferenceRequest]]:
    """Return a function that puts models behind `tensorrt_llm_bls`, asks it and returns the request with its answer."""
    instances = []
    around = {"preprocessing": preprocessing(tokenizers["byte"]), "postprocessing": postprocessing(tokenizers["byte"])}

    def ask(
        behind: Mapping[str, Any],
        text: Any,
        max_tokens: int,
        inputs: Mapping[str, Any],
        *,
        parameters: Mapping[str, str],
        decoupled: bool = True,
        declared: tuple[str, ...] = (),
        before: Callable[[InferenceRequest], None] = lambda request: None,
    ) -> InferenceRequest:
        for name, model in around.items():
            triton_stub.MODELS[name] = lambda inner, _, model=model: model.execute([inner])[0]
        triton_stub.MODELS.update(behind)
        model = shipped("tensorrt_llm_bls").model.TritonPythonModel()
        instances.append(model)
        values = {"cancellation_check_period_ms": "1", **parameters}
        model.initialize(triton_stub.arguments(values, decoupled=decoupled, inputs=declared, outputs=TEXT_OUTPUTS))
        texts = text if isinstance(text, list) else [text]
        request = triton_stub.request(
            {"text_input": [[item] for item in texts], "max_tokens": [[max_tokens]] * len(texts), **inputs}
        )
        before(request)
        model.execute([request])
        assert request.sender.is_final
        return request

    yield ask
    for model in instances:
        model.finalize()
    triton_stub.MODELS.clear()
