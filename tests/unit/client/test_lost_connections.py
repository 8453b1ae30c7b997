"""What is said when a connection breaks within an answer, a model is unknown, a prompt is blank: the same over gRPC and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from trtbuild_client import AsyncClient, Client
from trtbuild_client.errors import ConnectError, InvalidRequest, ModelNotFound
from trtbuild_client.http_documents import known_models
from trtbuild_client.mock.server import running
from trtbuild_client.stats import Distribution
from trtbuild_client.thresholds import METRICS, Threshold, check, complaint

Cli = Callable[..., tuple[int, str, str]]
_MODELS = "Models of this server: ensemble, postprocessing, preprocessing, tensorrt_llm, tensorrt_llm_bls."


@pytest.fixture(scope="module", params=["grpc", "http"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with running() as mock:
        yield mock.grpc if request.param == "grpc" else f"http://{mock.http}"


@pytest.mark.parametrize(("tokens", "said"), [(1, "after 1 token ("), (3, "after 3 tokens (")])
def test_a_connection_that_breaks_within_an_answer_is_called_lost(url: str, tokens: int, said: str) -> None:
    prompt = f"[mock fault=drop at={tokens}]"

    async def ask() -> ConnectError:
        async with AsyncClient(url) as client:
            with pytest.raises(ConnectError) as caught:
                async for _ in client.stream(prompt, max_tokens=8):
                    pass
            return caught.value

    with Client(url) as client, pytest.raises(ConnectError) as caught:
        for _ in client.stream(prompt, max_tokens=8):
            pass
    for error in (caught.value, asyncio.run(ask())):
        assert "was lost" in error.message and said in error.message
        assert "server's log" in error.hint and "Start the server" not in error.hint
        assert len(error.partial_text.split()) == tokens and isinstance(error.__cause__, ConnectError)


def test_generate_puts_what_went_wrong_on_a_line_of_its_own(url: str, cli: Cli) -> None:
    code, out, err = cli("generate", "[mock fault=drop at=3]", "--url", url)
    assert code == 1 and len(out.split()) == 3 and out.endswith("\n") and out.count("\n") == 1
    assert err.startswith("error: the connection to ")
    code, out, err = cli("generate", "[mock fault=drop at=0]", "--url", url)
    assert (code, out) == (1, "") and "was lost" not in err


def test_an_unknown_model_is_answered_with_the_servers_models(url: str, cli: Cli) -> None:
    async def ask() -> str:
        async with AsyncClient(url, "nope") as client:
            with pytest.raises(ModelNotFound) as caught:
                await client.generate("x")
            return caught.value.hint

    assert asyncio.run(ask()) == _MODELS
    api = "triton-http" if url.startswith("http") else "triton-grpc"
    for command in (("generate", "x"), ("probe",), ("bench", "--api", api)):
        code, _, err = cli(*command, "--url", url, "--model", "nope")
        assert code == 1 and _MODELS in err, err


@pytest.mark.parametrize(
    ("status", "data", "hint"),
    [
        (
            200,
            b'[{"name": "b"}, {"name": "a", "version": "1"}, {"name": "a", "version": "2"}]',
            "Models of this server: a, b.",
        ),
        (200, b"[]", "Models of this server: none."),
        (200, b'{"error": "no"}', ""),
        (200, b"<html>", ""),
        (405, b'[{"name": "a"}]', ""),
    ],
)
def test_an_index_of_models_that_is_none_gives_no_hint(status: int, data: bytes, hint: str) -> None:
    assert known_models(status, data) == hint


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_a_blank_prompt_is_refused_everywhere(url: str, prompt: str, cli: Cli) -> None:
    with Client(url) as client, pytest.raises(InvalidRequest, match="the prompt is blank"):
        client.generate(prompt)
    api = "triton-http" if url.startswith("http") else "triton-grpc"
    for command in (("generate", prompt), ("probe", "--prompt", prompt), ("bench", "--api", api, "--prompt", prompt)):
        code, out, err = cli(*command, "--url", url)
        assert (code, out) == (2, "") and "prompt" in err, err


def test_a_limit_on_what_has_no_value_says_why() -> None:
    nothing = Distribution(0, None, (None,) * 4)
    limits = [Threshold(name, 95, 5e6) for name in METRICS]
    checks = check(limits, dict.fromkeys(METRICS.values(), nothing), has_failures=False)
    for each, why in zip(
        checks, ("no token came", "no answer had two", "no answer had two", "no answer came"), strict=True
    ):
        found = complaint([each])
        assert found is not None and "more than" not in found[0] and why in found[0] and "queue" not in found[1]


def test_probe_says_that_one_token_has_no_time_per_token(url: str, cli: Cli) -> None:
    code, _, err = cli("probe", "--url", url, "--requests", 2, "--max-tokens", 1, "--max-tpot-p95", "5ms")
    assert code == 3 and "tpot p95 is unknown" in err and "takes two" in err and "--max-tokens" in err
