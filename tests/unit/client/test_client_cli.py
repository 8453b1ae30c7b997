"""`trtbuild generate` and `trtbuild probe` as commands: output, exit codes, interruption, locale."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.fake_triton import FakeTriton, Session, data, end, failure, tokens

from trtbuild.cli.edge import run


def test_generate_prints_the_answer_and_nothing_else(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "The capital of France is", "--url", triton.address]) == 0
    assert capsys.readouterr().out == " Paris.\n"
    assert triton.inputs()["stream"][2] == b"\1"


def test_generate_without_streaming_prints_the_same(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "x", "--url", triton.address, "--no-stream"]) == 0
    assert capsys.readouterr().out == " Paris.\n"
    assert triton.inputs()["stream"][2] == b"\0"


def test_generate_sends_its_options(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--max-tokens", "3", "--top-k", "5", "--top-p", "0.5", "--temperature", "0.5", "--seed", "7"]
    more = ["--stop", "\n", "--stop", "END", "--param", "min_tokens=2", "--param", "lora_task_id=4"]
    assert run(["generate", "x", "--url", triton.address, "--timeout", "5s", *arguments, *more]) == 0
    sent = triton.inputs()
    assert sent["stop_words"][1] == [1, 2]
    assert sent["max_tokens"][2] == b"\3\0\0\0"
    assert sent["min_tokens"][2] == b"\2\0\0\0"
    assert sent["lora_task_id"][2] == b"\4" + bytes(7)
    assert {"top_k", "top_p", "temperature", "seed"} <= set(sent)
    assert triton.received[0].parameters["timeout"].int64_param == 5_000_000


def test_generate_as_json(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "x", "--url", triton.address, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["schema_version"], values["text"], values["output_tokens"]) == (1, " Paris.", 2)
    assert values["ttft_ns"] > 0


def test_generate_reads_the_prompt_from_standard_input(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Яблоко\n".encode())))
    assert run(["generate", "-", "--url", triton.address]) == 0
    assert triton.inputs()["text_input"][2][4:] == "Яблоко\n".encode()


def test_a_prompt_that_is_no_utf8_is_refused(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    assert run(["generate", "-", "--url", triton.address]) == 2
    assert "standard input is no UTF-8: byte 3 is 0xe9" in capsys.readouterr().err
    (tmp_path / "prompts.txt").write_bytes(b"caf\xe9\n")
    assert run(["probe", "--prompt-file", str(tmp_path / "prompts.txt"), "--url", triton.address]) == 2
    assert "prompts.txt is no UTF-8: byte 3 is 0xe9" in capsys.readouterr().err
    assert triton.received == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--url", "127.0.0.1:1"], 1, "no connection to 127.0.0.1:1"),
        (["--url", "ftp://localhost:8000"], 2, "url 'ftp://localhost:8000'"),
        (["--url", "http://[::1"], 2, "url 'http://[::1'"),
        (["--url", "::1:8001"], 2, "url '::1:8001'"),
        (["--url", "u:p@host:8001"], 2, "url 'u:p@host:8001'"),
        (["--top-p", "2"], 2, "0<x<=1"),
        (["--param", "nonsense=1"], 2, "nonsense"),
        (["--param", "nonsense"], 2, "NAME=VALUE"),
        (["--timeout", "0"], 2, "time above 0"),
        (["--timeout", "-1"], 2, "time above 0"),
        (["--timeout", "5 hours"], 2, "time above 0"),
        (["--model", "nope"], 1, "Models of this server: ensemble"),
    ],
)
def test_generate_fails_with_one_message_and_no_output(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run(["generate", "x", "--url", triton.address, *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.err.count(message) == 1


@pytest.mark.parametrize(("given", "microseconds"), [("5", 5_000_000), ("500ms", 500_000), ("2m", 120_000_000)])
def test_a_timeout_may_carry_its_unit(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], given: str, microseconds: int
) -> None:
    assert run(["generate", "x", "--url", triton.address, "--timeout", given]) == 0
    assert triton.received[0].parameters["timeout"].int64_param == microseconds


def test_an_error_within_the_stream_ends_the_command(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    triton.answer(data("half"), failure("out of blocks"))
    assert run(["generate", "x", "--url", triton.address]) == 1
    captured = capsys.readouterr()
    assert captured.out.strip() == "half"
    assert "out of blocks" in captured.err


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours; it is gone when the block ends, however it ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "trtbuild", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_interrupting_generate_cancels_the_request_and_exits_130(triton: FakeTriton) -> None:
    def script(request: Any, session: Session) -> Iterable[Any]:
        yield data("first\n")
        session.hold()

    triton.scripts["ensemble"] = script
    with command("generate", "x", "--url", triton.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert triton.cancelled.wait(5)


def test_interrupting_probe_cancels_all_requests_and_exits_130(triton: FakeTriton) -> None:
    def script(request: Any, session: Session) -> Iterable[Any]:
        if len(triton.received) == 2:
            process.send_signal(signal.SIGINT)
        session.hold()
        yield end()

    triton.scripts["ensemble"] = script
    arguments = ("--requests", "9", "--concurrency", "2", "--warmup", "2")
    with command("probe", "--url", triton.address, *arguments) as process:
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert output == b""
    assert b"Traceback" not in errors
    assert len(triton.received) == 2
    assert triton.cancelled.wait(5)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_text_is_utf8_both_ways_in_a_c_locale(triton: FakeTriton, form: tuple[str, ...]) -> None:
    triton.answer(*tokens("Яблоко", " 🙂"))
    with command("generate", "Яблоко 🙂", "--url", triton.address, *form, LC_ALL="C", PYTHONUTF8="0") as process:
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")
    assert "Яблоко 🙂".encode() in output
    assert triton.inputs()["text_input"][2][4:] == "Яблоко 🙂".encode()


def test_probe_prints_a_table(triton: FakeTriton, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--url", triton.address, "--requests", "4", "--concurrency", "2", "--quiet"]) == 0
    output = capsys.readouterr().out
    for part in (
        "TTFT",
        "ITL",
        "TPOT",
        "end to end",
        "p50",
        "p90",
        "p95",
        "p99",
        "mean",
        "tokens/s",
        "4 requests: 4 ok",
    ):
        assert part in output


def test_probe_as_json(triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("eins\n\nzwei\n", encoding="utf-8")
    arguments = ["--requests", "2", "--warmup", "1", "--prompt-file", str(prompts), "--max-tokens", "5", "--json"]
    assert run(["probe", "--url", triton.address, *arguments]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schema_version"] == 1
    assert values["requests"]["ok"] == 2
    assert values["latencies_ns"]["ttft"]["n"] == 2
    assert (values["output_tokens"], values["requested_tokens"]) == (4, 10)
    assert [triton.inputs(index)["text_input"][2][4:] for index in (1, 2)] == [b"eins", b"zwei"]


def test_probe_exits_3_when_no_request_succeeds_and_still_prints_the_counts(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.answer(failure("Exceeds maximum queue size"))
    assert run(["probe", "--url", triton.address, "--requests", "3", "--warmup", "0"]) == 3
    captured = capsys.readouterr()
    assert "3 failed" in captured.out and "ServerBusy 3" in captured.out
    assert "no request succeeded" in captured.err and "queue" in captured.err


@pytest.mark.parametrize(("threshold", "code"), [("0.2", 3), ("0.25", 0)])
def test_probe_exits_3_above_the_error_rate_that_is_allowed(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str], threshold: str, code: int
) -> None:
    numbers = iter(range(100))
    triton.scripts["ensemble"] = lambda request, session: tokens("a") if next(numbers) % 4 else [failure("no")]
    arguments = ["--requests", "4", "--warmup", "0", "--max-error-rate", threshold]
    assert run(["probe", "--url", triton.address, *arguments]) == code


def test_probe_without_streaming_says_what_it_cannot_measure(
    triton: FakeTriton, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", "--url", triton.address, "--requests", "2", "--no-stream"]) == 0
    assert "n/a (non-streaming)" in capsys.readouterr().out


def test_probe_refuses_a_concurrency_that_is_never_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--requests", "4", "--concurrency", "8"]) == 2
    assert "would never be reached" in capsys.readouterr().err


def test_importing_the_client_loads_neither_grpc_nor_numpy() -> None:
    code = "import sys, trtbuild_client.options, trtbuild_client.errors; print({'grpc', 'numpy', 'trtbuild'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_every_public_name_can_be_imported() -> None:
    import trtbuild_client

    for name in trtbuild_client.__all__:
        assert getattr(trtbuild_client, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = trtbuild_client.nothing_like_this


def test_generate_reaches_a_guarded_server_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    from trtbuild_client.mock.options import MockOptions
    from trtbuild_client.mock.server import running

    with running(MockOptions(token="s3cret")) as mock:
        arguments = ["generate", "x", "--url", f"http://{mock.http}", "--max-tokens", "3"]
        assert run([*arguments, "--token", "s3cret"]) == 0
        assert capsys.readouterr().out == " the sky is\n"
        assert run([*arguments, "--token", "wr0ng"]) == 1
    assert "wr0ng" not in capsys.readouterr().err
