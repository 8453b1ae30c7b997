"""Files and folders that trtbuild.yaml names: whether they are there. Opens none; what is in them is checked where they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtbuild.spec import Deployment

#: What a folder of a kind holds.
_MODEL, _ADAPTER = "config.json", "adapter_config.json"


def missing_files(deployment: Deployment) -> Iterator[str]:
    """Yield what is wrong with each path of trtbuild.yaml but the model's own."""
    calibration, accuracy = deployment.quantization.calibration.file, deployment.accuracy.file
    files = {
        "quantization.calibration.file": calibration,
        "accuracy.file": accuracy,
        "serving.xgrammar_tokenizer_info": deployment.serving.xgrammar_tokenizer_info,
    }
    for key, name in files.items():
        if name is not None and not Path(name).is_file():
            yield f"{key}: {name} {_kind(Path(name), 'a file')}"
    folders = [("speculative.draft_model", deployment.speculative.draft_model, _MODEL)]
    folders += [("lora.adapters", name, _ADAPTER) for name in deployment.lora.adapters]
    for key, name, inside in folders:
        if name is not None and not (Path(name) / inside).is_file():
            problem = f"has no {inside}" if Path(name).is_dir() else _kind(Path(name), "a folder")
            yield f"{key}: {name} {problem}"
    cache = deployment.engine.timing_cache
    if cache is not None and (Path(cache).is_dir() or not Path(cache).parent.is_dir()):
        problem = "is a folder" if Path(cache).is_dir() else "is to be written into a folder that does not exist"
        yield f"engine.timing_cache: {cache} {problem}"


def _kind(path: Path, wanted: str) -> str:
    return f"is not {wanted}" if path.exists() else "does not exist"
