"""A target and a draft model as two models of one real tritonserver; answers compared with those of the target alone."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import TAUGHT, Deployment, trtbuild
from tests.e2e.test_serving import post
from tests.unit.templates.test_templates_triton import Deployed

pytestmark = pytest.mark.triton
LONG, MOST = 60, 5
#: How far the draft model's weights are off, relative to their spread: enough to be wrong now and then.
NOISE = 0.35
WAIT_SECONDS = 60


def blurred(folder: Path, tokenizer: Any, model: Any) -> Path:
    """Write a copy of a model whose weights are a little off."""
    import torch
    from transformers import AutoModelForCausalLM

    copy = AutoModelForCausalLM.from_config(model.config)
    copy.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in copy.parameters():
            if weight.dim() == 2:
                weight += NOISE * weight.std() * torch.randn(weight.shape, generator=generator)
    copy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair(taught: tuple[Path, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    from trtbuild.serve.ports import Ports
    from trtbuild.serve.supervisor import Server

    folder, tokenizer, model = taught
    place = tmp_path_factory.mktemp("pair")
    sources = {"build": folder, "draft": blurred(place / "small", tokenizer, model)}
    for name, source in sources.items():
        config: dict[str, Any] = {
            "model": {"path": str(source), "dtype": "float32"},
            "limits": {"max_batch_size": 8, "max_num_tokens": 256},
        }
        if name == "build":
            config |= {
                "speculative": {"mode": "draft_target", "max_draft_len": MOST},
                "serving": {"bls_instances": 2},
            }
        (place / f"{name}.yaml").write_text(json.dumps(config))
        trtbuild("build", place / f"{name}.yaml", "-o", place / name, "--quiet")
    trtbuild("render", place / "build", "--draft", place / "draft", "--quiet")
    trtbuild("lint", place / "build" / "repository", "--quiet")
    with Server(place / "build", ports=Ports(0, 0, 0)) as server:
        yield Deployment(
            folder, place / "build", server.grpc_url, server.http_url, server.metrics_url, tokenizer, model
        )


def ask(deployment: Deployment, prompt: str, **body: Any) -> dict[str, Any]:
    """Return the whole answer of one response."""
    url = f"{deployment.http_url}/v2/models/tensorrt_llm_bls/generate"
    return dict(post(url, {"text_input": prompt, "max_tokens": LONG, "stream": False, **body}))


def stream(deployment: Deployment, prompt: str, **body: Any) -> list[dict[str, Any]]:
    """Return the responses of a stream."""
    url = f"{deployment.http_url}/v2/models/tensorrt_llm_bls/generate_stream"
    data = json.dumps({"text_input": prompt, "max_tokens": LONG, "stream": True, **body}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        lines = response.read().decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("count", [1, 3, MOST])
def test_answers_are_the_targets_own_streamed_and_at_once(pair: Deployment, count: int) -> None:
    for prompt, answer in TAUGHT.items():
        assert ask(pair, prompt, num_draft_tokens=count)["text_output"] == answer
        pieces = [each["text_output"] for each in stream(pair, prompt, num_draft_tokens=count)]
        assert "".join(pieces) == answer
        assert len(pieces) <= len(pair.expected(prompt, LONG)) + 1


def test_the_draft_model_is_right_now_and_then_and_its_tokens_are_counted(pair: Deployment) -> None:
    drafted = accepted = 0
    for prompt in TAUGHT:
        found = ask(pair, prompt, num_draft_tokens=3, return_perf_metrics=True, return_num_output_tokens=True)
        drafted += found["total_draft_tokens"]
        accepted += found["total_accepted_draft_tokens"]
        assert found["acceptance_rate"] == pytest.approx(
            found["total_accepted_draft_tokens"] / max(1, found["total_draft_tokens"]), abs=1e-6
        )
        assert found["num_output_tokens"] == len(pair.expected(prompt, LONG))
        assert found["arrival_time_ns"] < found["first_token_time_ns"] <= found["last_token_time_ns"]
    assert 0 < accepted < drafted


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 8])
def test_answers_have_the_length_that_was_asked_for(pair: Deployment, max_tokens: int) -> None:
    for prompt in TAUGHT:
        found = ask(pair, prompt, num_draft_tokens=3, max_tokens=max_tokens)
        assert found["text_output"] == pair.text(prompt, max_tokens)


@pytest.mark.parametrize("words", [["END"], [" second"], ["four", "six"], ["quick b"]])
def test_stop_words_cut_the_same_text_as_without_a_draft_model(pair: Deployment, words: list[str]) -> None:
    for prompt in TAUGHT:
        plain = ask(pair, prompt, stop_words=words)["text_output"]
        assert ask(pair, prompt, stop_words=words, num_draft_tokens=4)["text_output"] == plain


def test_many_at_once_do_not_mix(pair: Deployment) -> None:
    prompts = [*TAUGHT] * 3
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(pair, prompt, num_draft_tokens=3)["text_output"], prompts))
    assert answers == [TAUGHT[prompt] for prompt in prompts]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"num_draft_tokens": MOST + 1}, f"need one value of 0 to {MOST}"),
        ({"num_draft_tokens": 2, "use_draft_logits": True}, "the draft model gives no logits"),
        ({"num_draft_tokens": 2, "beam_width": 2}, "does not go together with beam_width"),
    ],
)
def test_what_cannot_be_served_says_why(pair: Deployment, body: dict[str, Any], message: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(pair, "plain:", **body)
    assert message in error.value.read().decode()
    assert ask(pair, "plain:", num_draft_tokens=2)["text_output"] == TAUGHT["plain:"]


def count(deployment: Deployment, family: str, model: str) -> float:
    """Return the sum of a family's values for a model."""
    with urllib.request.urlopen(deployment.metrics_url, timeout=WAIT_SECONDS) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(family + "{") and f'model="{model}"' in line
    )


def test_a_client_that_leaves_ends_the_steps(pair: Deployment) -> None:
    def ended(model: str) -> float:
        return count(pair, "nv_inference_request_success", model)  # a cancelled request of a decoupled model is one

    before, steps = ended("tensorrt_llm_bls"), ended("tensorrt_llm_draft")
    client, leaving = Deployed(pair.grpc_url, Path()), 4
    for _ in range(leaving):
        endless = {"num_draft_tokens": [[1]], "end_id": [[-1]]}
        answer = client.ask("tensorrt_llm_bls", "count:", 200, leave_after=2, **endless)
        assert (len(answer.texts), answer.error) == (2, "")
    deadline = time.monotonic() + WAIT_SECONDS
    while ended("tensorrt_llm_bls") < before + leaving:
        assert time.monotonic() < deadline, "the requests of clients that left did not end"
        time.sleep(0.05)
    # To the end, each would have taken a hundred steps or more.
    assert ended("tensorrt_llm_draft") - steps < 50 * leaving
    assert ask(pair, "plain:", num_draft_tokens=3)["text_output"] == TAUGHT["plain:"]
