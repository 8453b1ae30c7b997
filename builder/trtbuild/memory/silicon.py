"""Times from NVIDIA's measured kernels, where aiconfigurator-core (the extra `plan`) is installed and knows the GPU.

The boundary to that package: it is imported here only, on request only (importing it takes seconds and 140 MB), and through the small
facade that it calls stable, `aiconfigurator_core.sdk.EngineHandle`. Checked with 0.12.0 on this project's CPU machines. It reads the
model's config.json and no weights. Its estimates are for the PyTorch backend of TensorRT-LLM; for engines they are an indication.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from trtbuild.errors import TrtbuildError
from trtbuild.memory.estimate import Estimate

PACKAGE = "aiconfigurator_core"
#: GPU variant -> its name there.
SYSTEMS = {
    "A100 SXM 80GB": "a100_sxm", "A100 SXM 40GB": "a100_sxm", "A100 PCIe 80GB": "a100_pcie", "A100 PCIe 40GB": "a100_pcie", "L4": "l4",
    "L40S": "l40s", "H100 SXM": "h100_sxm", "H100 PCIe": "h100_pcie", "H200": "h200_sxm", "B200": "b200_sxm", "B300": "b300_sxm",
    "GB200": "gb200", "RTX PRO 6000 Blackwell": "rtx_pro_6000_server",
}  # fmt: skip
#: Scheme -> its name there; others have no measurements.
GEMMS = {
    "none": "bfloat16", "fp8": "fp8_static", "fp8_per_channel_per_token": "fp8", "fp8_block": "fp8_block", "int4_awq": "int4_wo",
    "int4_gptq": "int4_wo", "int4_rtn": "int4_wo", "int4_weight_only": "int4_wo", "int8_weight_only": "int8_wo", "int8_smoothquant": "sq",
    "nvfp4": "nvfp4",
}  # fmt: skip
KV_CACHES = {"auto": "bfloat16", "fp8": "fp8", "int8": "int8"}


class Handle(Protocol):
    """What is used of EngineHandle."""

    def run_static(self, *, batch_size: int, isl: int, osl: int) -> tuple[float, float, float]:
        """Return milliseconds of prefill, of decoding, and of both, for a batch of equal requests."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds, as in `roofline.Speed`."""

    ttft_s: float
    itl_s: float
    itl_full_s: float
    tokens_per_s: float
    version: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "source": f"{PACKAGE} {self.version}",
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "itl_full_batch_s": self.itl_full_s,
            "tokens_per_s": self.tokens_per_s,
        }


def measured_speed(it: Estimate, path: str, requests: int, compiler: Callable[..., Handle] | None = None) -> Measured:
    """Return times from measured kernels.

    Args:
        it: the estimate.
        path: of the model folder.
        requests: of a full batch.
        compiler: stands for EngineHandle.compile.

    Raises:
        TrtbuildError: the package is missing, or has no measurements for this GPU, scheme or model.
    """
    compiler = compiler or _compiler()
    system, gemm = SYSTEMS.get(it.spec.name if it.spec else ""), GEMMS.get(it.layout.scheme.name)
    if system is None or gemm is None:
        what = (
            f"GPU {it.spec.name if it.spec else 'not named'}" if system is None else f"scheme {it.layout.scheme.name}"
        )
        raise TrtbuildError(
            f"{PACKAGE} has no measurements for {what}", hint="leave out --measured for the roofline estimate"
        )
    parallel, moe = it.parallel, {}
    if it.dims.num_experts:
        moe = {"moe_tp_size": parallel.moe_tp_size, "moe_ep_size": parallel.moe_ep_size, "moe_quant_mode": gemm}
    try:
        with _quiet():
            handle = compiler(
                path, system, "trtllm", tp_size=parallel.tp_size, pp_size=parallel.pp_size, gemm_quant_mode=gemm,
                kvcache_quant_mode=KV_CACHES[it.deployment.quantization.kv_cache], **moe,
            )  # fmt: skip
            prompt, answer = it.lengths.input_len.value, max(it.lengths.output_len.value, 2)
            one = handle.run_static(batch_size=1, isl=prompt, osl=answer)
            full = handle.run_static(batch_size=requests, isl=prompt, osl=answer)
    except Exception as error:  # its own exceptions are many, and each means that it has no answer
        raise TrtbuildError(
            f"{PACKAGE} cannot estimate {path} on {system}: {error}",
            hint="leave out --measured for the roofline estimate",
        ) from error
    steps = answer - 1
    return Measured(
        one[0] / 1e3, one[1] / 1e3 / steps, full[1] / 1e3 / steps, requests * answer / (full[2] / 1e3), _version()
    )


def _compiler() -> Callable[..., Handle]:
    try:
        handle: Any = import_module(f"{PACKAGE}.sdk").EngineHandle
    except ImportError as error:
        raise TrtbuildError(
            f"--measured needs {PACKAGE}, which cannot be imported: {error}", hint="pip install 'trtbuild[plan]'"
        ) from error
    compiler: Callable[..., Handle] = handle.compile
    return compiler


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Send what the package prints to stderr, native code included: stdout is the result."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
