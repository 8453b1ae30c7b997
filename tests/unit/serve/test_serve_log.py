"""Reading the server's log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.serve.server_log import LogTail, is_fatal, is_notable, not_loaded, reasons


def glog(level: str, text: str, source: str = "server.cc:241") -> str:
    return f"{level}1129 18:25:14.269966 6097 {source}] {text}"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12), max_size=8), st.data())
def test_every_line_is_seen_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    tail = LogTail(path)
    assert tail.read() == []
    raw = "".join(line + "\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    seen: list[str] = []
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        with path.open("ab") as file:
            file.write(raw[start:stop])
        seen += tail.read()
    assert seen == lines


def test_reading_begins_behind_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n", encoding="utf-8")
    tail = LogTail(path, offset=4)
    with path.open("a", encoding="utf-8") as file:
        file.write("new\n")
    assert tail.read() == ["new"]


def test_bytes_that_are_no_utf8_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"caf\xe9\n")
    assert LogTail(path).read() == ["caf\ufffd"]


def test_reasons_are_the_errors_without_what_every_server_without_gpu_logs() -> None:
    lines = [
        glog("W", '"Unable to allocate pinned system memory, pinned memory pool will not be available: CUDA"'),
        glog("E", '"CudaDriverHelper has not been initialized."'),
        "Error: Failed to initialize NVML",
        glog("W", '"DCGM unable to start: DCGM initialization error"'),
        glog("E", '"ERROR: Failed to create instance: RuntimeError: line one"'),
        glog("E", '"failed to load \'echo\' version 1: Internal: RuntimeError: line one\\nline \\"two\\""'),
        glog("I", "\"failed to load 'echo'\""),
        "error: creating server: Internal - failed to load all models",
    ]
    assert reasons(lines) == ["failed to load 'echo' version 1: Internal: RuntimeError: line one\nline \"two\""]


def test_a_configuration_that_does_not_parse_is_explained_by_the_parser() -> None:
    parser = '[libprotobuf ERROR text_format.cc:337] Error parsing text-format inference.ModelConfig: 8:1: Unknown "TYPE_NOPE".'
    poll = "Poll failed for model directory 'echo': failed to read text proto from echo/config.pbtxt"
    assert reasons([parser, glog("E", f'"{poll}"')]) == [parser, poll]


def test_the_servers_last_word_counts_when_it_is_the_only_one() -> None:
    last = "error: creating server: Internal - failed to load all models"
    assert reasons([glog("I", '"all is well"'), last]) == [last]
    assert reasons([]) == []


@pytest.mark.parametrize(
    "line",
    [
        glog(
            "I",
            " Failed to preinitialize Python stub: Python model file not found in 'r/echo/1/model.py'",
            "pb_stub.cc:2105",
        ),
        "/run/triton_python_backend_stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open",
        "bash: line 1: /run/python/triton_python_backend_stub: Permission denied",
    ],
)
def test_what_makes_the_server_wait_in_vain_is_recognized_and_reported(line: str) -> None:
    assert is_fatal(line)
    assert len(reasons([line])) == 1


def test_models_that_have_not_finished_loading_are_listed_in_order() -> None:
    lines = [glog("I", f'"loading: {name}:1"') for name in ("core", "a:b", "post")]
    assert not_loaded([*lines, glog("I", "\"successfully loaded 'core'\"")]) == ["a:b", "post"]


@pytest.mark.parametrize(
    ("line", "notable"),
    [
        (glog("I", '"routine"'), False),
        (glog("W", '"DCGM unable to start"'), False),
        ("Error: Failed to initialize NVML", False),
        ("Signal (2) received.", False),
        ("| echo  | 1       | READY  |", False),
        ("", False),
        (glog("W", '"queue is full"'), True),
        (glog("E", '"model failed"'), True),
        ("printed by a model", True),
    ],
)
def test_a_person_sees_warnings_errors_and_prints_only(line: str, notable: bool) -> None:
    assert is_notable(line) is notable


def test_the_last_lines_come_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\n+---+\n| x |\n\ntwo\nthree\n", encoding="utf-8")
    tail = LogTail(path)
    tail.read()
    assert tail.last(2) == ["two", "three"]
