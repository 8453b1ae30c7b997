"""A tiny model that says what it was taught, built and served by the real commands on a real tritonserver.

It is overfitted on a few texts in a few seconds, so that answers hold emoji, other scripts, leading spaces and newlines, cut over tokens
by a byte-level tokenizer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: Prompt -> the answer that is learned.
TAUGHT = {
    "emoji:": " 🙂 hé 👩‍👩‍👧 ok",
    "cjk:": "北京 日本の鉄道 서울",
    "space:": "   three spaces, then\n\na new line",
    "stop:": "first END second",
    "count:": "one two three four five six seven eight nine ten",
    "code:": "def f(x):\n    return x",
    "accent:": "Ça coûte 12 €",
    "plain:": "the quick brown fox",
}
EOS = "<|end|>"


@dataclass(frozen=True)
class Deployment:
    """What the tests talk to."""

    model_folder: Path
    build_folder: Path
    grpc_url: str
    http_url: str
    metrics_url: str
    tokenizer: Any
    model: Any

    def expected(self, prompt: str, max_tokens: int) -> list[int]:
        """Return the ids that `model.generate` gives greedily, without the end token."""
        import torch

        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = self.model.generate(ids, max_new_tokens=max_tokens, do_sample=False)[0, ids.shape[1] :].tolist()
        return out[: out.index(self.tokenizer.eos_token_id)] if self.tokenizer.eos_token_id in out else out

    def text(self, prompt: str, max_tokens: int) -> str:
        """Return the text of `expected`; a character that is cut off at the very end is not part of an answer."""
        text = self.tokenizer.decode(
            self.expected(prompt, max_tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text.rstrip("\ufffd")


def make_tokenizer(folder: Path) -> Any:
    """Write a byte-level BPE with a few merges, so that characters and words are cut in odd places."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=[EOS], show_progress=False)
    tokenizer.train_from_iterator([prompt + answer for prompt, answer in TAUGHT.items()], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, clean_up_tokenization_spaces=False
    )
    wrapped.save_pretrained(folder)
    return wrapped


#: What makes the taught model of each type, beside its sizes.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 3, "head_dim": 16, "tie_word_embeddings": True},
    "gpt_neox": {"rotary_pct": 0.5},
}


def teach(folder: Path, model_type: str) -> tuple[Any, Any]:
    """Write a model that gives the taught answers; return tokenizer and model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=6, max_position_embeddings=256, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id, **KINDS[model_type],
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    pairs = [
        (tokenizer(prompt)["input_ids"], tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id])
        for prompt, answer in TAUGHT.items()
    ]
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.full((len(pairs), width), tokenizer.eos_token_id)
    labels = torch.full((len(pairs), width), -100)
    for row, (prompt, answer) in enumerate(pairs):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    model.train()
    for _ in range(400):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 1e-2:
            break
    model.eval()
    model.save_pretrained(folder)
    return tokenizer, model


def trtbuild(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does; fail with its words."""
    done = subprocess.run(
        [sys.executable, "-m", "trtbuild", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The taught model: folder, tokenizer, model; it gives every taught answer."""
    folder = tmp_path_factory.mktemp("taught") / "model"
    folder.mkdir()
    tokenizer, model = teach(folder, "llama")
    return folder, tokenizer, model


@pytest.fixture(scope="session")
def deployment(taught: tuple[Path, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The taught model behind a real server: scheme none, float32, tp 3."""
    with deployed(*taught, tmp_path_factory.mktemp("deployment")) as running:
        yield running


@contextmanager
def deployed(folder: Path, tokenizer: Any, model: Any, place: Path) -> Iterator[Deployment]:
    """Build, render and serve a model."""
    from trtbuild.serve.ports import Ports
    from trtbuild.serve.supervisor import Server

    config = {
        "model": {"path": str(folder), "dtype": "float32"},
        "parallel": {"tp_size": 3},
        "limits": {"max_batch_size": 16, "max_num_tokens": 256},
        "serving": {"bls_instances": 2},
    }
    (place / "trtbuild.yaml").write_text(json.dumps(config))
    trtbuild("build", place / "trtbuild.yaml", "-o", place / "build", "--quiet")
    trtbuild("render", place / "build", "--quiet")
    trtbuild("lint", place / "build" / "repository", "--quiet")
    with Server(place / "build", ports=Ports(0, 0, 0)) as server:
        yield Deployment(
            folder, place / "build", server.grpc_url, server.http_url, server.metrics_url, tokenizer, model
        )
