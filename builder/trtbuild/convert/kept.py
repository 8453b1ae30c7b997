"""Models that are quantized already in a form TensorRT-LLM's PyTorch backend loads: the folder is copied, byte for byte.

Only JSON files are repaired. Knows which formats load (unified checkpoint specification 2.10); nothing about numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild import manifest
from trtbuild.arch.registry import check_architecture
from trtbuild.console import progress
from trtbuild.convert.changed import refuse_changes
from trtbuild.convert.opening import KEPT_BY
from trtbuild.convert.run import converted_by
from trtbuild.convert.unified_config import rotary_fields, write_json, write_tokenizer
from trtbuild.errors import UsageError, Way
from trtbuild.names import LAYOUTS
from trtbuild.output import check_output, check_space, staged_folder
from trtbuild.quant.sources import method_in, read_quantized
from trtbuild.safetensors_file import TensorReader, read_header
from trtbuild.source import INDEX, SourceCheckpoint, read_config, read_json
from trtbuild.spec import Deployment
from trtbuild.unified_layout import QUANT_CONFIG

if TYPE_CHECKING:
    from trtbuild.quant.sources.result import QuantizedSource

logger = logging.getLogger(__name__)

#: quant_method -> algorithms that load, with what a server older than the newest must be told.
_LOADED: dict[str, dict[str, str]] = {
    "modelopt": {
        "FP8": "", "FP8_PER_CHANNEL_PER_TOKEN": "", "FP8_BLOCK": "", "W4A16_AWQ": "", "W4A8_AWQ": "", "NVFP4": "",
        "MIXED_PRECISION": "mixed precision loads in the newest releases only",
    },
    "fp8": {"FP8_BLOCK": "", "FP8": "one FP8 scale per tensor (quant_method fp8) loads in the newest releases only"},
    "compressed-tensors": {
        "FP8_PER_CHANNEL_PER_TOKEN": "scales of shape [out, 1] fail before the releases of June 2026",
        "FP8_BLOCK": "",
        "NVFP4": "compressed-tensors NVFP4 loads in the newest releases only",
    },
}  # fmt: skip
#: Algorithm -> the scheme that runs where it does; mixed precision is not looked into.
RUNS_AS = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_per_channel_per_token", "FP8_BLOCK": "fp8_block", "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq", "NVFP4": "nvfp4", "MIXED_PRECISION": "none",
}  # fmt: skip
#: Bytes that are copied at once.
COPY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A quantized folder that is copied.

    Attributes:
        raw: the folder as it is.
        found: what it declares.
        notes: what the user must be told.
    """

    raw: SourceCheckpoint
    found: QuantizedSource
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its weight files."""
        return sum(file.stat().st_size for file in self.raw.files)


def kept_folder(deployments: Sequence[Deployment], *, layers: int | None) -> KeptFolder | None:
    """Return the folder if the deployments ask for a copy of a quantized one: target pytorch, and no other numbers.

    Raises:
        UsageError: it is quantized in a form that does not load, or an option does not go with a copy.
        TrtbuildError: the folder is unusable, or of an architecture that is not supported.
    """
    first = deployments[0]
    quantization = first.quantization
    folder = Path(first.model.path)
    check_architecture(read_config(folder), where=str(folder / "config.json"))
    if {LAYOUTS[each.target] for each in deployments} != {"unified"} or quantization.dequantize:
        return None
    if method_in(read_config(folder), folder) is None:
        return None
    from trtbuild.hardware import check_hardware  # not needed by a plan of an unquantized model

    raw = SourceCheckpoint.open(folder)
    found = read_quantized(raw)
    # FP8 per tensor and INT4 are kept by converting, which can change other things on the way.
    same = None if found.algorithm in KEPT_BY else RUNS_AS.get(found.algorithm)
    if quantization.scheme not in ("none", same):
        return None
    what = f"{raw.path} is already quantized ({found.method}, {found.algorithm})"
    loaded = _LOADED.get(found.method, {})
    if found.algorithm not in loaded:
        raise UsageError(
            f"{what}, which TensorRT-LLM's PyTorch backend does not load",
            hint="use the unquantized model",
            ways=[Way("add --dequantize to write the dequantized weights", {"quantization.dequantize": True})],
        )
    changes = {
        "--layers": layers is not None,
        "--merge-lora": first.model.merge_lora is not None,
        "--kv-cache": quantization.kv_cache != "auto",
        "--dtype": first.model.dtype != "auto",
    }
    if asked := [name for name, is_given in changes.items() if is_given]:
        raise UsageError(
            f"{what} and is copied as it is; {', '.join(asked)} would change it",
            hint=f"leave out {', '.join(asked)}",
            ways=[Way("add --dequantize", {"quantization.dequantize": True})],
        )
    notes = [
        f"the source is quantized ({found.method}, {found.algorithm}) and is copied as it is",
        *raw.notes,
        *found.notes,
    ]
    notes += [loaded[found.algorithm]] if loaded[found.algorithm] else []
    schemes = (RUNS_AS[found.algorithm],)
    notes += check_hardware(first.hardware.gpu, target=first.target, schemes=schemes, kv_cache=quantization.kv_cache)
    return KeptFolder(raw, found, tuple(notes))


def copy_folder(
    kept: KeptFolder, deployment: Deployment, output: Path, *, force: bool, quiet: bool
) -> dict[str, dict[str, Any]]:
    """Copy a quantized folder and return folder -> manifest; a copy of the same folder is left as it is.

    Raises:
        TrtbuildError: the output exists and is of other inputs, or the disk is too small.
    """
    key = copy_key(kept, deployment)
    if not force and (output / manifest.NAME).is_file():
        written = manifest.read(output, kind="checkpoint")
        if written["inputs_key"] == key and manifest.is_complete(output, written):
            logger.info("%s is up to date", output)
            return {str(output): written}
    check_output(output, force=True, keep=(kept.raw.path,))  # before --force is suggested
    if not force:
        refuse_changes(output, {output: deployment}, manifest.source_identity(kept.raw), key=key)
    check_output(output, force=force, keep=(kept.raw.path,))
    check_space(output, kept.nbytes)
    with staged_folder(output, needed=kept.nbytes) as stage:
        written = copy_into(kept, deployment, stage, key=key, quiet=quiet)
    return {str(output): written}


def copy_key(kept: KeptFolder, deployment: Deployment) -> str:
    """Return what identifies the inputs of a copy."""
    return manifest.digest(
        {
            **manifest.header("checkpoint"),
            "deployment": converted_by(deployment),
            "source": manifest.source_identity(kept.raw),
        }
    )


def copy_into(kept: KeptFolder, deployment: Deployment, folder: Path, *, key: str, quiet: bool) -> dict[str, Any]:
    """Copy a quantized folder into an empty one and return the manifest that was written there."""
    start = time.perf_counter()
    with progress("copying", kept.nbytes, quiet=quiet) as advance:
        for file in kept.raw.files:
            _copy(file, folder / file.name, advance)
    _write_json_files(kept, folder)
    with TensorReader() as reader:
        digests = {
            file.name: {name: reader.digest(info) for name, info in sorted(read_header(file).items())}
            for file in kept.raw.files
        }
    written = {
        **manifest.header("checkpoint"),
        "target": deployment.target,
        "source": {**manifest.source_identity(kept.raw), "revision": deployment.model.revision},
        "deployment": deployment.as_dict(),
        "kept": {"method": kept.found.method, "algorithm": kept.found.algorithm},
        "calibration": None,
        "kv_scales": [],
        "inputs_key": key,
        "read_bytes": kept.nbytes,
        "write_bytes": kept.nbytes,
        "sha256": digests,
        "warnings": list(kept.notes),
        "seconds": {"copy": round(time.perf_counter() - start, 3)},
        "peak_rss_bytes": manifest.peak_rss_bytes(),
    }
    manifest.write(folder, written)
    return written


def _copy(source: Path, target: Path, advance: Callable[[int], None]) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        while block := read.read(COPY_BYTES):
            write.write(block)
            advance(len(block))


def _write_json_files(kept: KeptFolder, folder: Path) -> None:
    config = dict(kept.raw.config)
    config |= {key: value for key, value in rotary_fields(config).items() if config.get(key) is None}
    write_json(folder / "config.json", config)
    for name in (INDEX, QUANT_CONFIG):
        if (kept.raw.path / name).is_file():
            write_json(folder / name, read_json(kept.raw.path / name))
    write_tokenizer(kept.raw, folder)
