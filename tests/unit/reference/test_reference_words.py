"""Stop words and bad words, compared with a slow oracle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtbuild.reference.words import StopWords, completions

TOKENS = st.lists(st.integers(0, 2), max_size=12)
WORDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=4).map(tuple)


def cut(tokens: list[int], words: tuple[tuple[int, ...], ...]) -> tuple[list[int], bool]:
    """The oracle: look at every prefix for a word at its end; the longest word wins."""
    for end in range(1, len(tokens) + 1):
        found = [word for word in words if tuple(tokens[max(0, end - len(word)) : end]) == word]
        if found:
            return tokens[: end - max(map(len, found))], True
    return tokens, False


@given(TOKENS, WORDS)
def test_streamed_tokens_are_those_before_the_first_stop_word(
    tokens: list[int], words: tuple[tuple[int, ...], ...]
) -> None:
    stop = StopWords(words)
    released: list[int] = []
    is_complete = False
    for token in tokens:
        new, is_complete = stop.push(token)
        released += new
        if is_complete:
            break
    if not is_complete:
        released += stop.flush()
    assert (released, is_complete) == cut(tokens, words)


@given(TOKENS, WORDS)
def test_a_token_is_held_back_only_while_it_may_begin_a_stop_word(
    tokens: list[int], words: tuple[tuple[int, ...], ...]
) -> None:
    stop = StopWords(words)
    for position, token in enumerate(tokens, 1):
        if stop.push(token)[1]:
            return
        beginnings = {word[:size] for word in words for size in range(1, len(word))}
        tails = [size for size in range(1, position + 1) if tuple(tokens[position - size : position]) in beginnings]
        assert stop.num_held == max(tails, default=0)


def test_the_special_token_that_ends_a_turn_is_not_part_of_the_answer() -> None:
    stop = StopWords(((9,),))
    assert stop.push(5) == ([5], False)
    assert stop.push(6) == ([6], False)
    assert stop.push(9) == ([], True)
    assert stop.flush() == []


@given(TOKENS, WORDS)
def test_completions_are_the_tokens_that_would_finish_a_word(
    tokens: list[int], words: tuple[tuple[int, ...], ...]
) -> None:
    expected = {token for token in range(3) for word in words if tuple([*tokens, token][-len(word) :]) == word}
    assert set(completions(words, tokens)) == expected
