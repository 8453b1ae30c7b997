"""Bad numbers sent to a real server: an error of their request alone, before the core is asked (field report CL19)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.templates.test_templates_limits import BAD, GOOD
from tests.unit.templates.test_templates_triton import MODELS, Deployed, render_scripted

from trtbuild.serve.supervisor import Server

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    repository, log = render_scripted(tmp_path_factory.mktemp("limits"))
    with Server(repository) as running:
        yield running, log


@pytest.mark.parametrize("model", MODELS)
def test_a_bad_number_is_an_error_of_its_request_alone(server: tuple[Server, Path], model: str) -> None:
    deployed = Deployed(server[0].grpc_url, server[1])
    asked = len(deployed.ends(1))
    for values, message in BAD:
        inputs = {name: [[value]] for name, value in values.items()}
        answer = deployed.ask(model, "a", inputs.pop("max_tokens", [[8]])[0][0], **inputs)
        assert (message in answer.error, answer.texts) == (True, []), (values, answer)
    assert len(deployed.ends(1)) == asked  # the core was not asked
    for values in GOOD:
        inputs = {name: [[value]] for name, value in values.items() if name != "max_tokens"}
        assert deployed.ask(model, "ab", 8, **inputs).texts == list("abababab")


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_below_zero_is_refused_by_the_server_itself(server: tuple[Server, Path], model: str) -> None:
    body: dict[str, Any] = {"text_input": "a", "max_tokens": 2, "stream": True, "seed": -1}
    url = f"{server[0].http_url}/v2/models/{model}/generate_stream"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30)
    with caught.value as refused:
        assert "error" in json.loads(refused.read())
    assert Deployed(server[0].grpc_url, server[1]).ask(model, "ab", 2).texts == list("ab")
