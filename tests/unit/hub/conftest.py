"""huggingface_hub of this process, pointed at a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.hub.fake_hub import FakeHub, serving, tiny_model


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub that holds the tiny model."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hub = FakeHub(files=tiny_model())
    with serving(hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub
