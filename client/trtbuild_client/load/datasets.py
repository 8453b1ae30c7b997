"""Where prompts come from: made up with exact lengths, with shared beginnings, from files, from traces."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild_client.errors import InvalidRequest
from trtbuild_client.load.tokens import Counter, text_of
from trtbuild_client.load.workload import Session, Turn

#: Tokens that one hash id of a Mooncake trace stands for (kvcache-ai/Mooncake, FAST25-release/traces/README: "block size 512").
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, normally distributed and cut at 1; a deviation of 0 makes all the same."""

    mean: int
    deviation: float = 0.0

    def draw(self, random_: random.Random) -> int:
        """Return one of them."""
        return self.mean if self.deviation == 0 else max(1, round(random_.gauss(self.mean, self.deviation)))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts.

    Attributes:
        sessions: conversations.
        name: what they are, for reports.
        starts: when each begins, nanoseconds; only of a trace.
    """

    sessions: list[Session]
    name: str
    starts: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Made-up prompts.

    Attributes:
        input_tokens, output_tokens: of each request.
        prefix_tokens: shared beginning, part of `input_tokens`.
        prefix_groups: different shared beginnings.
        turns: requests of each conversation.
        think_ns: between the turns.
    """

    input_tokens: Lengths
    output_tokens: Lengths
    prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    think_ns: int = 0

    def make(self, number: int, counter: Counter, seed: int) -> Dataset:
        """Return so many conversations; the same seed gives the same."""
        if self.prefix_tokens >= self.input_tokens.mean and self.prefix_tokens:
            raise InvalidRequest(
                f"a shared beginning of {self.prefix_tokens} tokens in prompts of {self.input_tokens.mean}",
                hint="Make the prompts longer than what they share.",
            )
        prefixes = [
            text_of(counter, self.prefix_tokens, random.Random(f"{seed} prefix {group}"))
            for group in range(self.prefix_groups if self.prefix_tokens else 0)
        ]
        sessions = []
        for index in range(number):
            random_ = random.Random(f"{seed} prompt {index}")
            turns = []
            for turn in range(self.turns):
                tokens = max(self.input_tokens.draw(random_), self.prefix_tokens + 1 if turn == 0 else 1)
                start = prefixes[index % len(prefixes)] if prefixes and turn == 0 else ""
                text = text_of(counter, tokens, random_, start=start)
                turns.append(Turn(text, self.output_tokens.draw(random_), tokens, self.think_ns if turn else 0))
            sessions.append(tuple(turns))
        shared = f", {self.prefix_tokens} shared by {self.prefix_groups} groups" if self.prefix_tokens else ""
        return Dataset(sessions, f"synthetic, {self.input_tokens.mean} {counter.unit}{shared}")


def read(
    path: Path, counter: Counter, output: Lengths, *, seed: int = 0, speed: float = 1.0, think_ns: int = 0
) -> Dataset:
    """Return the prompts of a file; what kind it is is seen from its content.

    Args:
        path: text (a prompt per line), JSONL (objects with a prompt, or a trace), or JSON in the style of ShareGPT.
        counter: counts the tokens of answers and of blocks.
        output: tokens to ask for where the file does not say.
        seed: of what is drawn.
        speed: a trace is replayed so many times as fast.
        think_ns: between the turns of a conversation.

    Raises:
        InvalidRequest: the file holds no prompts, or a line that cannot be read.
    """
    random_ = random.Random(seed)
    raw = path.read_text("utf-8-sig", "surrogateescape")
    head = raw.lstrip()[:1]
    if head == "[":
        return _conversations(path, _json(path, raw, 1), counter, output, random_, think_ns)
    lines = [(number, line) for number, line in enumerate(raw.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidRequest(f"{path} holds no prompt", hint="Write one per line.")
    if head != "{":
        sessions: list[Session] = [
            (Turn(line.rstrip("\r"), output.draw(random_), counter.count(line)),) for _, line in lines
        ]
        return Dataset(sessions, f"text file {path.name}")
    entries = [(number, _json(path, line, number)) for number, line in lines]
    first = entries[0][1]
    if "timestamp" in first and "input_length" in first:
        return _trace(path, entries, counter, speed)
    if "conversations" in first or "messages" in first:
        return _conversations(path, [entry for _, entry in entries], counter, output, random_, think_ns)
    return _prompts(path, entries, counter, output, random_)


def _json(path: Path, text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{path}, line {number}, is no JSON: {error}", hint="Repair it or remove the line."
        ) from error


def _prompts(
    path: Path, entries: list[tuple[int, Any]], counter: Counter, output: Lengths, random_: random.Random
) -> Dataset:
    sessions: list[Session] = []
    for number, entry in entries:
        text = next((entry[name] for name in ("prompt", "text_input", "text", "input") if name in entry), None)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{path}, line {number}, has no prompt", hint='Write {"prompt": "...", "max_tokens": 64}.'
            )
        wanted = next((entry[name] for name in ("max_tokens", "output_length") if name in entry), None)
        sessions.append((Turn(text, wanted or output.draw(random_), counter.count(text)),))
    return Dataset(sessions, f"JSONL file {path.name}")


#: Who speaks: what ShareGPT and OpenAI call the user and the model.
_USERS, _MODELS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bard")


def _conversations(
    path: Path, entries: list[Any], counter: Counter, output: Lengths, random_: random.Random, think_ns: int
) -> Dataset:
    """Return the user's turns of each conversation; as many tokens are asked for as the answer in the file has."""
    sessions = []
    for entry in entries:
        turns: list[Turn] = []
        question: str | None = None
        for message in entry.get("conversations") or entry.get("messages") or []:
            speaker = message.get("from") or message.get("role")
            text = message.get("value") or message.get("content") or ""
            if speaker in _USERS:
                question = text
            elif speaker in _MODELS and question and text:
                turns.append(Turn(question, counter.count(text), counter.count(question), think_ns if turns else 0))
                question = None
        if not turns and question:
            turns.append(Turn(question, output.draw(random_), counter.count(question)))
        if turns:
            sessions.append(tuple(turns))
    if not sessions:
        raise InvalidRequest(
            f"{path} holds no conversation",
            hint='Entries are {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}.',
        )
    return Dataset(sessions, f"conversations of {path.name}")


def _trace(path: Path, entries: list[tuple[int, Any]], counter: Counter, speed: float) -> Dataset:
    """Return a trace: times in milliseconds, lengths, and ids of blocks; equal ids give equal text, so that prompts share beginnings."""
    sessions: list[Session] = []
    starts: array[int] = array("q")
    blocks = _blocks(counter)
    first_ms = min(entry.get("timestamp", 0) for _, entry in entries)
    for number, entry in sorted(entries, key=lambda each: (each[1].get("timestamp", 0), each[0])):
        try:
            at_ms, tokens, wanted = float(entry["timestamp"]), int(entry["input_length"]), int(entry["output_length"])
            ids = [int(each) for each in entry.get("hash_ids", ())]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{path}, line {number}, is no request of a trace: {error!r}",
                hint='Write {"timestamp": 0, "input_length": 512, "output_length": 64, "hash_ids": [1]}; timestamps in milliseconds.',
            ) from error
        if tokens < 1 or wanted < 1:
            raise InvalidRequest(
                f"{path}, line {number}: {tokens} tokens in, {wanted} out", hint="Both must be at least 1."
            )
        shared = " ".join(blocks(each) for each in ids[: max(0, (tokens - 1) // _BLOCK_TOKENS)])
        start = shared if counter.count(shared) <= tokens else ""
        last = f"block {ids[-1]}" if ids else f"{path.name} {number}"
        text = text_of(counter, tokens, random.Random(last), start=start)
        sessions.append((Turn(text, wanted, tokens),))
        starts.append(round((at_ms - first_ms) * 1e6 / speed))
    return Dataset(sessions, f"trace {path.name} at {speed:g}x", starts)


def _blocks(counter: Counter) -> Callable[[int], str]:
    """Return a function that gives the text of a block by its id."""
    known: dict[int, str] = {}

    def block(number: int) -> str:
        if number not in known:
            known[number] = text_of(counter, _BLOCK_TOKENS, random.Random(f"block {number}"))
        return known[number]

    return block
