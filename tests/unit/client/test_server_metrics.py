"""Prometheus text, and what an LLM server's metrics say and do not say."""

from __future__ import annotations

import math
import urllib.request

import pytest

from trtbuild_client import Client, ConnectError, InvalidRequest
from trtbuild_client.mock.server import running
from trtbuild_client.prometheus import Sample, parse, select, total
from trtbuild_client.server_metrics import Watcher, compare, gauges, scrape

TEXT = r"""
# HELP nv_inference_count Number of inferences
nv_inference_count{model="ensemble",version="1"} 1e+06
plain 3
spaced   { a = "1" , b="2", }   4.5  1700000000000
labels{text="a,b} c\"d\\e\nf",empty=""} 0
top_bucket{le="+Inf"} +Inf
odd NaN
low -Inf
broken{a="1 5
broken{a=1} 5
broken 5 6 7 8
1name 2
# TYPE later counter
"""


def test_every_form_of_a_line_is_read_and_broken_ones_are_left_out() -> None:
    samples = {sample.name: sample for sample in parse(TEXT)}
    assert list(samples) == ["nv_inference_count", "plain", "spaced", "labels", "top_bucket", "odd", "low"]
    assert samples["nv_inference_count"].value == 1e6
    assert samples["spaced"] == Sample("spaced", {"a": "1", "b": "2"}, 4.5)
    assert samples["labels"].labels == {"text": 'a,b} c"d\\e\nf', "empty": ""}
    assert samples["labels"].value == 0
    assert samples["top_bucket"].value == math.inf and samples["low"].value == -math.inf
    assert math.isnan(samples["odd"].value)


def test_what_is_not_there_is_unknown_and_zero_is_a_value() -> None:
    samples = parse('a{m="1"} 0\na{m="2"} 5\na{m="3"} 0\n')
    assert total(samples, "a") == 5
    assert total(samples, "a", m="1") == 0
    assert total(samples, "a", m="4") is None
    assert total(samples, "b") is None
    assert len(select(samples, "a")) == 3


ENGINE = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
nv_inference_first_response_histogram_ms_count{model="ensemble",version="1"} 3
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 2
nv_inference_pending_request_count{model="preprocessing",version="1"} 1
"""


def counters(ensemble: int, core: int, queue_us: int) -> str:
    return (
        "".join(
            f'nv_inference_request_success{{model="{name}",version="1"}} {number}\n'
            for name, number in (("ensemble", ensemble), ("tensorrt_llm", core))
        )
        + f'nv_inference_queue_duration_us{{model="ensemble",version="1"}} {queue_us}\n'
    )


def test_gauges_are_read_by_their_labels() -> None:
    found = gauges(parse(ENGINE))
    assert (found["waiting_requests"], found["active_requests"], found["kv_cache_fraction"]) == (0, 7, 0.25)
    assert found["pending_requests"] == 3
    assert found["paused_requests"] is None


def test_counters_are_compared_over_the_run_only() -> None:
    before, after = parse(ENGINE + counters(100, 100, 5000)), parse(ENGINE + counters(104, 104, 7000))
    found = compare(before, after, gauges(after), model="ensemble", is_decoupled=True)
    assert (found.requests, found.queue_us, found.compute_us, found.notes) == (4, 500, None, ())


def test_a_model_that_counts_nothing_is_noticed_and_not_taken_for_idle() -> None:
    before, after = parse(ENGINE + counters(0, 0, 0)), parse(ENGINE + counters(59, 0, 0))
    found = compare(before, after, {}, model="ensemble", is_decoupled=True)
    assert found.requests == 59
    assert any("'tensorrt_llm' counts none" in note for note in found.notes)


@pytest.mark.parametrize(("is_decoupled", "why"), [(True, "histogram_latencies=true"), (False, "not decoupled")])
def test_what_a_server_does_not_export_is_explained(is_decoupled: bool, why: str) -> None:
    samples = parse(counters(1, 1, 1).replace('model="tensorrt_llm"', 'model="undefined"'))
    found = compare(samples, samples, gauges(samples), model="ensemble", is_decoupled=is_decoupled)
    text = " ".join(found.notes)
    assert why in text and "nv_trt_llm_*" in text and "without a name of a model" in text
    assert set(found.gauges.values()) == {None}
    assert (found.requests, found.queue_us) == (0, None)


def test_the_metrics_of_another_server_are_noticed() -> None:
    found = compare([], parse(ENGINE), {}, model="other", is_decoupled=True)
    assert found.requests is None
    assert any("do not know model 'other'" in note for note in found.notes)


def test_the_highest_values_of_a_run_are_kept() -> None:
    with running() as mock, Client(mock.grpc) as client, Watcher(mock.metrics) as watcher:
        stream = iter(client.stream("[mock itl=100ms]", max_tokens=9))
        next(stream)
        while not watcher.peaks.get("active_requests"):
            next(stream)
        list(stream)
    assert watcher.peaks["active_requests"] == 1
    assert gauges(watcher.after)["active_requests"] == 0
    assert total(watcher.after, "nv_inference_request_success", model="ensemble") == 1


def test_an_endpoint_without_metrics_is_refused_with_its_address() -> None:
    with pytest.raises(InvalidRequest, match="metrics address"):
        scrape("nonsense")
    with pytest.raises(ConnectError, match="127.0.0.1:1"):
        scrape("127.0.0.1:1")
    with running() as mock:
        with pytest.raises(ConnectError, match="HTTP status 404"):
            scrape(f"{mock.http}/nope")
        assert scrape(f"http://{mock.metrics}/metrics")
        assert urllib.request.urlopen(f"http://{mock.metrics}/metrics").headers["content-type"].startswith("text/plain")
