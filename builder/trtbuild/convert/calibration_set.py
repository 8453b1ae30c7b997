"""The calibration samples of a deployment, with what is doubtful about them."""

from __future__ import annotations

import logging
from pathlib import Path

from trtbuild.dims import ModelDims
from trtbuild.quant.calibrate.doubts import doubts
from trtbuild.quant.calibrate.samples import DEFAULT_LENGTH_TOKENS, DEFAULT_SAMPLES, Samples, load_samples
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Calibration

logger = logging.getLogger(__name__)


def calibration_set(source: SourceCheckpoint, settings: Calibration, dims: ModelDims) -> tuple[Samples, list[str]]:
    """Return the samples, and warnings about them, which are logged too.

    Args:
        source: the model, for its tokenizer.
        settings: what the deployment says.
        dims: of the model; samples are cut at its positions at the latest.

    Raises:
        TrtbuildError: the file is unusable.
    """
    samples = load_samples(
        source,
        Path(settings.file) if settings.file else None,
        vocab_size=dims.vocab_size,
        max_samples=settings.max_samples or DEFAULT_SAMPLES,
        max_length=min(settings.max_length_tokens or DEFAULT_LENGTH_TOKENS, dims.max_position_embeddings),
        field=settings.field,
        seed=settings.seed,
    )
    warnings = list(doubts(samples, asked_samples=settings.max_samples, asked_length=settings.max_length_tokens))
    for warning in warnings:
        logger.warning("calibration: %s: %s", samples.origin, warning)
    return samples, warnings
