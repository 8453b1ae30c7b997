"""Text assembly: characters, deltas, cumulative text and stop words, however the text is divided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild_client.errors import ServerError
from trtbuild_client.text import CumulativeAssembler, DeltaAssembler, StopCutter


def pieces_of(data: st.DataObject, whole: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(text=st.text(max_size=20), data=st.data())
def test_delta_bytes_give_the_same_text_for_every_division(text: str, data: st.DataObject) -> None:
    text = text.encode("utf-8", "replace").decode()
    assembler = DeltaAssembler()
    parts = [assembler.push(piece) for piece in pieces_of(data, text.encode())]
    assert "".join(parts) + assembler.flush() == text


@given(text=st.text(alphabet="aé家🙂 \n\ufffd", max_size=12), data=st.data())
def test_cumulative_text_gives_the_same_text_for_every_division(text: str, data: st.DataObject) -> None:
    assembler = CumulativeAssembler()
    so_far, parts = b"", []
    for piece in pieces_of(data, text.encode()):
        so_far += piece
        parts.append(assembler.push(so_far))
    assert "".join(parts) + assembler.flush() == text


@pytest.mark.parametrize("at", range(1, len("家🙂".encode())))
def test_a_character_cut_between_two_responses_is_put_together(at: int) -> None:
    whole = "家🙂".encode()
    assembler = DeltaAssembler()
    assert assembler.push(whole[:at]) + assembler.push(whole[at:]) + assembler.flush() == "家🙂"


def test_a_character_that_never_becomes_complete_is_one_replacement_character() -> None:
    assembler = DeltaAssembler()
    assert assembler.push(b"ok \xf0\x9f") == "ok "
    assert assembler.flush() == "\ufffd"
    assert DeltaAssembler().push(b"\xffx") == "\ufffdx"


def test_cumulative_text_that_does_not_continue_is_an_error_and_not_wrong_text() -> None:
    assembler = CumulativeAssembler()
    assert assembler.push(b"Hello") == "Hello"
    with pytest.raises(ServerError, match="does not continue") as caught:
        assembler.push(b" world")
    assert "delta" in caught.value.hint


def test_equal_cumulative_text_is_a_response_without_news() -> None:
    assembler = CumulativeAssembler()
    assert [assembler.push(b"a"), assembler.push(b"a"), assembler.push(b"aa")] == ["a", "", "a"]


def test_deltas_that_all_repeat_what_came_before_raise_a_doubt() -> None:
    assembler = DeltaAssembler()
    for length in range(1, 7):
        assembler.push(b"a long answer"[:length])
    doubt = assembler.doubt()
    assert doubt is not None and "cumulative" in doubt


def test_ordinary_deltas_raise_no_doubt() -> None:
    assembler = DeltaAssembler()
    for piece in (b"a", b"aa", b"aab", b"x", b"xy", b"xyz", b"xyzz", b"xyzzz"):
        assembler.push(piece)
    assert assembler.doubt() is None


def stopped_at(text: str, words: Sequence[str]) -> str:
    """Oracle: letter by letter, end at the first moment any word is complete; the longest such word goes."""
    for end in range(len(text) + 1):
        complete = [word for word in words if text[:end].endswith(word)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(
    text=st.text(alphabet="ab\n", max_size=14),
    words=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_text_is_cut_before_the_first_complete_stop_word_for_every_division(
    text: str, words: list[str], data: st.DataObject
) -> None:
    cutter = StopCutter(words)
    shown = ""
    for piece in pieces_of(data, text.encode()):
        certain, is_stopped = cutter.push(piece.decode())
        shown += certain
        assert stopped_at(text, words).startswith(shown)
        if is_stopped:
            break
    else:
        shown += cutter.flush()
    assert shown == stopped_at(text, words)


def test_what_may_begin_a_stop_word_is_held_back_no_longer_than_needed() -> None:
    cutter = StopCutter(["<|im_end|>"])
    assert cutter.push("hi<|im") == ("hi", False)
    assert cutter.push("port") == ("<|import", False)
    assert cutter.push("<|im_end|") == ("", False)
    assert cutter.push(">more") == ("", True)


def test_without_stop_words_nothing_is_held_back() -> None:
    cutter = StopCutter([])
    assert cutter.push("abc") == ("abc", False)
    assert cutter.flush() == ""
