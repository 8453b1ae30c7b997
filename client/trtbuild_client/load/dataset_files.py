"""Prompts from files: a text, JSONL, conversations, a trace. What kind it is is seen from its content."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.dataset_fields import (
    HASH_IDS,
    INPUT_LENGTH,
    MESSAGES,
    OUTPUT_LENGTH,
    PART,
    PROMPT,
    SAID,
    SPEAKER,
    TIMESTAMP,
    WANTED,
    Record,
    records_of_lines,
    records_of_list,
    text_of_file,
)
from trtbuild_client.load.datasets import Dataset, Lengths
from trtbuild_client.load.tokens import Counter, text_of
from trtbuild_client.load.workload import Session, Turn

#: Tokens that one hash id of a Mooncake trace stands for (kvcache-ai/Mooncake, FAST25-release/traces/README: "block size 512").
_BLOCK_TOKENS = 512
#: Latest beginning, nanoseconds: what a column of 64 bits holds.
_MOST_NS = 2**63 - 1
#: Who speaks: what ShareGPT and OpenAI call the user and the model.
_USERS, _MODELS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bard")
#: Records as they should be, for hints.
_PROMPT_EXAMPLE = '{"prompt": "...", "max_tokens": 64}'
_TALK_EXAMPLE = '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}'
_TRACE_EXAMPLE = (
    '{"timestamp": 0, "input_length": 512, "output_length": 64, "hash_ids": [1]}; timestamps in milliseconds'
)


def read(
    path: Path, counter: Counter, output: Lengths, *, seed: int = 0, speed: float = 1.0, think_ns: int = 0
) -> Dataset:
    """Return the prompts of a file.

    Args:
        path: text (a prompt per line), or objects as JSONL or one JSON list: prompts, conversations (ShareGPT, OpenAI), or a trace.
        counter: counts the tokens of answers and of blocks.
        output: tokens to ask for where the file does not say.
        seed: of what is drawn.
        speed: a trace is replayed so many times as fast.
        think_ns: between the turns of a conversation.

    Raises:
        InvalidRequest: the file holds no prompts, or a record that is not as it must be; says the line.
    """
    random_ = random.Random(seed)
    raw = text_of_file(path)
    head = raw.lstrip()[:1]
    lines = [(number, line) for number, line in enumerate(raw.split("\n"), 1) if line.strip()]
    if head not in ("[", "{"):
        texts = [line.rstrip("\r") for _, line in lines]
        _refuse_empty(path, texts)
        return Dataset(
            [(Turn(text, output.draw(random_), counter.count(text)),) for text in texts], f"text file {path.name}"
        )
    records = list(records_of_list(path, raw) if head == "[" else records_of_lines(path, lines))
    _refuse_empty(path, records)
    first = records[0].values
    if "timestamp" in first and "input_length" in first:
        return _trace(path, records, counter, speed)
    if any(name in first for name in MESSAGES.names):
        return _conversations(path, records, counter, output, random_, think_ns)
    return _prompts(path, records, counter, output, random_)


def _refuse_empty(path: Path, found: list[str] | list[Record]) -> None:
    if not found:
        raise InvalidRequest(f"{path} holds no prompt", hint="Write one per line.")


def _prompts(path: Path, records: list[Record], counter: Counter, output: Lengths, random_: random.Random) -> Dataset:
    sessions: list[Session] = []
    for record in records:
        text = record.need(PROMPT, _PROMPT_EXAMPLE)
        sessions.append((Turn(text, record.get(WANTED) or output.draw(random_), counter.count(text)),))
    return Dataset(sessions, f"JSONL file {path.name}")


def _conversations(
    path: Path, records: list[Record], counter: Counter, output: Lengths, random_: random.Random, think_ns: int
) -> Dataset:
    """Return the user's turns of each conversation; as many tokens are asked for as the record says, or the answer in the file has.

    Blank messages and conversations without a question are left out, as ShareGPT's own files have them.
    """
    sessions = []
    for record in records:
        turns: list[Turn] = []
        question = ""
        wanted = record.get(WANTED)
        for number, message in enumerate(record.need(MESSAGES, _TALK_EXAMPLE), 1):
            entry = Record(f"{record.place}, message {number}", message)
            speaker = entry.need(SPEAKER, _TALK_EXAMPLE)
            text = _said(entry) if speaker in (*_USERS, *_MODELS) else ""
            if speaker in _USERS:
                question = text
            elif speaker in _MODELS and question.strip() and text.strip():
                tokens = wanted or max(1, counter.count(text))
                turns.append(Turn(question, tokens, counter.count(question), think_ns if turns else 0))
                question = ""
        if not turns and question.strip():
            turns.append(Turn(question, wanted or output.draw(random_), counter.count(question)))
        if turns:
            sessions.append(tuple(turns))
    if not sessions:
        raise InvalidRequest(f"{path} holds no conversation", hint=f"Entries are {_TALK_EXAMPLE}.")
    return Dataset(sessions, f"conversations of {path.name}")


def _said(message: Record) -> str:
    """Return the text of a message: of parts in OpenAI's form, that of all together."""
    said = message.get(SAID)
    if not isinstance(said, list):
        return said or ""
    texts = []
    for number, values in enumerate(said, 1):
        part = Record(f"{message.place}, part {number}", values)
        if values["type"] != "text":
            raise InvalidRequest(
                f"{part.place} is of type '{values['type']}'",
                hint="Only parts of type 'text' can be sent: remove the others.",
            )
        texts.append(part.need(PART, '{"type": "text", "text": "..."}'))
    return "".join(texts)


