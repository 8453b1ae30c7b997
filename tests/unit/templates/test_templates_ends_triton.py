"""Special tokens and the marks of an end through the real server: field reports TK12, TK13 and TK20."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.unit.templates.test_templates_triton import MODELS, Deployed, render_scripted
from tests.unit.templates.tiny_tokenizers import byte_level, save

from trtbuild.serve.supervisor import Server

pytestmark = pytest.mark.triton

EOS, TURN = 257, 259


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A server that leaves special tokens in, of a model with two ids that end answers, one of them an ordinary token."""
    folder = tmp_path_factory.mktemp("ends")
    repository, log = render_scripted(folder, serving={"skip_special_tokens": False})
    tokenizer = byte_level()
    tokenizer.add_tokens(["<turn>"])
    tokens = save(tokenizer, folder / "checkpoint" / "tokenizer")
    (tokens / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, TURN]}))
    with Server(repository) as server:
        yield Deployed(server.grpc_url, log)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("generated", "tokens", "text"),
    [
        pytest.param("<tool>x</s>", 3, "<tool>x", id="a token that the caller needs"),
        pytest.param("x</s></s></s>", 4, "x", id="ends up to the limit"),
        pytest.param("x<turn>", 2, "x", id="the second end id"),
        pytest.param("x</s><turn>é</s>y<turn></s>", 9, "x</s><turn>é</s>y", id="ends within"),
        pytest.param("</s>", 1, "", id="nothing but an end"),
    ],
)
def test_the_marks_of_the_end_are_no_text_and_all_other_tokens_are(
    deployed: Deployed, model: str, stream: bool, generated: str, tokens: int, text: str
) -> None:
    answer = deployed.ask(model, generated, tokens, stream=[[stream]])  # the core answers with its prompt's tokens
    assert (answer.error, "".join(answer.texts)) == ("", text)
