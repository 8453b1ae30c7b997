"""Undoes what the command line does to logging, so that later tests see log records again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """Give the package's logger back to the root logger after each test."""
    yield
    logger = logging.getLogger("trtbuild")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
