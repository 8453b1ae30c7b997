"""The incremental detokenizer: the text of a stream is the text of the whole, however the stream is cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.templates.tiny_tokenizers import BYTE_SYMBOLS, byte_ids, byte_level, metaspace

#: Text without U+FFFD, which is what an unfinished character looks like.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40)
CUTS = st.lists(st.integers(1, 8), min_size=1, max_size=6)
KINDS = {"byte": byte_level, "metaspace": metaspace, "bos": lambda: byte_level(adds_bos=True)}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.fixture(scope="module")
def detokenizer(shipped: Callable[[str], SimpleNamespace]) -> Any:
    return shipped("postprocessing").detokenizer


def decode_with(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def stream(detokenizer: Any, tokenizer: Any, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    """Push the ids in pieces whose sizes are `cuts` over and over; return the deltas."""
    running, deltas, position, turn = detokenizer.Detokenizer(decode_with(tokenizer)), [], 0, 0
    while position < len(ids):
        size = cuts[turn % len(cuts)]
        deltas.append(running.push(ids[position : position + size]))
        position, turn = position + size, turn + 1
    return deltas


@given(text=TEXTS, cuts=CUTS)
def test_the_deltas_of_a_text_join_to_the_text(detokenizer: Any, tokenizer: Any, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(stream(detokenizer, tokenizer, ids, cuts)) == whole


@given(text=TEXTS, cuts=CUTS, data=st.data())
def test_a_stream_that_ends_inside_a_character_gives_the_finished_ones(
    detokenizer: Any, tokenizer: Any, text: str, cuts: list[int], data: st.DataObject
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    spelled = b"".join(bytes_of(tokenizer.id_to_token(token_id)) for token_id in ids)
    finished = spelled.decode("utf-8", "ignore")
    if tokenizer.token_to_id("▁") is not None:
        finished = finished.removeprefix(" ")
    assert "".join(stream(detokenizer, tokenizer, ids, cuts)) == finished


def bytes_of(piece: str) -> bytes:
    """Return the bytes a token stands for: a byte token of either kind, or a metaspace word."""
    if piece in BYTE_SYMBOLS:
        return bytes([BYTE_SYMBOLS[piece]])
    if piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


@given(data=st.data(), cuts=CUTS)
def test_the_text_of_any_tokens_does_not_depend_on_how_they_are_cut(
    detokenizer: Any, tokenizer: Any, data: st.DataObject, cuts: list[int]
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60))
    one_by_one = "".join(stream(detokenizer, tokenizer, ids, [1]))
    assert "".join(stream(detokenizer, tokenizer, ids, cuts)) == one_by_one
    assert "".join(stream(detokenizer, tokenizer, ids, [max(len(ids), 1)])) == one_by_one


def test_each_piece_of_an_emoji_gives_nothing_and_the_last_the_emoji(detokenizer: Any) -> None:
    assert stream(detokenizer, byte_level(), byte_ids("a🙂b"), [1]) == ["a", "", "", "", "🙂", "b"]


def test_characters_of_many_tokens_come_out_whole(detokenizer: Any) -> None:
    ids = byte_ids("é家👩‍👩‍👧")
    assert len(ids) == 23
    assert "".join(stream(detokenizer, byte_level(), ids, [1])) == "é家👩‍👩‍👧"


def test_spaces_of_metaspace_tokens_are_kept_and_the_first_is_dropped(detokenizer: Any) -> None:
    tokenizer = metaspace()
    ids = [tokenizer.token_to_id(piece) for piece in ("▁Deep", "▁learning", "▁is", "▁fun", ".")]
    assert stream(detokenizer, tokenizer, ids, [1]) == ["Deep", " learning", " is", " fun", "."]


def test_a_finished_character_stays_when_unfinished_bytes_follow(detokenizer: Any) -> None:
    tokenizer = metaspace()
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "é🙂".encode()]
    assert stream(detokenizer, tokenizer, ids, [1]) == ["", "é", "", "", "", "🙂"]


class WordsWithSpaces:
    """A tokenizer that puts a space between two words, so that pieces decoded alone lack it."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = ""
        for before, token_id in zip([None, *ids], ids, strict=False):
            is_word = token_id % 2 == 0
            text += (" " if is_word and before is not None and before % 2 == 0 else "") + (
                f"w{token_id}" if is_word else f"-{token_id}-"
            )
        return text


@pytest.mark.parametrize("size", [1, 3, 8])
def test_spaces_between_words_survive_any_size_of_pieces(detokenizer: Any, size: int) -> None:
    ids = [2, 4, 7, 8, 6, 5, 5, 10, 12, 14, 3, 2, 2, 4]
    whole = WordsWithSpaces().decode(ids, skip_special_tokens=False)
    assert "".join(stream(detokenizer, WordsWithSpaces(), ids, [size])) == whole


@pytest.mark.parametrize("ids", [byte_ids("hello é 家 "), byte_ids(b"\x80"), byte_ids("a") + byte_ids(b"\xf0\x9f")])
def test_the_work_grows_with_the_length_and_not_with_its_square(detokenizer: Any, ids: list[int]) -> None:
    def work(length: int) -> int:
        decoded = 0

        def decode(window: Sequence[int]) -> str:
            nonlocal decoded
            decoded += len(window)
            return str(tokenizer.decode(list(window), skip_special_tokens=False))

        detokenizer.Detokenizer(decode).push((ids * length)[:length])
        return decoded

    tokenizer = byte_level()
    assert work(4000) < 2.2 * work(2000)
    assert work(2000) <= 2000 * 2 * (detokenizer.MAX_WINDOW + 1)


@given(ids=st.lists(st.sampled_from([*byte_ids("aé"), 256, 257, 258]), max_size=20), cuts=CUTS)
def test_ids_that_end_answers_come_out_only_before_something_else(
    detokenizer: Any, ids: list[int], cuts: list[int]
) -> None:
    tokenizer, ends = byte_level(), {257, 258}
    running, text, rest = detokenizer.Detokenizer(decode_with(tokenizer), ends), "", list(ids)
    for size in itertools.cycle(cuts):
        text += running.push(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    while ids and ids[-1] in ends:
        ids.pop()
    assert text == "".join(stream(detokenizer, tokenizer, ids, [1]))


def test_invalid_bytes_are_put_out_once_they_cannot_become_a_character(detokenizer: Any) -> None:
    deltas = stream(detokenizer, byte_level(), byte_ids(b"\x80" * 8 + b"a"), [1])
    assert "".join(deltas) == "\ufffd" * 8 + "a"
    assert deltas[-1] != "\ufffd" * 8 + "a"


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_streams_are_kept_apart_by_their_key(detokenizer: Any) -> None:
    streams = detokenizer.Streams(
        lambda: detokenizer.Detokenizer(decode_with(byte_level())), capacity=8, idle_seconds=10, clock=Clock()
    )
    first, second = byte_ids("é"), byte_ids("家")
    assert [streams.of("a").push(first[:1]), streams.of("b").push(second[:2])] == ["", ""]
    assert [streams.of("a").push(first[1:]), streams.of("b").push(second[2:])] == ["é", "家"]


def test_the_longest_unused_stream_goes_when_there_are_too_many(detokenizer: Any) -> None:
    streams = detokenizer.Streams(
        lambda: detokenizer.Detokenizer(decode_with(byte_level())), capacity=2, idle_seconds=10, clock=Clock()
    )
    kept = streams.of("kept")
    streams.of("gone")
    assert streams.of("kept") is kept
    streams.of("new")
    assert len(streams) == 2
    assert streams.of("kept") is kept


def test_a_stream_that_was_idle_for_too_long_starts_anew(detokenizer: Any) -> None:
    clock = Clock()
    streams = detokenizer.Streams(
        lambda: detokenizer.Detokenizer(decode_with(byte_level())), capacity=8, idle_seconds=10, clock=clock
    )
    first = streams.of("a")
    clock.seconds = 10.0
    assert streams.of("a") is first
    clock.seconds = 20.5
    assert streams.of("b") is not first
    assert len(streams) == 1
    assert streams.of("a") is not first
