"""Ranges observed while a model ran on sample texts. Plain numbers: knows neither torch nor files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtbuild.errors import TrtbuildError


@dataclass(frozen=True, slots=True)
class CalibrationStats:
    """Largest absolute values over all calibration tokens.

    Attributes:
        input_amax: Hugging Face module ("model.layers.0.mlp.down_proj") -> range of its input.
        k_amax: per layer, range of the keys as they are cached (after the rotary embedding).
        v_amax: per layer, range of the values.
        samples: number of samples that were run.
        tokens: number of tokens that were run.
        digest: SHA-256 of the token ids.
    """

    input_amax: dict[str, float]
    k_amax: tuple[float, ...]
    v_amax: tuple[float, ...]
    samples: int
    tokens: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalibrationStats:
        """Return the stats of `to_json`."""
        return cls(**{**data, "k_amax": tuple(data["k_amax"]), "v_amax": tuple(data["v_amax"])})

    def group_input_amax(self, modules: Sequence[str]) -> float:
        """Return the range shared by linears that are quantized together.

        Args:
            modules: their Hugging Face names.

        Raises:
            TrtbuildError: one of them never saw an input.
        """
        unseen = [module for module in modules if module not in self.input_amax]
        if unseen:
            raise TrtbuildError(
                f"calibration never reached {unseen[0]}",
                hint="the model's code does not match its tensor names; report this model",
            )
        return max(self.input_amax[module] for module in modules)
