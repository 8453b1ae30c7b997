"""Records of dataset files: what each field may hold, and that a fault is said with its file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.dataset_files import read
from trtbuild_client.load.datasets import Lengths
from trtbuild_client.load.tokens import Words
from trtbuild_client.mock.server import running

_TRACE = {"timestamp": 0, "input_length": 20, "output_length": 1}


def lines_of(path: Path, *entries: Any) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in entries))
    return path


@pytest.mark.parametrize("form", ["lines", "list"])
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ({"prompt": "a"}, {"x": 1}, "has no prompt"),
        ({"prompt": "a"}, {"prompt": None}, "has no prompt"),
        ({"prompt": "a"}, {"prompt": 5}, "'prompt' is 5"),
        ({"prompt": "a"}, {"prompt": " "}, "'prompt' is \" \""),
        ({"prompt": "a"}, {"prompt": "x\ud800"}, r"'prompt' has half of a surrogate pair \(.ud800\) at character 1"),
        *(
            ({"prompt": "a"}, {"prompt": "a", "max_tokens": value}, re.escape(f"'max_tokens' is {json.dumps(value)}"))
            for value in (-3, 0, "five", 2.7, 2**31, 99999999999999999999999, True, [1])
        ),
        ({"prompt": "a"}, {"prompt": "a", "output_length": 0}, "'output_length' is 0"),
        ({"conversations": []}, {"conversations": 5}, "'conversations' is 5"),
        ({"conversations": []}, {"conversations": [5]}, r"'conversations' is \[5\]"),
        ({"messages": []}, {"messages": "x"}, "'messages' is \"x\""),
        ({"messages": []}, {"prompt": "a"}, "has no conversations"),
        ({"messages": []}, {"messages": [{"content": "a"}]}, "message 1, has no from"),
        ({"messages": []}, {"messages": [{"role": "user", "content": 5}]}, "message 1: 'content' is 5"),
        ({"messages": []}, {"messages": [{"role": "user", "content": "\udc00"}]}, "half of a surrogate pair"),
        ({"messages": []}, {"messages": [{"role": "user", "content": ["a"]}]}, r"'content' is \[\"a\"\]"),
        (
            {"messages": []},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "message 1, part 1 is of type 'image_url'",
        ),
        ({"messages": []}, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "part 1, has no text"),
        ({"messages": []}, {"messages": [], "max_tokens": 0}, "'max_tokens' is 0"),
        (_TRACE, {"timestamp": 0, "input_length": 5}, "has no output_length"),
        (_TRACE, {**_TRACE, "timestamp": -1}, "'timestamp' is -1"),
        (_TRACE, {**_TRACE, "timestamp": "0"}, "'timestamp' is \"0\""),
        (_TRACE, {**_TRACE, "timestamp": True}, "'timestamp' is true"),
        (_TRACE, {**_TRACE, "timestamp": 1e13}, "'timestamp' is 10000000000000"),
        (_TRACE, {**_TRACE, "input_length": 0}, "'input_length' is 0"),
        (_TRACE, {**_TRACE, "input_length": 10**9}, "'input_length' is 1000000000"),
        (_TRACE, {**_TRACE, "output_length": 1.5}, "'output_length' is 1.5"),
        (_TRACE, {**_TRACE, "hash_ids": 1}, "'hash_ids' is 1"),
        (_TRACE, {**_TRACE, "hash_ids": ["a"]}, r"'hash_ids' is \[\"a\"\]"),
        (_TRACE, {**_TRACE, "input_length": 3000, "hash_ids": [1]}, "3000 tokens are 6 blocks of 512, and 'hash_ids' has 1"),
        ({"prompt": "a"}, 5, "5 is no object"),
        ({"prompt": "a"}, [], r"\[\] is no object"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_as_it_must_be_is_refused_with_its_line(
    tmp_path: Path, form: str, good: Any, bad: Any, message: str
) -> None:
    text = f"{json.dumps(good)}\n\n{json.dumps(bad)}\n"
    path = tmp_path / "file"
    path.write_text(text if form == "lines" else f"[{text}]".replace("\n\n", ",\n\n"))
    with pytest.raises(InvalidRequest, match=f"file, line 3.*{message}") as caught:
        read(path, Words(), Lengths(5))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompt"),
        (" \n\n", "holds no prompt"),
        ("[]", "holds no prompt"),
        ("[5]", "line 1: 5 is no object"),
        ('[{"conversations": []}]', "holds no conversation"),
        ('{"prompt": "a"}\n{broken', "line 2, is no JSON"),
        ('{"prompt": "a"}\n{"prompt": "b"} {}', "line 2, is no JSON: more after its end"),
        ('[{"prompt": "a"}\n{"prompt": "b"}]', "line 2, is no JSON: neither"),
        ('[{"prompt": "a"},\n{"prompt"}]', "line 2, is no JSON"),
        ('[{"prompt": "a"},\n]', "line 2, is no JSON"),
        ('[{"prompt": "a"}', "line 1, is no JSON: neither"),
        ('[{"prompt": "a"}]\n]', "line 1, is no JSON: more after its end"),
        ("[" * 100_000, "line 1, is no JSON"),
        ('{"prompt": "a"}\n{"timestamp": NaN}', "line 2, is no JSON: NaN is no number"),
        ('{"timestamp": 1e999, "input_length": 1, "output_length": 1}', "line 1, is no JSON: 1e999 is no number"),
    ],
)
def test_files_that_hold_no_records_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=message):
        read(path, Words(), Lengths(5))


def test_a_file_that_is_not_utf8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("one\ncaf\u00e9\n".encode("latin-1"))
    with pytest.raises(InvalidRequest, match=r"latin\.txt, line 2, is not UTF-8: byte 0xe9"):
        read(path, Words(), Lengths(5))


def test_text_parts_of_a_message_are_joined_and_the_records_own_length_counts(tmp_path: Path) -> None:
    def talk(*parts: str) -> list[dict[str, Any]]:
        content = [{"type": "text", "text": each} for each in parts]
        return [{"role": "user", "content": content}, {"role": "assistant", "content": "one two"}]

    calls = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": []}]
    path = lines_of(
        tmp_path / "talks.jsonl",
        {"messages": talk("q ", "one")},
        {"messages": talk("q"), "max_tokens": 9},
        {"messages": calls},
        {"messages": [{"role": "system", "content": [{"type": "image_url"}]}, *talk("q")]},
    )
    turns = [session[0] for session in read(path, Words(), Lengths(5)).sessions]
    assert [turn.text for turn in turns] == ["q one", "q", "q", "q"]
    assert [turn.max_tokens for turn in turns] == [2, 9, 5, 2]


def test_null_is_the_same_as_nothing(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "p.jsonl", {"prompt": None, "text": "a", "max_tokens": None})
    assert read(path, Words(), Lengths(5)).sessions[0][0].max_tokens == 5


def test_a_trace_that_is_replayed_too_slowly_to_be_timed_is_refused(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "trace.jsonl", _TRACE, {**_TRACE, "timestamp": 1e9})
    with pytest.raises(InvalidRequest, match=r"line 2: at --speed 1e-06 it begins"):
        read(path, Words(), Lengths(5), speed=1e-6)


def test_bench_ends_with_a_users_fault_and_the_line(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    path = lines_of(tmp_path / "p.jsonl", {"prompt": "a", "max_tokens": "five"})
    with running() as mock:
        code, _, said = cli("bench", "--dataset", path, "--url", mock.grpc)
        assert mock.schedule()["requests"] == []
    assert code == 2
    assert "p.jsonl, line 1: 'max_tokens' is \"five\"" in said
