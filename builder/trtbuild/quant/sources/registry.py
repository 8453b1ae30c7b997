"""From `quant_method` to the reader of that format, and what is said about methods that are not read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.errors import TrtbuildError
from trtbuild.source import SourceCheckpoint

if TYPE_CHECKING:
    from trtbuild.quant.sources.result import QuantizedSource

#: `quant_method` -> module whose `declare` reads its declaration; loaded when such a folder comes.
METHODS: dict[str, str] = {
    "modelopt": "trtbuild.quant.sources.modelopt",
    "compressed-tensors": "trtbuild.quant.sources.compressed_tensors",
    "awq": "trtbuild.quant.sources.autoawq",
    "gptq": "trtbuild.quant.sources.gptq",
    "fp8": "trtbuild.quant.sources.vendor_fp8",
}
#: What ModelOpt's exporter writes beside config.json.
MODELOPT_FILE = "hf_quant_config.json"
#: Ways out for methods that are common and not read.
WAYS_OUT = {
    "bitsandbytes": (
        "bitsandbytes quantizes while a model is loaded and is for fine-tuning: take the unquantized model; after QLoRA, merge the "
        "adapter into the unquantized base model; then convert that and let trtbuild quantize it"
    ),
}
_WAY_OUT = "take the unquantized model, convert that and let trtbuild quantize it"


def declared_method(source: SourceCheckpoint) -> str | None:
    """Return the `quant_method` that a folder declares, None for an unquantized folder; see `method_in`."""
    return method_in(source.config, source.path)


def method_in(config: Mapping[str, Any], folder: Path) -> str | None:
    """Return the `quant_method` that config.json and its neighbours declare, before any header is read.

    A folder with `hf_quant_config.json` but without `quantization_config` is one of ModelOpt.
    """
    block = config.get("quantization_config")
    if block:
        method = block.get("quant_method") if isinstance(block, Mapping) else None
        return str(method).lower().replace("_", "-")
    return "modelopt" if (folder / MODELOPT_FILE).is_file() else None


def read_quantized(source: SourceCheckpoint) -> QuantizedSource:
    """Return a quantized folder as plain weights that are dequantized while they are read.

    Everything that headers and JSON files tell is checked here. No weight is read; of the scales, only those of one number.

    Args:
        source: the opened folder.

    Raises:
        TrtbuildError: the folder declares no quantization or one that is not read, or its tensors do not fit what it declares.
    """
    method = declared_method(source)
    if method is None:
        raise TrtbuildError(f"{source.path} declares no quantization", hint="convert it as an unquantized model")
    if method not in METHODS:
        raise TrtbuildError(
            f"{source.path} is quantized with quant_method {method!r}, which is not read",
            hint=f"read are: {', '.join(METHODS)}; {WAYS_OUT.get(method, _WAY_OUT)}",
        )
    block = source.config.get("quantization_config")
    declaration = import_module(METHODS[method]).declare(source, block if isinstance(block, Mapping) else {})
    found: QuantizedSource = import_module("trtbuild.quant.sources.assemble").assemble(source, declaration)
    return found