def _trace(path: Path, records: list[Record], counter: Counter, speed: float) -> Dataset:
    """Return a trace: times in milliseconds, lengths, and ids of blocks; equal ids give equal text, so that prompts share beginnings."""
    sessions: list[Session] = []
    starts: array[int] = array("q")
    blocks = _blocks(counter)
    timed = [(record.need(TIMESTAMP, _TRACE_EXAMPLE), number, record) for number, record in enumerate(records)]
    timed.sort(key=lambda each: each[:2])
    first_ms = timed[0][0]
    for at_ms, number, record in timed:
        tokens = record.need(INPUT_LENGTH, _TRACE_EXAMPLE)
        wanted = record.need(OUTPUT_LENGTH, _TRACE_EXAMPLE)
        ids = record.get(HASH_IDS) or []
        needed = -(-tokens // _BLOCK_TOKENS)
        if ids and len(ids) != needed:
            raise InvalidRequest(
                f"{record.place}: {tokens} tokens are {needed} blocks of {_BLOCK_TOKENS}, and 'hash_ids' has {len(ids)}",
                hint="Give one id for each block, the last one begun included, or leave them out.",
            )
        start_ns = (at_ms - first_ms) * 1e6 / speed
        if start_ns > _MOST_NS:
            raise InvalidRequest(
                f"{record.place}: at --speed {speed:g} it begins {start_ns / 1e9:.3g} s after the first",
                hint="That is beyond what can be timed: replay it faster.",
            )
        shared = " ".join(blocks(each) for each in ids[: (tokens - 1) // _BLOCK_TOKENS])
        start = shared if counter.count(shared) <= tokens else ""
        last = f"block {ids[-1]}" if ids else f"{path.name} {number}"
        text = text_of(counter, tokens, random.Random(last), start=start)
        sessions.append((Turn(text, wanted, tokens),))
        starts.append(round(start_ns))
    return Dataset(sessions, f"trace {path.name} at {speed:g}x", starts)


def _blocks(counter: Counter) -> Callable[[int], str]:
    """Return a function that gives the text of a block by its id."""
    known: dict[int, str] = {}

    def block(number: int) -> str:
        if number not in known:
            known[number] = text_of(counter, _BLOCK_TOKENS, random.Random(f"block {number}"))
        return known[number]

    return block
