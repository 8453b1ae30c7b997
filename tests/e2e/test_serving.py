"""The whole path: build, render, lint, a real tritonserver, the client; answers compared with `model.generate`."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import TAUGHT, Deployment, trtbuild

from trtbuild.serve.ports import Ports
from trtbuild.serve.supervisor import Server
from trtbuild_client import Client, ServerError

pytestmark = pytest.mark.triton
MODELS = ("ensemble", "tensorrt_llm_bls")
LONG = 60


def test_the_taught_answers_are_what_the_model_says(deployment: Deployment) -> None:
    for prompt, answer in TAUGHT.items():
        assert deployment.text(prompt, LONG) == answer, "else the tests below prove little"


@pytest.mark.parametrize("model", MODELS)
def test_streamed_text_equals_generate_one_by_one(deployment: Deployment, model: str) -> None:
    with Client(deployment.grpc_url, model) as client:
        for prompt, answer in TAUGHT.items():
            assert "".join(chunk.text for chunk in client.stream(prompt, max_tokens=LONG)) == answer


@pytest.mark.parametrize("model", MODELS)
def test_streamed_text_equals_generate_when_all_are_sent_at_once(deployment: Deployment, model: str) -> None:
    barrier = threading.Barrier(len(TAUGHT))

    def ask(prompt: str) -> str:
        with Client(deployment.grpc_url, model) as client:
            client.generate("warm", max_tokens=1)
            barrier.wait(60)
            return "".join(chunk.text for chunk in client.stream(prompt, max_tokens=LONG))

    with ThreadPoolExecutor(len(TAUGHT)) as pool:
        assert dict(zip(TAUGHT, pool.map(ask, TAUGHT), strict=True)) == TAUGHT


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("prompt", TAUGHT)
def test_streams_and_whole_answers_agree_at_every_length(deployment: Deployment, model: str, prompt: str) -> None:
    with Client(deployment.grpc_url, model) as client:
        for max_tokens in (1, 2, 3, 5, 8, LONG):
            whole = client.generate(prompt, max_tokens=max_tokens).text
            pieces = [chunk.text for chunk in client.stream(prompt, max_tokens=max_tokens)]
            assert "".join(pieces) == whole == deployment.text(prompt, max_tokens)
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_comes_after_a_stop_word_nor_the_word_itself(deployment: Deployment, model: str, stream: bool) -> None:
    with Client(deployment.grpc_url, model) as client:
        for prompt, words, expected in (
            ("stop:", ["END"], "first "),
            ("count:", ["four", "six"], "one two three "),
            ("space:", ["\n"], "   three spaces, then"),
            ("space:", [","], "   three spaces"),
            ("emoji:", ["👩‍👩‍👧"], " 🙂 hé "),
            ("plain:", ["zebra"], TAUGHT["plain:"]),
        ):
            answer = client.stream(prompt, max_tokens=LONG, stop_words=words) if stream else None
            text = (
                "".join(c.text for c in answer)
                if answer
                else client.generate(prompt, max_tokens=LONG, stop_words=words).text
            )
            assert text == expected, (prompt, words)


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_counted_by_the_server(deployment: Deployment, model: str) -> None:
    with Client(deployment.grpc_url, model) as client:
        for prompt in ("emoji:", "count:"):
            stream = client.stream(prompt, max_tokens=LONG)
            assert "".join(chunk.text for chunk in stream) == TAUGHT[prompt]
            for answer in (stream.generation, client.generate(prompt, max_tokens=LONG)):
                assert answer.num_output_tokens == len(deployment.expected(prompt, LONG))
                assert (answer.record.counted_by, answer.finish_reason) == ("server", "stop")
            assert client.generate(prompt, max_tokens=3).finish_reason == "length"


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.parametrize("model", MODELS)
def test_the_generate_endpoint_answers_curl(deployment: Deployment, model: str) -> None:
    body = {"text_input": "plain:", "max_tokens": LONG, "stream": False}
    assert post(f"{deployment.http_url}/v2/models/{model}/generate", body)["text_output"] == TAUGHT["plain:"]
    # Over plain HTTP the server itself must cut at the stop word.
    stopped = post(
        f"{deployment.http_url}/v2/models/{model}/generate", {**body, "text_input": "stop:", "stop_words": ["END"]}
    )
    assert "second" not in stopped["text_output"]


def test_the_core_takes_and_gives_token_ids(deployment: Deployment) -> None:
    ids = deployment.tokenizer("count:")["input_ids"]
    body = {
        "input_ids": ids, "input_lengths": len(ids), "request_output_len": LONG, "end_id": deployment.tokenizer.eos_token_id, "streaming": False,
    }  # fmt: skip
    answer = post(f"{deployment.http_url}/v2/models/tensorrt_llm/generate", body)
    assert answer["output_ids"] == deployment.expected("count:", LONG)
    assert answer["sequence_length"] == len(answer["output_ids"])


@pytest.mark.parametrize("model", MODELS)
def test_the_same_seed_gives_the_same_text_whatever_else_runs(deployment: Deployment, model: str) -> None:
    sampling: dict[str, Any] = {"max_tokens": 24, "temperature": 3.0, "top_k": 50}
    with Client(deployment.grpc_url, model) as client:
        alone = {seed: client.generate("count:", seed=seed, **sampling).text for seed in range(4)}
        assert len(set(alone.values())) > 1, "different seeds differ"

        def ask(seed: int) -> str:
            with Client(deployment.grpc_url, model) as other:
                return other.generate("count:", seed=seed, **sampling).text

        with ThreadPoolExecutor(8) as pool:
            crowded = list(pool.map(ask, [seed % 4 for seed in range(16)]))
        assert crowded == [alone[seed % 4] for seed in range(16)]


def test_a_broken_request_fails_alone(deployment: Deployment) -> None:
    with Client(deployment.grpc_url) as client, Client(deployment.grpc_url) as other:
        stream = iter(other.stream("count:", max_tokens=LONG))
        first = next(stream)
        for bad in (
            {"max_tokens": 300},
            {"max_tokens": 4, "beam_width": 2},
            {"max_tokens": 4, "tensors": {"lora_task_id": 3}},
        ):
            with pytest.raises(ServerError) as caught:
                client.generate("plain:", **bad)
            assert "Traceback" not in str(caught.value)
        assert first.text + "".join(chunk.text for chunk in stream) == TAUGHT["count:"]
        assert client.generate("plain:", max_tokens=LONG).text == TAUGHT["plain:"]


def test_prompts_at_the_limit_are_taken_and_beyond_it_refused(deployment: Deployment) -> None:
    ids = deployment.tokenizer("x" * 400)["input_ids"]
    with Client(deployment.grpc_url) as client:
        for length, max_tokens, accepted in ((254, 2, True), (255, 1, True), (255, 2, False), (256, 1, False)):
            prompt = deployment.tokenizer.decode(ids[:length])
            assert len(deployment.tokenizer(prompt)["input_ids"]) == length
            if accepted:
                client.generate(prompt, max_tokens=max_tokens)
            else:
                with pytest.raises(ServerError, match="256"):
                    client.generate(prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("model", MODELS)
def test_leaving_a_stream_frees_the_slot(deployment: Deployment, model: str) -> None:
    with Client(deployment.grpc_url, model) as client:
        for _ in range(4):
            for index, _chunk in enumerate(client.stream("count:", max_tokens=200, min_tokens=200)):
                if index == 2:
                    break
        deadline = threading.Event()
        for _ in range(100):
            if metric(deployment, "nv_trt_llm_request_metrics", "active") == 0:
                break
            deadline.wait(0.1)
        assert metric(deployment, "nv_trt_llm_request_metrics", "active") == 0
        assert metric(deployment, "nv_trt_llm_kv_cache_block_metrics", "used") == 0
        assert client.generate("plain:", max_tokens=LONG).text == TAUGHT["plain:"]


def metric(deployment: Deployment, family: str, label: str) -> float:
    with urllib.request.urlopen(deployment.metrics_url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(family + "{") and f'"{label}"' in line
    )


def test_metrics_have_the_names_of_the_gpu_backend(deployment: Deployment) -> None:
    with Client(deployment.grpc_url) as client:
        client.generate("plain:", max_tokens=LONG)
    assert metric(deployment, "nv_trt_llm_kv_cache_block_metrics", "tokens_per") == 32
    assert metric(deployment, "nv_trt_llm_kv_cache_block_metrics", "max") > 0
    assert metric(deployment, "nv_trt_llm_request_metrics", "max") == 16


def test_the_command_line_talks_to_it(deployment: Deployment) -> None:
    done = trtbuild("generate", "emoji:", "--url", deployment.grpc_url, "--max-tokens", LONG)
    assert done.stdout.rstrip("\n") == TAUGHT["emoji:"]
    report = json.loads(
        trtbuild("probe", "--url", deployment.grpc_url, "--requests", 4, "--max-tokens", 8, "--json").stdout
    )
    assert "schema_version" in report


def test_public_tensors_do_not_depend_on_the_target(deployment: Deployment) -> None:
    with urllib.request.urlopen(f"{deployment.http_url}/v2/models/ensemble", timeout=10) as response:
        metadata = json.loads(response.read())
    assert {"text_input", "max_tokens", "stream", "seed", "min_tokens", "stop_words"} <= {
        entry["name"] for entry in metadata["inputs"]
    }
    assert "text_output" in {entry["name"] for entry in metadata["outputs"]}
    with pytest.raises(urllib.error.HTTPError):
        post(f"{deployment.http_url}/v2/models/nowhere/generate", {"text_input": "x", "max_tokens": 1})


def test_folders_may_have_any_name_of_utf8(deployment: Deployment, tmp_path: Path) -> None:
    build = tmp_path / "dü" / "日本 🙂 e\u0301"
    shutil.copytree(deployment.build_folder, build, ignore=shutil.ignore_patterns("repository"))
    trtbuild("render", build, "--quiet")
    trtbuild("lint", build / "repository", "--quiet")
    with Server(build, ports=Ports(0, 0, 0)) as server, Client(server.grpc_url, "ensemble") as client:
        assert client.generate("accent:", max_tokens=LONG).text == TAUGHT["accent:"]
