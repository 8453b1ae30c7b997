"""A model that is served in static batches, behind a real tritonserver; answers compared with `model.generate`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.conftest import TAUGHT, Deployment, deployed, teach

from trtbuild_client import Client

pytestmark = pytest.mark.triton
LONG = 60


@pytest.fixture(scope="module")
def static_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("static") / "model"
    folder.mkdir()
    tokenizer, model = teach(folder, "gpt_neox")
    with deployed(folder, tokenizer, model, tmp_path_factory.mktemp("static_deployment")) as running:
        yield running


def test_streams_sent_one_by_one_and_at_once_are_those_of_generate(static_deployment: Deployment) -> None:
    expected = [static_deployment.text(prompt, LONG) for prompt in TAUGHT]
    assert expected == list(TAUGHT.values()), "else the model has not learned"

    def ask(prompt: str) -> str:
        with Client(static_deployment.grpc_url) as client:
            return "".join(chunk.text for chunk in client.stream(prompt, max_tokens=LONG))

    assert [ask(prompt) for prompt in TAUGHT] == expected
    with ThreadPoolExecutor(len(TAUGHT)) as pool:
        assert list(pool.map(ask, TAUGHT)) == expected
