"""The shipped models in a real tritonserver, around a scripted core: streams, errors, cancellation, many at once."""

from __future__ import annotations

import json
import queue
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.templates import tiny_tokenizers

from trtbuild.repo.deployment import context_of
from trtbuild.repo.locate import templates_dir
from trtbuild.repo.render import render
from trtbuild.serve.supervisor import Server
from trtbuild.spec import parse

pytestmark = pytest.mark.triton

MODELS = ("ensemble", "tensorrt_llm_bls")
WAIT_SECONDS = 60
#: Tokens that take longer than any test waits for one to be stopped.
MANY = 10_000
TEXT = "a🙂b é家 👩‍👩‍👧 x"


@dataclass
class Answer:
    """What came back for one request."""

    texts: list[str] = field(default_factory=list)
    error: str = ""
    was_final: bool = False


@dataclass(frozen=True)
class Deployed:
    """A running server and the core's log."""

    grpc_url: str
    log: Path

    def ask(
        self, model: str, text: str, max_tokens: int, *, leave_after: int = 0, request_id: str = "", **inputs: Any
    ) -> Answer:
        """Send one request on a stream of its own; leave it after so many responses, if asked to."""
        import tritonclient.grpc as grpc

        values = {"text_input": [[text.encode()]], "max_tokens": [[max_tokens]], "stream": [[True]], **inputs}
        answer, responses = Answer(), queue.Queue[Any]()
        with grpc.InferenceServerClient(self.grpc_url) as client:
            client.start_stream(lambda result, error: responses.put((result, error)))
            client.async_stream_infer(
                model,
                [_tensor(grpc, name, value) for name, value in values.items()],
                request_id=request_id or uuid.uuid4().hex,
                enable_empty_final_response=True,
            )
            while not answer.was_final:
                result, error = responses.get(timeout=WAIT_SECONDS)
                if error is not None:
                    answer.error = str(error)
                    break
                output = result.as_numpy("text_output")
                answer.texts += [] if output is None else [output.reshape(-1)[0].decode()]
                answer.was_final = result.get_response().parameters["triton_final_response"].bool_param
                if leave_after and len(answer.texts) == leave_after:
                    client.stop_stream(cancel_requests=True)
                    break
        return answer

    def stop(self, request_id: str) -> None:
        """Tell the core to end the request of that id."""
        import tritonclient.grpc as grpc

        values = {"input_ids": [[0]], "input_lengths": [[1]], "request_output_len": [[1]], "stop": [[True]]}
        responses = queue.Queue[Any]()
        with grpc.InferenceServerClient(self.grpc_url) as client:
            client.start_stream(lambda result, error: responses.put(error))
            client.async_stream_infer(
                "tensorrt_llm",
                [_tensor(grpc, name, value) for name, value in values.items()],
                request_id=request_id,
                enable_empty_final_response=True,
            )
            assert responses.get(timeout=WAIT_SECONDS) is None

    def await_end(self, prompt_tokens: int) -> dict[str, Any]:
        """Return how the core ended the one request whose prompt had so many tokens."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.ends(prompt_tokens) and time.monotonic() < deadline:
            time.sleep(0.02)
        [end] = self.ends(prompt_tokens)
        return end

    def ends(self, prompt_tokens: int) -> list[dict[str, Any]]:
        """Return how the core ended the requests whose prompt had so many tokens."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [entry for line in lines if (entry := json.loads(line))["prompt"] == prompt_tokens]


def _tensor(grpc: Any, name: str, value: Any) -> Any:
    kinds = {
        bytes: ("BYTES", np.object_),
        bool: ("BOOL", np.bool_),
        int: ("INT32", np.int32),
        float: ("FP32", np.float32),
    }
    wire, dtype = kinds[type(value[0][0])]
    array = np.array(value, dtype=dtype)
    tensor = grpc.InferInput(name, list(array.shape), wire)
    tensor.set_data_from_numpy(array)
    return tensor


