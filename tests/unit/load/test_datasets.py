"""Prompts: exact lengths with tokenizers of every kind, shared beginnings, files and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.dataset_files import read
from trtbuild_client.load.datasets import Lengths, Synthetic
from trtbuild_client.load.settings import Prompts
from trtbuild_client.load.tokens import Tokenizer, Words, open_counter, text_of

tokenizers = pytest.importorskip("tokenizers")
_TEXTS = [
    "the quick brown fox jumps over the lazy dog again",
    "time and year of people in the house, water!",
    "aaaa bb c",
]


def byte_level() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(_TEXTS, trainer)
    return made


def metaspace() -> Any:
    alphabet = sorted(set("abcdefghijklmnopqrstuvwxyz.!?,\n"))
    pieces = [
        ("<unk>", 0.0),
        ("▁", -3.0),
        *((each, -4.0) for each in alphabet),
        ("▁the", -2.0),
        ("▁time", -2.0),
        ("er", -3.0),
    ]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return made


def word_piece() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz.!?"),
    )  # fmt: skip
    made.train_from_iterator(_TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


@pytest.fixture(scope="module", params=[byte_level, metaspace, word_piece], ids=lambda make: make.__name__)
def counter(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    request.param().save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.mark.parametrize("tokens", [1, 2, 16, 257])
def test_made_up_prompts_have_exactly_the_length_asked_for(counter: Tokenizer, tokens: int) -> None:
    data = Synthetic(Lengths(tokens), Lengths(8)).make(4, counter, seed=5)
    texts = [session[0].text for session in data.sessions]
    assert [counter.count(text) for text in texts] == [tokens] * 4
    assert tokens < 16 or len(set(texts)) == 4
    assert data.sessions == Synthetic(Lengths(tokens), Lengths(8)).make(4, counter, seed=5).sessions
    assert tokens < 16 or data.sessions != Synthetic(Lengths(tokens), Lengths(8)).make(4, counter, seed=6).sessions


def test_lengths_vary_as_asked_and_are_exact_each(counter: Tokenizer) -> None:
    data = Synthetic(Lengths(60, 12), Lengths(20, 4)).make(40, counter, seed=1)
    planned = [session[0].planned_tokens for session in data.sessions]
    assert planned == [counter.count(session[0].text) for session in data.sessions]
    assert len(set(planned)) > 10 and 50 < sum(planned) / 40 < 70


def test_prompts_of_a_group_share_their_beginning(counter: Tokenizer) -> None:
    data = Synthetic(Lengths(48), Lengths(8), prefix_tokens=32, prefix_groups=2).make(6, counter, seed=0)
    texts = [session[0].text for session in data.sessions]
    assert [counter.count(text) for text in texts] == [48] * 6
    beginnings = [text[:12] for text in texts]
    assert beginnings[0] == beginnings[2] == beginnings[4] != beginnings[1] == beginnings[3]
    assert len(set(texts)) == 6


def test_a_trace_gives_equal_blocks_equal_text(counter: Tokenizer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = [
        {"timestamp": 2000, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 4]},
        {"timestamp": 4000, "input_length": 20, "output_length": 3, "hash_ids": [9]},
    ]
    trace.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    data = read(trace, counter, Lengths(64), speed=2.0)
    assert data.starts is not None and data.starts.tolist() == [0, 500_000_000, 1_500_000_000]
    turns = [session[0] for session in data.sessions]
    assert [counter.count(each.text) for each in turns] == [1030, 1100, 20]
    assert [each.max_tokens for each in turns] == [5, 7, 3]
    shared = len(turns[0].text) * 1000 // 1030
    assert turns[0].text[: shared - 50] == turns[1].text[: shared - 50]
    assert turns[2].text[:10] != turns[0].text[:10]


def test_without_a_tokenizer_words_are_counted_and_that_is_said() -> None:
    data = Synthetic(Lengths(16), Lengths(8)).make(2, open_counter(None), seed=0)
    assert len(data.sessions[0][0].text.split()) == 16
    assert "no tokenizer given: 1.2 to 1.5 tokens each" in data.name


def test_conversations_in_the_style_of_sharegpt_become_turns(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text(
        json.dumps(
            [
                {"id": "a", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q one"}, {"from": "gpt", "value": "a b c"},
                 {"from": "human", "value": "q two"}, {"from": "gpt", "value": "d"}]},
                {"id": "b", "conversations": [{"from": "gpt", "value": "no question"}]},
                {"messages": [{"role": "user", "content": "Яблоко 🙂"}]},
            ]
        ),
        encoding="utf-8",
    )  # fmt: skip
    data = read(path, Words(), Lengths(64), think_ns=5)
    assert [[turn.text for turn in session] for session in data.sessions] == [["q one", "q two"], ["Яблоко 🙂"]]
    assert [turn.max_tokens for turn in data.sessions[0]] == [3, 1] and data.sessions[1][0].max_tokens == 64
    assert [turn.think_ns for turn in data.sessions[0]] == [0, 5]


def test_text_and_jsonl_files_hold_a_prompt_per_line(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_bytes("\ufeffone\r\n\r\nзвук\u2028here\n".encode())
    assert [session[0].text for session in read(text, Words(), Lengths(5)).sessions] == ["one", "звук\u2028here"]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a", "max_tokens": 3}\n{"text_input": "b"}\n')
    assert [session[0].max_tokens for session in read(lines, Words(), Lengths(5)).sessions] == [3, 5]


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no tokenizer\.json"):
        open_counter(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        open_counter(tmp_path)


def test_a_length_that_a_tokenizer_cannot_meet_is_refused() -> None:
    class Even(Words):
        def count(self, text: str) -> int:
            return 2 * super().count(text)

    import random

    with pytest.raises(InvalidRequest, match="no text of exactly 3 tokens"):
        text_of(Even(), 3, random.Random(0))


def test_prompts_longer_than_the_model_takes_are_refused_before_the_run() -> None:
    with pytest.raises(InvalidRequest, match="makes 300, and the model takes 256"):
        Prompts(input_tokens=Lengths(200), output_tokens=Lengths(100), max_seq_len=256).dataset(4)
    assert Prompts(input_tokens=Lengths(156), output_tokens=Lengths(100), max_seq_len=256).dataset(4).sessions


def test_a_shared_beginning_must_be_shorter_than_the_prompt() -> None:
    with pytest.raises(InvalidRequest, match="shared beginning of 32 tokens"):
        Synthetic(Lengths(32), Lengths(1), prefix_tokens=32).make(1, Words(), 0)
