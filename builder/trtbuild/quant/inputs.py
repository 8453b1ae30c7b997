"""How a kernel rounds the inputs of one linear. Plain numbers; the arithmetic is `reference/simulate.py`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtbuild.quant.scheme import InputFormat, Role

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class InputRounding:
    """The input rounding of one linear.

    Attributes:
        kind: see `InputFormat`.
        scale: static scale, real = code * scale (for NVFP4 the scale of its block scales); 0.0 when scales are made at run time.
        multiplier: [in] float32, what the kernel multiplies the input by before it rounds; None for ones.
    """

    kind: str
    scale: float = 0.0
    multiplier: NDArray[Any] | None = None

    @classmethod
    def of(cls, inputs: InputFormat, constants: Mapping[Role, NDArray[Any]]) -> InputRounding:
        """Return the rounding that stored scales ask for."""
        scale = float(constants["input"].reshape(())) if inputs.limit else 0.0
        return cls(inputs.kind, scale, constants.get("pre_quant"))
