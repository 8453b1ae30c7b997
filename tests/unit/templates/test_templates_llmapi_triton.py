"""The model of target pytorch in a real tritonserver, around a stand-in for TensorRT-LLM, asked by the client and by hand."""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import T0, llama_tensors, write_safetensors
from tests.unit.templates import tiny_tokenizers

from trtbuild.repo.deployment import context_of
from trtbuild.repo.render import render
from trtbuild.serve.supervisor import Server
from trtbuild.spec import parse
from trtbuild_client import Client, errors

pytestmark = pytest.mark.triton

FAKES = Path(__file__).parents[2] / "fakes"
MODEL = "tensorrt_llm"
WAIT_SECONDS = 60
MANY = 100_000


@dataclass(frozen=True)
class Deployed:
    """A running server, and what the stand-in wrote about its requests."""

    server: Server
    log: Path

    def client(self) -> Client:
        return Client(self.server.grpc_url, MODEL, timeout_s=WAIT_SECONDS)

    def await_begin(self, prompt: str) -> None:
        """Return when the stand-in has got the request of a prompt."""
        deadline, begun = time.monotonic() + WAIT_SECONDS, self.log.with_suffix(".begun")
        while not begun.exists() or prompt not in map(json.loads, begun.read_text().splitlines()):
            assert time.monotonic() < deadline, "the request never began"
            time.sleep(0.02)

    def await_end(self, prompt: str) -> dict[str, Any]:
        """Return how the stand-in ended the request of a prompt."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            lines = self.log.read_text().splitlines() if self.log.exists() else []
            found = [entry for line in lines if (entry := json.loads(line))["prompt"] == prompt]
            if found:
                return dict(found[0])
            time.sleep(0.02)
        raise AssertionError("the request never ended")


def deploy(folder: Path, *, streaming: bool = True) -> Path:
    """Render a repository whose model finds the stand-in; return it."""
    checkpoint = folder / "checkpoint"
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), checkpoint)
    (checkpoint / "config.json").write_text(json.dumps(T0))
    write_safetensors(checkpoint / "model.safetensors", llama_tensors(T0))
    data = {"model": {"path": str(checkpoint)}, "target": "pytorch", "serving": {"streaming": streaming}}
    context = context_of(parse(data, origin="test"), checkpoint_dir=checkpoint)
    repository = render(context, folder / "repository").path
    shutil.copytree(FAKES / "tensorrt_llm", repository / MODEL / "1" / "tensorrt_llm")
    return repository


class CompletingServer(Server):
    """A server that asks models to complete their configurations; trtbuild and launch_triton_server.py tell it not to."""

    def _command(self, *arguments: Any) -> list[str]:
        return [word for word in super()._command(*arguments) if word != "--disable-auto-complete-config"]


@pytest.fixture(scope="module", params=[Server, CompletingServer])
def deployed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployed")
    repository = deploy(folder)
    with request.param(repository) as server:
        yield Deployed(server, folder / "checkpoint" / "llm.log")


def test_a_stream_gives_each_piece_once_and_says_how_it_ended(deployed: Deployed) -> None:
    with deployed.client() as client:
        stream = client.stream("one two three", max_tokens=5, top_k=1)
        pieces = [chunk.text for chunk in stream]
    assert pieces == ["one", " two", " three", " one", " two"]
    assert (stream.generation.text, stream.generation.finish_reason) == ("one two three one two", "length")
    assert stream.generation.warnings == ()


def test_a_whole_answer_is_without_the_prompt(deployed: Deployed) -> None:
    with deployed.client() as client:
        generation = client.generate("one two", max_tokens=3, stop_words=["never"], return_perf_metrics=True)
    assert (generation.text, generation.finish_reason) == ("one two one", "length")
    server = generation.record.server
    assert server is not None
    assert (server.kv_cache_reused_blocks, server.ttft_ns, server.queue_ns) == (3, 2000, 1000)


def test_a_stop_word_ends_the_answer_in_the_server(deployed: Deployed) -> None:
    with deployed.client() as client:
        generation = client.generate("one two STOP four", max_tokens=MANY, stop_words=["STOP"])
    assert (generation.text, generation.finish_reason) == ("one two ", "stop")


def test_text_of_all_the_world_comes_back_whole(deployed: Deployed) -> None:
    with deployed.client() as client:
        assert "".join(chunk.text for chunk in client.stream("é家 👩‍👩‍👧 я", max_tokens=3)) == "é家 👩‍👩‍👧 я"


@pytest.mark.parametrize(
    ("prompt", "tensors", "message"),
    [
        ("a prompt that is too long", {}, "exceeds max_seq_len"),
        ("x", {"sampling_param_best_of": 9}, "beyond max_beam_width"),
        ("x", {"sampling_param_best_of": 0}, "sampling_param_best_of is 0, need 1 or more"),
        ("this breaks", {}, "CUDA error"),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_a_bad_request_gets_its_reason_and_the_server_serves_on(
    deployed: Deployed, prompt: str, tensors: dict[str, Any], message: str, streams: bool
) -> None:
    with deployed.client() as client:
        with pytest.raises(errors.ClientError) as error:
            list(client.request(prompt, is_streaming=streams, tensors=tensors, max_tokens=4))
        assert message in str(error.value)
        assert "Traceback" not in str(error.value)
        assert client.generate("fine", max_tokens=1).text == "fine"


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_cancels_stops_the_engine(deployed: Deployed, streams: bool) -> None:
    prompt = f"leaving {streams}"
    with deployed.client() as client, ThreadPoolExecutor(1) as pool:
        stream = client.request(prompt, is_streaming=streams, max_tokens=MANY)
        if streams:
            for _ in stream:
                break
        else:
            reading = pool.submit(list, stream)
            deployed.await_begin(prompt)
            assert client.cancel(stream.request_id)
            reading.result()
    end = deployed.await_end(prompt)
    assert end["ended"] == "aborted"
    assert end["tokens"] < MANY


def test_stop_ends_a_stream_by_its_id_with_an_error_that_says_so(deployed: Deployed) -> None:
    """Before container 26.04 the stock model left such a stream without an end."""
    with deployed.client() as client:
        stream = client.stream("to be stopped", max_tokens=MANY, request_id="named")
        with pytest.raises(errors.ClientError, match="the request was cancelled"):
            for index, _ in enumerate(stream):
                if index == 1:
                    _stop(deployed.server.grpc_url, "named")
    assert deployed.await_end("to be stopped")["ended"] == "aborted"


def test_many_streams_at_once_do_not_mix(deployed: Deployed) -> None:
    texts = [f"{index} é家 {index * 7}" for index in range(32)]
    with deployed.client() as client, ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: "".join(c.text for c in client.stream(text, max_tokens=3)), texts))
    assert answers == texts


def test_outputs_are_of_the_declared_types(deployed: Deployed) -> None:
    """The stock model sends every number as text."""
    import tritonclient.grpc as grpc

    with grpc.InferenceServerClient(deployed.server.grpc_url) as client:
        declared = {each.name: each.datatype for each in client.get_model_metadata(MODEL).outputs}
        result = _ask(
            client,
            grpc,
            sampling_param_return_perf_metrics=True,
            return_cumulative_logprob=True,
            return_finish_reason=True,
        )
    sent = {each.name: each.datatype for each in result.get_response().outputs}
    assert len(sent) >= 14
    assert sent == {name: declared[name] for name in sent}


def test_the_command_line_prints_an_answer(deployed: Deployed, cli: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--url", deployed.server.grpc_url, "--model", MODEL, "--max-tokens", "4", "-q")
    assert cli("generate", "one two three", *options) == (0, "one two three one\n", "")
    assert cli("generate", "one two three", "--no-stream", *options) == (0, "one two three one\n", "")


def test_a_model_that_is_not_decoupled_answers_at_once_and_refuses_streams(tmp_path: Path) -> None:
    server = Server(deploy(tmp_path, streaming=False))
    with server, Client(server.grpc_url, MODEL, timeout_s=WAIT_SECONDS) as client:
        assert client.generate("one two", max_tokens=3).text == "one two one"
        with pytest.raises(errors.StreamingUnsupported):
            client.stream("one two", max_tokens=3)
        with pytest.raises(errors.ClientError, match="streaming needs a decoupled model"):
            client.generate("one two", max_tokens=3, tensors={"streaming": True})


def _ask(client: Any, grpc: Any, **flags: bool) -> Any:
    tensors = [grpc.InferInput("text_input", [1], "BYTES").set_data_from_numpy(np.array([b"one two"], np.object_))]
    for name in flags:
        tensors.append(grpc.InferInput(name, [1], "BOOL").set_data_from_numpy(np.array([True])))
    responses: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: responses.put((result, error)))
    client.async_stream_infer(MODEL, tensors)
    result, error = responses.get(timeout=WAIT_SECONDS)
    assert error is None
    return result


def _stop(url: str, request_id: str) -> None:
    import tritonclient.grpc as grpc

    responses: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(url) as client:
        text = grpc.InferInput("text_input", [1], "BYTES").set_data_from_numpy(np.array([b""], np.object_))
        stop = grpc.InferInput("stop", [1], "BOOL").set_data_from_numpy(np.array([True]))
        client.start_stream(lambda result, error: responses.put(error))
        client.async_stream_infer(MODEL, [text, stop], request_id=request_id, enable_empty_final_response=True)
        assert responses.get(timeout=WAIT_SECONDS) is None
