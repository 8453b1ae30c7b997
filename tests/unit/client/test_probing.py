"""A whole probe against the mock, whose times are known. Tolerance: never early, and 250 ms late on a busy machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtbuild.cli.edge import run
from trtbuild_client import Client, Probe
from trtbuild_client.errors import ClientError, InvalidRequest
from trtbuild_client.mock.distributions import constant, parse_counts
from trtbuild_client.mock.faults import parse_share
from trtbuild_client.mock.options import MockOptions
from trtbuild_client.mock.server import running
from trtbuild_client.probing import Extras
from trtbuild_client.probing import run as probe
from trtbuild_client.scenarios import prompt_of
from trtbuild_client.thresholds import Threshold

_MS = 1_000_000


def milliseconds(value_ns: float | None, least: float) -> bool:
    return value_ns is not None and least * _MS <= value_ns <= (least + 250) * _MS


def test_chunks_and_tokens_are_told_apart() -> None:
    options = MockOptions(itl_ns=constant(20 * _MS), tokens_per_response=parse_counts("4"))
    with running(options) as mock, Client(mock.grpc) as client:
        values = probe(client, Probe(requests=2, warmup=0, options={"max_tokens": 12}), Extras(None)).to_json()
    assert milliseconds(values["chunk_gaps_ns"]["mean"], 75)
    assert values["chunk_gaps_ns"]["n"] == 4
    assert values["latencies_ns"]["itl"]["n"] == 16
    assert 18 * _MS <= values["latencies_ns"]["itl"]["mean"] <= 85 * _MS


def test_queue_prefill_and_decode_come_from_the_server() -> None:
    """Four requests, one place: the last one waits for three others of 60 ms."""
    options = MockOptions(ttft_ns=constant(40 * _MS), itl_ns=constant(10 * _MS), max_concurrency=1)
    with running(options) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=4, concurrency=4, warmup=0, options={"max_tokens": 3}), Extras(None))
    times = result.server_times
    assert times is not None
    assert times.queue_ns.percentiles[0] is not None and times.queue_ns.percentiles[0] >= 60 * _MS
    assert times.prefill_ns.mean == pytest.approx(40 * _MS)
    assert times.decode_ns.mean == pytest.approx(20 * _MS)


def test_the_first_request_is_told_from_the_warm_ones() -> None:
    with running(MockOptions(cold_ns=300 * _MS)) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=3, warmup=1, options={"max_tokens": 2}), Extras(None))
    first, warm = result.all_scenarios
    assert (first.name, first.ttft_ns.n, warm.ttft_ns.n) == ("first request", 1, 3)
    assert first.ttft_ns.mean is not None and warm.ttft_ns.mean is not None
    assert first.ttft_ns.mean >= 300 * _MS > warm.ttft_ns.mean


def test_a_prompt_that_is_sent_again_is_found_in_the_cache() -> None:
    options = MockOptions(prefill_ns_per_token=_MS // 2, has_prompt_cache=True)
    with running(options) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=1, warmup=0), Extras(None, has_cache=True))
    new, again = result.scenarios
    assert (new.ttft_ns.n, again.ttft_ns.n, new.input_tokens) == (4, 4, 512)
    assert milliseconds(new.ttft_ns.percentiles[0], 256)
    assert again.ttft_ns.percentiles[0] is not None and again.ttft_ns.percentiles[0] < 256 * _MS
    assert (new.reused_share, again.reused_share) == (0, 1)


def test_the_first_token_is_timed_by_length_of_the_prompt() -> None:
    with running(MockOptions(prefill_ns_per_token=_MS)) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=1, warmup=0), Extras(None, prompt_lengths=(20, 200)))
    short, long = result.scenarios
    assert (short.words, short.input_tokens, long.words, long.input_tokens) == (20, 20, 200, 200)
    assert milliseconds(short.ttft_ns.percentiles[0], 20) and milliseconds(long.ttft_ns.percentiles[0], 200)


def test_prompts_have_their_length_and_share_no_beginning() -> None:
    prompts = [prompt_of(length) for length in (1, 2, 300, 300)]
    assert [len(prompt.split()) for prompt in prompts] == [1, 2, 300, 300]
    assert len({prompt.split()[0] for prompt in prompts}) == 4


@pytest.mark.parametrize(("limit_ms", "is_ok"), [(10_000, True), (20, False)])
def test_limits_are_held_against_what_was_measured(limit_ms: int, is_ok: bool) -> None:
    limits = [Threshold("ttft", 95, limit_ms * _MS), Threshold("e2e", 50, limit_ms * _MS)]
    with running(MockOptions(ttft_ns=constant(50 * _MS))) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=2, warmup=0, options={"max_tokens": 2}), Extras(None, thresholds=limits))
    assert [check.is_ok for check in result.checks] == [is_ok, is_ok]


def test_failed_requests_pass_no_limit_on_the_end() -> None:
    options = MockOptions(faults=(parse_share("error=1"),))
    with running(options) as mock, Client(mock.grpc) as client:
        limits = [Threshold("e2e", 95, 10**12), Threshold("ttft", 95, 10**12)]
        result = probe(client, Probe(requests=2, warmup=0), Extras(None, thresholds=limits))
    assert [check.is_ok for check in result.checks] == [False, False]
    json.dumps(result.to_json(), allow_nan=False)


def test_what_cannot_be_measured_is_refused_before_anything_is_sent() -> None:
    with running() as mock, Client(mock.grpc) as client:
        for extras in (
            Extras(None, thresholds=[Threshold("ttft", 95, 1)]),
            Extras(None, has_cache=True),
            Extras(None, prompt_lengths=(5,)),
        ):
            with pytest.raises(InvalidRequest):
                probe(client, Probe(requests=1, is_streaming=False), extras)
        with pytest.raises(InvalidRequest, match="0 words"):
            probe(client, Probe(requests=1), Extras(None, prompt_lengths=(0,)))
        with pytest.raises(ClientError, match="127.0.0.1:1"):
            probe(client, Probe(requests=1), Extras("127.0.0.1:1"))
        assert mock.schedule()["requests"] == []


def test_short_answers_are_noticed() -> None:
    with running(MockOptions(output_tokens=43)) as mock, Client(mock.grpc) as client:
        result = probe(client, Probe(requests=2, warmup=0, options={"max_tokens": 512}), Extras(None))
    assert any("86 of 1024 tokens (8%)" in note for note in result.notes())
    assert result.report.output_tokens == 86


@pytest.mark.parametrize("options", [MockOptions(variant="llmapi"), MockOptions(release="0.17"), MockOptions()])
def test_every_variant_can_be_probed_over_grpc_and_http(options: MockOptions) -> None:
    model = "tensorrt_llm" if options.variant == "llmapi" else "ensemble"
    with running(options) as mock:
        for url in (mock.grpc, f"http://{mock.http}"):
            with Client(url, model) as client:
                values = probe(client, Probe(requests=2, warmup=1, options={"max_tokens": 6}), Extras(None)).to_json()
            assert (values["requests"]["ok"], values["output_tokens"]) == (2, 12)
            # Release 0.17 gives numbers of blocks, but no times.
            assert values["server_times"]["queue_ns"]["n"] == (0 if options.release == "0.17" else 2)
            assert any("cannot be told apart" in note for note in values["notes"]) == (options.release == "0.17")


def cli(mock: Any, *arguments: str) -> list[str]:
    common = ["--requests", "3", "--warmup", "1", "--max-tokens", "4", "--quiet"]
    return ["probe", "--url", mock.grpc, *common, *arguments]


def test_the_command_prints_everything_that_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    with running(MockOptions(has_prompt_cache=True, itl_ns=constant(_MS))) as mock:
        assert run(cli(mock, "--metrics-url", mock.metrics, "--cache", "--prompt-lengths", "16,32")) == 0
        text = capsys.readouterr().out
        assert run(cli(mock, "--metrics-url", mock.metrics, "--json")) == 0
        values = json.loads(capsys.readouterr().out)
    for part in (
        "between responses", "in the server's queue", "prefill in the server", "TTFT in ms, first request", "TTFT in ms, warm",
        "TTFT in ms, prompt not cached, 512 tokens", "TTFT in ms, 16 words, 16 tokens", "KV cache used", "note: no time to first response",
    ):  # fmt: skip
        assert part in text, part
    assert values["metrics"]["gauges"]["kv_cache_fraction"] is not None
    assert values["metrics"]["requests"] == 4
    assert values["ready_ns"] > 0
    assert [each["name"] for each in values["scenarios"]] == ["first request", "warm"]


@pytest.mark.parametrize(
    ("option", "code"),
    [("--max-ttft-p95=1ms", 3), ("--max-ttft-p50=1ms", 3), ("--max-e2e-p99=10s", 0), ("--max-itl-p95=10s", 0)],
)
def test_the_command_exits_3_beyond_a_limit(option: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with running(MockOptions(ttft_ns=constant(20 * _MS))) as mock:
        assert run(cli(mock, option)) == code
    errors = capsys.readouterr().err
    assert ("more than 1.0 ms" in errors) == (code == 3)


def test_a_probe_that_cannot_read_metrics_says_so_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as mock:
        assert run(cli(mock)) == 0
        assert "--metrics-url" in capsys.readouterr().out
        assert run(cli(mock, "--no-metrics")) == 0
        assert "--metrics-url" not in capsys.readouterr().out
        assert run(cli(mock, "--prompt-lengths", "12,x")) == 2
