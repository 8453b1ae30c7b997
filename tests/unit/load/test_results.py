"""Results that are written, read, exported, shown and compared."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtbuild_client.load import compare as comparing
from trtbuild_client.load import exports
from trtbuild_client.load.capacity import Point, Share, result
from trtbuild_client.load.compare import compare
from trtbuild_client.load.datasets import Dataset
from trtbuild_client.load.likeness import differences
from trtbuild_client.load.outcomes import Mark, Outcome
from trtbuild_client.load.page import render
from trtbuild_client.load.plan import Plan
from trtbuild_client.load.result import ResultError, Stored, document, read, write
from trtbuild_client.load.run import Run
from trtbuild_client.load.slo import parse
from trtbuild_client.load.strain import StrainReport
from trtbuild_client.load.summary import Summary, summarize
from trtbuild_client.load.table import RecordTable
from trtbuild_client.load.workload import Limits, Turn

_MS = 1_000_000
Cli = Callable[..., tuple[int, str, str]]


def made(
    *,
    seed: int = 0,
    requests: int = 400,
    slower: float = 1.0,
    failed: int = 0,
    drift: float = 0.0,
    label: int = 4,
    busy: bool = False,
) -> tuple[Summary, Run]:
    """Return a closed loop whose requests take about 100 ms, `slower` times as long."""
    rng = np.random.default_rng(seed)
    table = RecordTable()
    start = 10**12
    at = [float(start)] * label
    for index in range(requests):
        worker = index % label
        due = at[worker]
        first = due + slower * rng.lognormal(np.log(20), 0.3) * _MS * (1 + drift * np.sin(index / 30))
        gaps = slower * rng.exponential(5, 15) * _MS
        events = (first + np.concatenate([[0.0], np.cumsum(gaps)])).astype(np.int64)
        at[worker] = float(events[-1])
        is_failed = index < failed
        table.append(
            {
                "number": index, "session": index, "turn": 0, "due_ns": int(due), "sent_ns": int(due) + 1000, "end_ns": int(events[-1]),
                "outcome": Outcome.STREAM_RESET if is_failed else Outcome.OK, "marks": Mark.WARMUP if index < label else 0,
                "max_tokens": 16, "output_tokens": 16, "counted_by": 1, "draft_tokens": 30, "accepted_draft_tokens": 12,
            },
            array("q", events.tolist()),
            array("i", [1] * 16),
            "<reset & gone>" if is_failed else None,
        )  # fmt: skip
    strain = StrainReport(95 if busy else 10, 100, _MS // 10, _MS // 5, 40 << 20, 0)
    run = Run(table, [strain], start, label, label)
    plan = Plan(concurrency=label, limits=Limits(requests=requests))
    dataset = Dataset([(Turn("x", 16),)], "dataset <&>")
    return summarize(run, plan, dataset, objectives=parse("ttft.p95=50ms,itl.p95=40ms")), run


def stored(path: Path, **options: Any) -> Path:
    write(path, document([made(**options)], endpoint={"url": "x"}, created="now"))
    return path


def one(path: Path, **options: Any) -> Stored:
    return read(stored(path, **options))[0]


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    summary, run = made(failed=3)
    write(tmp_path / "a.json", document([(summary, run)], endpoint={"url": "x"}, created="now"))
    (found,) = read(tmp_path / "a.json")
    assert len(found.table) == len(run.table) and found.is_valid and found.label == "concurrency 4"
    for index in range(len(run.table)):
        assert found.table.event_ns(index).tolist() == [each - run.started_ns for each in run.table.event_ns(index)]
        assert found.table.event_tokens(index) == run.table.event_tokens(index)
    assert found.table.columns["accepted_draft_tokens"][5] == 12
    assert found.table.error_of(0) == "<reset & gone>" and found.table.error_of(9) is None
    assert not list(tmp_path.glob(".*"))


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda value: value["runs"][0]["records"].pop("event_ns"), "lacks the key 'event_ns'"),
        (lambda value: value["runs"][0]["records"]["columns"].pop("due_ns"), "lacks the key 'due_ns'"),
        (lambda value: value["runs"][0].pop("valid"), "lacks the key 'valid'"),
        (lambda value: value["runs"][0].update(invalid_reasons=5), "'invalid_reasons' is no list of texts"),
        (lambda value: value["runs"][0].update(invalid_reasons=[5]), "'invalid_reasons' is no list of texts"),
        (lambda value: value.pop("runs"), r"lacks the key 'runs' \(schema version 1\)"),
        (lambda value: value.update(schema_version="1"), "'schema_version' is str, not int"),
        (lambda value: value.update(schema_version=2), "schema version 2"),
        (lambda value: value.update(schema="other"), "is no result of trtbuild bench"),
        (lambda value: value["runs"][0]["records"]["columns"].update(turn=["a"]), "column 'turn'"),
        (lambda value: value["runs"][0]["records"]["event_ns"].pop(), "differ in length"),
        (lambda value: value["runs"][0]["records"]["event_tokens"].pop(), "differ in length"),
        (lambda value: value["runs"][0]["records"]["event_ns"].append(2**64), "column 'event_ns'"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_named_with_the_file(tmp_path: Path, edit: Any, message: str) -> None:
    path = change(stored(tmp_path / "a.json", requests=20), edit)
    with pytest.raises(ResultError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message


def _setting(name: str, row: int, number: int) -> Callable[[dict[str, Any]], Any]:
    return lambda records: records["columns"][name].__setitem__(row, number)


def _event(position: int, change: Callable[[int], int]) -> Callable[[dict[str, Any]], Any]:
    def edit(records: dict[str, Any]) -> None:
        records["event_ns"][position] = change(records["event_ns"][position])

    return edit


def _emptied(records: dict[str, Any]) -> None:
    records["columns"] = {name: [] for name in records["columns"]}
    records["event_ns"], records["event_tokens"] = [], []


def _instant(records: dict[str, Any]) -> None:
    records["columns"]["end_ns"] = list(records["columns"]["due_ns"])


#: Each request has 16 events: request 3 those from position 48 on.
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_setting("first_event", 3, 9999), "request 3 .* its 16 events from 9999 on are not its own"),
        (_setting("first_event", 3, 47), "request 3 .* its 16 events from 47 on are not its own"),
        (_setting("first_event", 3, 0), "request 1 .* its 16 events from 16 on are not its own"),
        (_setting("first_event", 3, -1), "request 3 .* its first_event is -1"),
        (_setting("events", 3, -16), "differ in length"),
        (_setting("error", 3, 7), "request 3 .* its error 7"),
        (_setting("error", 3, -2), "request 3 .* its error -2"),
        (_setting("number", 3, 2), "request 3 .* its number 2 is that of another"),
        (_setting("number", 3, -4), "request 3 .* its number is -4, and at least 0"),
        (_setting("session", 3, -1), "request 3 .* its session is -1"),
        (_setting("turn", 3, -1), "request 3 .* its turn is -1"),
        (_setting("max_tokens", 3, 0), "request 3 .* its max_tokens is 0, and at least 1"),
        (_setting("planned_tokens", 3, -2), "request 3 .* its planned_tokens is -2"),
        (_setting("outcome", 3, 99), "request 3 .* its outcome 99 is none of 0 to 17"),
        (_setting("counted_by", 3, 9), "request 3 .* its counted_by 9"),
        (_setting("marks", 3, -1), "request 3 .* its marks is -1"),
        (_setting("output_tokens", 3, -16), "request 3 .* its output_tokens is -16"),
        (_setting("output_tokens", 3, 17), "request 3 .* its output_tokens are 17, and its events have another"),
        (_setting("due_ns", 3, -5), "request 3 .* was due before the start"),
        (_setting("due_ns", 3, -(2**63)), "request 3 .* was due before the start"),
        (_setting("sent_ns", 9, 0), "request 9 .* was sent .* before it was due"),
        (_setting("end_ns", 9, 1), "request 9 .* its end .* is before it was sent"),
        (_setting("end_ns", 9, 2**63 - 1), "request 9 .* more than a hundred years"),
        (_instant, "request 0 .* its end .* is before it was sent"),
        (_event(48, lambda at: 1), "request 3 .* its first token is before it was sent"),
        (_event(48, lambda at: -at), "request 3 .* its first token is before it was sent"),
        (_event(50, lambda at: at - 10**10), "request 3 .* one of its tokens is before the one before it"),
        (_event(63, lambda at: at + 1), "request 3 .* its last token is after its end"),
        (_event(55, lambda at: 2**63 - 1), "request 3 .* one of its tokens is before"),
        (_setting("first_content_ns", 3, 1), "request 3 .* its first content"),
        (lambda records: records["event_tokens"].__setitem__(50, 0), "request 3 .* one of its events has no token"),
        (lambda records: records["event_tokens"].__setitem__(50, -1), "request 3 .* one of its events has no token"),
        (lambda records: records["event_tokens"].__setitem__(50, 2), "request 3 .* its output_tokens are 16"),
        (_emptied, "'requests' says total 16, and its records say 0"),
        (_setting("outcome", 5, 3), "'requests' says ok 16, and its records say 15"),
        (_setting("marks", 5, 1), "'requests' says total 16, and its records say 15"),
    ],
)
def test_records_that_cannot_be_are_refused(tmp_path: Path, cli: Cli, edit: Any, message: str) -> None:
    path = change(stored(tmp_path / "a.json", requests=20), lambda value: edit(value["runs"][0]["records"]))
    with pytest.raises(ResultError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message
    code, out, err = cli("compare", path, path)
    assert (code, out) == (1, "") and "The file is damaged." in err and "Traceback" not in err


def test_counts_that_are_missing_or_of_another_type_are_refused(tmp_path: Path) -> None:
    path = change(stored(tmp_path / "a.json", requests=20), lambda value: value["runs"][0].update(requests={}))
    with pytest.raises(ResultError, match="'requests' says total None, and its records say 16"):
        read(path)


def test_what_the_writer_may_write_is_read(tmp_path: Path) -> None:
    """Events of another order than that of the requests, requests without any, and tokens that were counted at the end."""

    def edit(value: dict[str, Any]) -> None:
        columns = value["runs"][0]["records"]["columns"]
        columns["marks"][6] |= Mark.COUNTED_AT_END
        columns["output_tokens"][6] = 99
        for column in columns.values():
            column[7], column[8] = column[8], column[7]

    (found,) = read(change(stored(tmp_path / "a.json", requests=20), edit))
    assert found.table.columns["number"][6:9].tolist() == [6, 8, 7] and found.table.columns["output_tokens"][6] == 99
    summary, run = made(requests=0)
    write(tmp_path / "none.json", document([(summary, run)], endpoint={}, created="now"))
    assert len(read(tmp_path / "none.json")[0].table) == 0


def test_runs_that_took_no_time_have_no_throughput(tmp_path: Path) -> None:
    def edit(value: dict[str, Any]) -> None:
        records = value["runs"][0]["records"]
        for name in ("due_ns", "sent_ns", "end_ns"):
            records["columns"][name] = [5] * 100
        records["event_ns"] = [5] * len(records["event_ns"])

    (found,) = read(change(stored(tmp_path / "a.json", requests=100), edit))
    verdicts = compare(found, found, resamples=20)
    assert verdicts.verdict == "cannot tell" and "output_tokens_per_s" not in {each.name for each in verdicts.metrics}


def test_keys_of_the_future_are_ignored(tmp_path: Path) -> None:
    def edit(value: dict[str, Any]) -> None:
        value["new"] = value["runs"][0]["new"] = value["runs"][0]["records"]["columns"]["new"] = [1]

    assert read(change(stored(tmp_path / "a.json", requests=20), edit))


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(ResultError, match="cannot be read"):
        read(path)


def test_two_runs_of_the_same_server_cannot_be_told_apart(tmp_path: Path) -> None:
    a = one(tmp_path / "a.json", seed=1)
    verdicts = [compare(a, one(tmp_path / "b.json", seed=seed), resamples=300).verdict for seed in range(2, 12)]
    assert verdicts.count("cannot tell") >= 9


@pytest.mark.parametrize(("slower", "verdict"), [(1.2, "slower"), (0.8, "faster")])
def test_a_difference_of_twenty_percent_is_seen(tmp_path: Path, slower: float, verdict: str) -> None:
    found = compare(one(tmp_path / "a.json", seed=1), one(tmp_path / "b.json", seed=2, slower=slower), resamples=300)
    assert found.verdict == verdict
    by_name = {each.name: each for each in found.metrics}
    assert by_name["ttft.p50"].low < slower < by_name["ttft.p50"].high
    assert by_name["output_tokens_per_s"].verdict == verdict
    assert by_name["output_tokens_per_s"].low < 1 / slower < by_name["output_tokens_per_s"].high


def test_few_requests_are_no_ground_for_a_verdict(tmp_path: Path) -> None:
    found = compare(one(tmp_path / "a.json", requests=9), one(tmp_path / "b.json", requests=9, slower=3), resamples=50)
    assert found.verdict == "cannot tell" and "needed" in found.skipped["ttft.p50"]


def test_more_failures_are_slower_however_fast_the_rest_is(tmp_path: Path) -> None:
    found = compare(one(tmp_path / "a.json"), one(tmp_path / "b.json", slower=0.7, failed=80), resamples=100)
    assert found.verdict == "slower" and "fails more often: 76 of 396" in found.reasons[0]


def test_blocks_of_neighbours_make_intervals_of_drifting_runs_wider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def width() -> float:
        a, b = one(tmp_path / "a.json", drift=0.6), one(tmp_path / "b.json", seed=3, drift=0.6)
        each = compare(a, b, resamples=300).metrics[0]
        return each.high - each.low

    blocks = width()
    monkeypatch.setattr(
        comparing,
        "_weights",
        lambda requests, random: np.bincount(random.integers(0, requests, requests), minlength=requests),
    )
    assert blocks > 1.15 * width()


def test_the_command_ends_with_the_codes_that_are_documented(tmp_path: Path, cli: Cli) -> None:
    a, same, slow = (stored(tmp_path / name, seed=seed, slower=slower) for name, seed, slower in (("a", 1, 1), ("b", 2, 1), ("c", 3, 1.5)))  # fmt: skip
    assert cli("compare", a, same)[0] == 0
    assert cli("compare", slow, a)[0] == 0
    code, out, err = cli("compare", a, slow)
    assert code == 3 and "slower" in out and "slower" in err
    assert cli("compare", a, same, "--fail-on", "cannot-tell")[0] == 3
    code, _, err = cli("compare", a, tmp_path / "missing")
    assert code == 1 and "missing cannot be read: No such file" in err
    (tmp_path / "damaged").write_bytes(b"\xff")
    assert [cli("compare", a, tmp_path / name)[0] for name in ("damaged", ".")] == [1, 1]
    code, out, _ = cli("compare", a, slow, "--json")
    assert json.loads(out)[0]["verdict"] == "slower"


def of_other_work(path: Path, **changes: Any) -> Path:
    """Write a result of which a key of `load` or `endpoint`, or a whole column, is another."""

    def edit(value: dict[str, Any]) -> None:
        run = value["runs"][0]
        columns = run["records"]["columns"]
        for name, each in changes.items():
            if name in columns:
                columns[name] = [each] * len(columns[name])
            elif name in run["load"]:
                run["load"][name] = each
            else:
                value["endpoint"][name] = each

    return change(stored(path, seed=2), edit)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 8}, "tokens asked for: 16 and 8 on average"),
        ({"planned_tokens": 512}, "tokens of a prompt: 2 and 512 on average"),
        ({"dataset": "text file b.txt"}, "prompts: dataset <&> and text file b.txt"),
        ({"api": "openai-chat"}, "API: triton-grpc and openai-chat"),
        ({"model": "other"}, "model: ensemble and other"),
        ({"streamed": False}, "streaming: on and off"),
        ({"concurrency": 9}, "concurrency: 4 and 9"),
        ({"concurrency": 9, "model": "other"}, "model: ensemble and other; concurrency: 4 and 9"),
    ],
)
def test_runs_of_different_work_are_not_compared(tmp_path: Path, cli: Cli, changes: dict[str, Any], said: str) -> None:
    a = of_other_work(tmp_path / "a", api="triton-grpc", model="ensemble", planned_tokens=2)
    b = of_other_work(tmp_path / "b", **{"api": "triton-grpc", "model": "ensemble", "planned_tokens": 2, **changes})
    code, out, err = cli("compare", a, b)
    assert (code, out) == (2, "") and f"are of different work: {said}" in err
    code, out, _ = cli("compare", a, b, "--allow-different", "--json")
    assert code in (0, 3) and json.loads(out)[0]["reasons"][0] == f"different work: {said.partition(';')[0]}"


def test_lengths_that_are_drawn_may_differ_by_chance(tmp_path: Path) -> None:
    def drawn(path: Path, seed: int) -> Stored:
        lengths = np.random.default_rng(seed).normal(100, 50, 20).astype(int).tolist()
        return read(
            change(
                stored(path, requests=20),
                lambda value: value["runs"][0]["records"]["columns"].update(max_tokens=lengths),
            )
        )[0]

    a, b = drawn(tmp_path / "a", 1), drawn(tmp_path / "b", 5)
    means = [np.mean(each.table.columns["max_tokens"]) for each in (a, b)]
    assert abs(means[0] - means[1]) > 0.05 * max(means) and differences(a, b) == []


def test_runs_that_are_invalid_or_have_nothing_in_common_are_not_compared(tmp_path: Path, cli: Cli) -> None:
    a, busy = stored(tmp_path / "a", seed=1), stored(tmp_path / "b", seed=2, busy=True)
    code, _, err = cli("compare", a, busy)
    assert code == 2 and "the run is invalid" in err and "95%" in err
    silent = change(stored(tmp_path / "d", busy=True), lambda value: value["runs"][0].pop("invalid_reasons"))
    assert "the run is invalid: it does not say why" in cli("compare", a, silent)[2]
    assert cli("compare", a, busy, "--allow-invalid")[0] == 0
    pairs = [made(label=2), made(label=3)]
    other = tmp_path / "c"
    write(other, document(pairs, endpoint={}, created="now"))
    code, _, err = cli("compare", a, other)
    assert code == 2 and "no run in common" in err


def test_runs_of_one_label_are_compared_in_their_order(tmp_path: Path, cli: Cli) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, document([made(seed=1), made(seed=2, slower=1.5), made(label=2)], endpoint={}, created="now"))
    write(
        b, document([made(seed=3), made(label=2), made(seed=4, slower=1.5), made(seed=5)], endpoint={}, created="now")
    )
    code, out, _ = cli("compare", a, a, "--json")
    assert code == 0 and [metric["ratio"] for run in json.loads(out) for metric in run["metrics"]] == [1.0] * 24
    code, out, _ = cli("compare", a, b, "--json")
    found = json.loads(out)
    assert [run["label"] for run in found] == ["concurrency 4", "concurrency 4", "concurrency 2"]
    assert code == 0 and [run["verdict"] for run in found] == ["cannot tell"] * 3


def test_the_only_runs_of_two_results_are_compared_and_their_labels_said(tmp_path: Path, cli: Cli) -> None:
    a, b = stored(tmp_path / "a", label=4), stored(tmp_path / "b", label=2)
    code, out, _ = cli("compare", a, b, "--allow-different", "--json")
    reasons = json.loads(out)[0]["reasons"]
    assert code == 3 and reasons[0] == "matched as the only runs: 'concurrency 4' and 'concurrency 2'"
    assert "matched as the only runs" not in cli("compare", a, a)[1]


def test_a_line_per_request_says_what_became_of_it(tmp_path: Path) -> None:
    runs = [made(failed=5, requests=50)]
    exports.write_csv(tmp_path / "a.csv", runs)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 50
    assert rows[4]["outcome"] == "stream_reset" and rows[4]["error"] == "<reset & gone>"
    assert rows[0]["is_warmup"] == "True" and rows[9]["is_warmup"] == "False"
    assert float(rows[9]["ttft_ns"]) > 0 and rows[9]["accepted_draft_tokens"] == "12" and rows[9]["input_tokens"] == ""


def test_parquet_needs_its_package_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    from trtbuild_client.errors import InvalidRequest

    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *rest: (
            (_ for _ in ()).throw(ImportError(name)) if name.startswith("pyarrow") else real(name, *rest)
        ),
    )
    with pytest.raises(InvalidRequest, match="pyarrow"):
        exports.write_parquet(tmp_path / "a.parquet", [made(requests=20)])


def test_parquet_has_the_same_rows_and_types_whatever_happened(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = []
    for name, runs in (("some", [made(requests=20, failed=3)]), ("none", [made(requests=0)])):
        exports.write_parquet(tmp_path / "new" / f"{name}.parquet", runs)
        found.append(parquet.read_table(tmp_path / "new" / f"{name}.parquet"))
    exports.write_csv(tmp_path / "newer" / "some.csv", [made(requests=20, failed=3)])
    lines = list(csv.DictReader((tmp_path / "newer" / "some.csv").read_text("utf-8").splitlines()))
    assert found[0].schema == found[1].schema and (found[0].num_rows, found[1].num_rows) == (20, 0)
    for line, row in zip(lines, found[0].to_pylist(), strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}


def test_the_export_for_aiperf_has_its_blocks() -> None:
    summary, run = made(failed=5)
    value = exports.aiperf(summary, run, described={"url": "u", "model": "m", "api": "triton-grpc"}, created="now")
    json.dumps(value, allow_nan=False)
    block = value["time_to_first_token"]
    assert block["unit"] == "ms" and {"avg", "min", "max", "p1", "p50", "p99", "std", "count", "sum"} <= set(block)
    assert block["p50"] == pytest.approx(20, rel=0.1)
    assert (
        value["request_count"] == {"unit": "requests", "avg": 395}
        or value["request_count"]["avg"] == summary.counts["ok"]
    )
    assert value["error_summary"][0]["count"] == summary.counts["failed"]
    assert "input_sequence_length" not in value  # what is not known is left out


def test_the_page_holds_plots_tables_and_no_way_out() -> None:
    from html.parser import HTMLParser
    from xml.etree import ElementTree

    runs = [made(label=label, failed=5) for label in (1, 2, 4)]
    shares = (Share("a", 0.1, 0.0, 1.0, 0.05), Share("b", None, 0.0, 1.0, 0.05))
    points = [
        Point(5.0, True, True, 10, shares[:1]),
        Point(5.2, False, True, 10, shares[:1]),
        Point(9.0, True, False, 10, shares, problem="no <value>"),
    ]
    capacity = result(points, ["ttft.p95 <= 50 ms"], "within 5%").to_json()
    text = render(
        runs, {"url": "http://<x>", "model": "m & n", "api": "a"}, created="now", extra={"capacity": capacity}
    )
    assert text.count("<svg") >= 3 + 3 * 3
    pictures = [part.partition("</svg>")[0] for part in text.split("<svg")[1:]]
    for picture in pictures:
        ElementTree.fromstring("<svg" + picture + "</svg>")  # well formed
        assert "nan" not in picture and "inf" not in picture.replace("info", "")
    assert "dataset &lt;&amp;&gt;" in text and "&amp;lt;" not in text  # escaped once
    assert "m &amp; n" in text and "<x>" not in text and "&lt;reset &amp; gone&gt;" in text
    assert "<script" not in text and "http-equiv" not in text and "src=" not in text and "@import" not in text
    assert "Latency against load" in text and "Capacity: 5 to 5.2 requests/s" in text
    assert "no &lt;value&gt;" in text and "b: n/a above" in text
    HTMLParser().feed(text)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=5", "x.p95=5ms", "ttft.p100=5ms", "ttft.p95=0ms", "ttft.p95=5ms;itl=1ms"]
)
def test_objectives_that_mean_nothing_are_refused(text: str) -> None:
    from trtbuild_client.errors import InvalidRequest

    with pytest.raises(InvalidRequest):
        parse(text)


def test_objectives_are_read_in_every_unit() -> None:
    found = parse("ttft.p95=500ms, itl=40ms,e2e.p99.9=2m,tpot.p50=900us")
    assert [(each.name, each.limit_ns) for each in found] == [
        ("ttft.p95", 5e8), ("itl.p95", 4e7), ("e2e.p99.9", 1.2e11), ("tpot.p50", 9e5),
    ]  # fmt: skip
