"""What makes a calibration set doubtful: too small, always the same, or less than was asked for. Warnings, never errors.

Knows token ids alone; what the model makes of them shows in the ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtbuild.quant.calibrate.samples import Samples

#: The largest of n like values is exceeded by the next one with probability 1 / (n + 1). Below these numbers more than one token in
#: 500, and more than one text in ten, is expected to go beyond the ranges that were found, and is clamped.
FEWEST_TOKENS = 512
FEWEST_SAMPLES = 8


def doubts(samples: Samples, *, asked_samples: int | None, asked_length: int | None) -> Iterator[str]:
    """Yield what is doubtful about a set.

    Args:
        samples: what is fed.
        asked_samples: number of samples that was asked for; None when it was not.
        asked_length: their length in tokens that was asked for; None when it was not.
    """
    number, longest = len(samples.rows), max(map(len, samples.rows))
    if number < FEWEST_SAMPLES or samples.tokens < FEWEST_TOKENS:
        yield (
            f"{number} samples with {samples.tokens} tokens are few: ranges found on less than {FEWEST_SAMPLES} samples or "
            f"{FEWEST_TOKENS} tokens are often exceeded later"
        )
    if len({token for row in samples.rows for token in row}) == 1:
        yield f"the only token is {samples.rows[0][0]}: ranges found on it say nothing about texts"
    elif number > 1 and len(set(samples.rows)) == 1:
        yield f"all {number} samples are the same"
    if asked_samples is not None and number < asked_samples:
        yield f"{asked_samples} samples were asked for, {number} are there"
    if asked_length is not None and longest < asked_length:
        yield f"{asked_length} tokens per sample were asked for, the longest sample has {longest}"
