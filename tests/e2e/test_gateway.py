"""OpenAI's own client, the gateway, and a real tritonserver: the taught answers come through."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from tests.e2e.conftest import TAUGHT, Deployment
from tests.unit.gateway.running import Running, running, wait_until, write_template

pytestmark = pytest.mark.triton
LONG = 60


@pytest.fixture(scope="module", params=["ensemble", "tensorrt_llm_bls"])
def gateway(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[Running]:
    """A gateway before a text model; its chat template gives back the last message."""
    write_template(deployment.model_folder, "{{ messages[-1].content }}")
    try:
        with running(
            deployment.grpc_url, model=request.param, served_names=("taught",), tokenizer_dir=deployment.model_folder
        ) as server:
            yield server
    finally:
        (deployment.model_folder / "chat_template.jinja").unlink()


def test_taught_answers_come_streamed_and_whole_with_counts(gateway: Running, deployment: Deployment) -> None:
    with gateway.openai(timeout=120) as client:
        for prompt, answer in TAUGHT.items():
            whole = client.completions.create(model="taught", prompt=prompt, max_tokens=LONG, temperature=0)
            assert whole.choices[0].text == answer
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.prompt_tokens == len(deployment.tokenizer(prompt)["input_ids"])
            chunks = client.chat.completions.create(
                model="taught", messages=[{"role": "user", "content": prompt}], max_tokens=LONG, temperature=0, stream=True
            )  # fmt: skip
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer


def test_stop_texts_lengths_and_limits_of_the_model_hold(gateway: Running, deployment: Deployment) -> None:
    with gateway.openai(timeout=120) as client:
        stopped = client.completions.create(model="taught", prompt="stop:", max_tokens=LONG, temperature=0, stop="END")
        assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("first ", "stop")
        text = deployment.text("count:", LONG)
        half = len(text) // 2
        asked = {"model": "taught", "prompt": "count:", "max_tokens": LONG, "temperature": 0, "stop": text[half : half + 3]}  # fmt: skip
        whole = client.completions.create(**asked)
        parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert whole.choices[0].text == "".join(choice.text for part in parts for choice in part.choices)
        assert whole.choices[0].text == text[: text.index(text[half : half + 3])]
        assert whole.usage == parts[-1].usage
        assert whole.usage.completion_tokens < len(deployment.tokenizer(text)["input_ids"])
        short = client.completions.create(model="taught", prompt="count:", max_tokens=5, temperature=0)
        assert short.choices[0].text == deployment.text("count:", 5)
        assert short.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="taught", prompt="count:" * 200, max_tokens=5)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="taught", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
            )


def test_logprobs_of_a_sampled_answer_stand_beside_its_tokens(gateway: Running, deployment: Deployment) -> None:
    with gateway.openai(timeout=120) as client:
        answer = client.completions.create(
            model="taught", prompt="plain:", max_tokens=4, temperature=0.01, seed=1, logprobs=0
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.token_logprobs is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)


def test_leaving_a_stream_frees_the_server(gateway: Running) -> None:
    with gateway.openai(timeout=120) as client:
        stream = client.completions.create(model="taught", prompt="zz", max_tokens=200, temperature=0, stream=True)
        for _ in stream:
            break
        stream.close()
        wait_until(lambda: gateway.gateway.gate.in_flight == 0, "room was not given back")
        assert (
            client.completions.create(model="taught", prompt="plain:", max_tokens=LONG, temperature=0).choices[0].text
        )