def render_scripted(folder: Path, *, tokenizer_config: Any = None, **sections: Any) -> tuple[Path, Path]:
    """Render a repository around the scripted core; return it and the file of the core's log."""
    checkpoint = folder / "checkpoint"
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), checkpoint / "tokenizer", **(tokenizer_config or {}))
    (checkpoint / "config.json").write_text(
        '{"architecture": "scripted", "vocab_size": 260, "max_position_embeddings": 512}'
    )
    (checkpoint / "rank0.safetensors").write_bytes(b"not read")
    templates = folder / "templates"
    shutil.copytree(templates_dir(), templates, ignore=shutil.ignore_patterns("__pycache__", "reference"))
    core = templates / "reference" / "tensorrt_llm"
    (core / "1").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("scripted_core.py"), core / "1" / "model.py")
    (core / "config.pbtxt.j2").write_text(
        '{% from "_macros/config.pbtxt.j2" import parameter %}\nbackend: "python"\n'
        '{% include "_macros/core.pbtxt.j2" %}\n{{ parameter("gpt_model_path", checkpoint_dir) }}\n'
    )
    deployment = parse({"model": {"path": str(checkpoint)}, **sections}, origin="test")
    repository = render(
        context_of(deployment, checkpoint_dir=checkpoint), folder / "repository", templates=templates
    ).path
    return repository, checkpoint / "core.log"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    repository, log = render_scripted(tmp_path_factory.mktemp("deployed"), serving={"bls_instances": 8})
    with Server(repository) as server:
        yield Deployed(server.grpc_url, log)


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_gives_whole_characters_and_the_text_of_the_answer_at_once(deployed: Deployed, model: str) -> None:
    tokens = len(TEXT.encode())
    streamed = deployed.ask(model, TEXT, tokens)
    at_once = deployed.ask(model, TEXT, tokens, stream=[[False]])
    assert "".join(streamed.texts) == TEXT
    assert at_once.texts == [TEXT]
    assert len(streamed.texts) == tokens
    assert streamed.was_final
    assert at_once.was_final


@pytest.mark.parametrize("model", MODELS)
def test_a_character_that_is_cut_off_is_left_out(deployed: Deployed, model: str) -> None:
    assert "".join(deployed.ask(model, "a🙂b", 3).texts) == "a"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("text", "max_tokens", "message"),
    [
        ("x", 0, "max_tokens"),
        ("x", 999, "refused by the core"),
        ("x" * 512, 5, "the prompt has 512 tokens, and prompt and answer together at most 512"),
    ],
)
def test_an_error_ends_its_request_and_says_what_is_wrong(
    deployed: Deployed, model: str, text: str, max_tokens: int, message: str
) -> None:
    answer = deployed.ask(model, text, max_tokens)
    assert message in answer.error
    assert "Traceback" not in answer.error
    assert deployed.ask(model, "fine", 4).texts == list("fine")


@pytest.mark.parametrize("model", MODELS)
def test_many_streams_at_once_do_not_mix(deployed: Deployed, model: str) -> None:
    texts = [f"{index} é家👩‍👩‍👧 {index * 7}" for index in range(32)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: deployed.ask(model, text, len(text.encode())), texts))
    assert [("".join(answer.texts), answer.error) for answer in answers] == [(text, "") for text in texts]


def test_bls_cuts_the_text_at_stop_words_and_stops_the_core(deployed: Deployed) -> None:
    text = "one two END three four"
    answer = deployed.ask("tensorrt_llm_bls", text, 400, stop_words=[[b"E", b"END"]])
    assert "".join(answer.texts) == "one two "
    assert answer.was_final
    assert [entry["ended"] for entry in deployed.ends(len(text))] == ["stopped"]


@pytest.mark.parametrize("stream", [True, False])
def test_bls_stops_the_core_when_its_client_leaves(deployed: Deployed, stream: bool) -> None:
    prompt = "leaving " * (3 + stream)
    if stream:
        deployed.ask("tensorrt_llm_bls", prompt, MANY, leave_after=3)
    else:
        _leave_at_once(deployed, "tensorrt_llm_bls", prompt)
    end = deployed.await_end(len(prompt))
    assert end["ended"] == "stopped"
    assert end["tokens"] < MANY


def test_an_ensemble_is_stopped_at_the_core_by_the_id_of_its_request(deployed: Deployed) -> None:
    """Triton (24.10) does not pass the cancellation of an ensemble on to its members; the id reaches them."""
    prompt, name = "leaving " * 6, uuid.uuid4().hex
    deployed.ask("ensemble", prompt, MANY, leave_after=3, request_id=name)
    deployed.stop(name)
    end = deployed.await_end(len(prompt))
    assert end["ended"] == "stopped"
    assert end["tokens"] < MANY


def _leave_at_once(deployed: Deployed, model: str, prompt: str) -> None:
    """Start an answer that comes at once, and leave as soon as the core is at work on it."""
    import tritonclient.grpc as grpc

    values = {"text_input": [[prompt.encode()]], "max_tokens": [[MANY]], "stream": [[False]]}
    with grpc.InferenceServerClient(deployed.grpc_url) as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer(model, [_tensor(grpc, n, v) for n, v in values.items()], request_id=uuid.uuid4().hex)
        deployed.ask("ensemble", "meanwhile", 30)
        client.stop_stream(cancel_requests=True)


@pytest.mark.slow
def test_bls_survives_hundreds_of_streams(deployed: Deployed) -> None:
    def run(index: int) -> bool:
        text = f"{index} é家👩‍👩‍👧 " * 5
        return "".join(deployed.ask("tensorrt_llm_bls", text, len(text.encode())).texts) == text

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(run, range(400)))
