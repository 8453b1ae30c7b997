"""What a search works on: the linears that get one smoothing factor, and what is known of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trtbuild.quant.recipes import SearchSettings
from trtbuild.quant.search.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtbuild.quant.search.moments import InputMoments

#: Smoothing factors stay inside; ModelOpt's limits (modelopt/torch/quantization/model_calib.py).
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-4, 1e4
#: Safetensors dtype of a model -> PyTorch's: smoothing factors are stored in it.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Linear:
    """A linear of a group.

    Attributes:
        module: its Hugging Face name.
        weight: [out, in], rows in the order of the source; a float32 tensor will do.
        inputs: of its inputs; linears with one input share the object.
    """

    module: str
    weight: Rows
    inputs: InputMoments


@dataclass(frozen=True)
class ScaleGroup:
    """Linears of one layer that share a smoothing factor of their inputs.

    Attributes:
        linears: at least one; all have the same number of inputs.
        dtype: safetensors dtype in which factors are stored.
        settings: how to search.
    """

    linears: Sequence[Linear]
    dtype: str
    settings: SearchSettings

    @property
    def inputs(self) -> list[InputMoments]:
        """The different inputs."""
        return list({id(linear.inputs): linear.inputs for linear in self.linears}.values())

    @property
    def input_amax(self) -> Tensor:
        """[in], largest |x| over the linears."""
        return torch.stack([inputs.amax for inputs in self.inputs]).amax(0)

    @property
    def input_mean(self) -> Tensor:
        """[in], mean |x| over the tokens of all linears."""
        return torch.stack([inputs.abs_sum for inputs in self.inputs]).sum(0) / max(
            sum(inputs.tokens for inputs in self.inputs), 1
        )

    def factor(self, values: Tensor) -> Tensor:
        """Return a smoothing factor as it will be stored: finite, within limits, a value of the model's dtype; [in] float32."""
        return self.rounded(limited(values))

    def rounded(self, values: Tensor) -> Tensor:
        """Return the nearest values of the model's dtype, as float32; what is beyond its range stays as it is."""
        nearest = values.to(_DTYPES[self.dtype]).float()
        return torch.where(nearest.isfinite(), nearest, values)


def limited(values: Tensor) -> Tensor:
    """Return a smoothing factor that is finite and within limits, float32."""
    finite = torch.nan_to_num(values.float(), nan=1.0, posinf=LARGEST_FACTOR, neginf=SMALLEST_FACTOR)
    return finite.clamp(SMALLEST_FACTOR, LARGEST_FACTOR)


def to_numpy(values: Tensor) -> NDArray[Any]:
    """Return a contiguous array on the host."""
    array: NDArray[Any] = values.cpu().contiguous().numpy()
    return array
