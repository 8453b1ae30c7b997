"""Load tests of a real tritonserver: over our own gRPC, grpcio and HTTP, with the counts that the model's answers have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import TAUGHT, Deployment, trtbuild

pytestmark = pytest.mark.triton


def prompts(folder: Path) -> Path:
    """Write the prompts of the taught answers, one per line."""
    path = folder / "prompts.txt"
    path.write_text("\n".join(TAUGHT) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("transport", ["lean", "grpcio"])
def test_every_token_of_every_answer_is_counted(
    deployment: Deployment, model: str, transport: str, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    trtbuild(
        "bench", "--url", deployment.grpc_url, "--model", model, "--transport", transport, "--dataset", prompts(tmp_path), "--free-length",
        "--output-tokens", 12, "--concurrency", 4, "--requests", 2 * len(TAUGHT), "--allow-invalid", "-q", "-o", out,
    )  # fmt: skip
    (measured,) = json.loads(out.read_text())["runs"]
    assert measured["requests"]["ok"] == 2 * len(TAUGHT) and measured["requests"]["failed"] == 0
    assert measured["tokens"]["counted_by"] == "server"
    columns = measured["records"]["columns"]
    expected = [len(deployment.expected(prompt, 12)) for prompt in TAUGHT]
    for session, tokens in zip(columns["session"], columns["output_tokens"], strict=True):
        # The token that ends an answer may be counted as one.
        assert tokens - expected[session % len(TAUGHT)] in (0, 1)


def test_http_answers_the_same(deployment: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    trtbuild(
        "bench", "--url", f"http://{deployment.http_url.removeprefix('http://')}", "--api", "triton-http", "--model", "ensemble",
        "--dataset", prompts(tmp_path), "--output-tokens", 12, "--requests", len(TAUGHT), "--allow-invalid", "-q", "-o", out,
    )  # fmt: skip
    (measured,) = json.loads(out.read_text())["runs"]
    assert measured["requests"]["ok"] == len(TAUGHT)
    assert measured["latencies_ns"]["ttft"]["n"] == len(TAUGHT)


def test_an_open_loop_of_a_real_server_reaches_its_rate(deployment: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    trtbuild(
        "bench", "--url", deployment.grpc_url, "--prompt", "count:", "--output-tokens", 4, "--rate", 5, "--requests", 20,
        "--allow-invalid", "-q", "-o", out,
    )  # fmt: skip
    (measured,) = json.loads(out.read_text())["runs"]
    assert measured["requests"]["ok"] == 20
    assert 2 < measured["rates"]["offered_requests_per_s"] < 12
