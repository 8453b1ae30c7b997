"""Pick the engine that serves a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trtbuild.reference.base import BaseEngine
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.engine import Engine
from trtbuild.reference.static import StaticEngine
from trtbuild.reference.support import Batching, batching_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

ENGINES: dict[Batching, type[BaseEngine]] = {"continuous": Engine, "static": StaticEngine}


def make_engine(model: PreTrainedModel, config: BatchingConfig) -> BaseEngine:
    """Return the engine for a model, not yet started.

    Args:
        model: from `load_model`.
        config: sizes.

    Raises:
        TrtbuildError: the sizes contradict each other, or do not suit the model.
    """
    text_config = model.config.get_text_config()
    batching = batching_of(text_config.to_dict(), config.max_seq_len)
    logger.info("%s is served in %s batches", text_config.model_type, batching)
    return ENGINES[batching](model, config)
