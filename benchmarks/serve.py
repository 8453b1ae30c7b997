"""Compare the reference target behind Triton with what serves the same model without it, in one run.

    python benchmarks/serve.py [MODEL] [--streams 16] [--max-tokens 64] [--rounds 3] [--json]

Rows: `trtbuild` (tritonserver, ensemble, gRPC streams), `transformers generate_batch` (the ceiling that is held against
it), `transformers generate` (one request at a time) and, where it is installed, `vllm`. Every prompt is used once, so
no cache can help; all use float32, greedy decoding, the same block size, pool and tokens per step. The contestants take
turns, round by round, so that a change in the machine's load hits all of them. Medians are shown. MODEL is a Hugging
Face folder; without one it is the model of `trtbuild demo`.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from trtbuild.building import build
from trtbuild.console import print_json, stdout_console
from trtbuild.demo.smollm import shared_model
from trtbuild.repo.context import build_context
from trtbuild.repo.render import render
from trtbuild.serve.ports import Ports
from trtbuild.serve.supervisor import Server
from trtbuild.spec import parse
from trtbuild_client import Client

TOKENS_PER_BLOCK = 32
POOL_TOKENS = 16384
MAX_NUM_TOKENS = 512
NO_END_ID = -1
THROUGHPUT_GOAL = 0.9
FIRST_TOKEN_GOAL = 2.0

Prompts = list[str]


@dataclass
class Result:
    """What one contestant did; every list has one entry per round.

    Attributes:
        tokens_per_s: all streams together, from the first request sent to the last token received.
        first_token_s: of a request that is alone.
    """

    tokens_per_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Contestant:
    """Someone who answers prompts: all at once, returning the number of tokens, and one alone until its first token."""

    name: str
    answer_all: Callable[[Prompts, int], int] | None
    first_token: Callable[[str], float] | None


def main() -> None:
    arguments = parse_arguments()
    folder = arguments.model or shared_model()
    contestants = [transformers_contestant(folder), generate_contestant(folder)]
    results = {}
    with ExitStack() as stack:
        contestants.insert(0, stack.enter_context(trtbuild_contestant(folder, arguments.streams)))
        if find_spec("vllm"):
            contestants.append(stack.enter_context(vllm_contestant(folder)))
        results = run(contestants, arguments)
    report(results, arguments, folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", type=Path, help="Hugging Face folder")
    parser.add_argument("--streams", type=int, default=16, help="concurrent requests")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of every answer")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of every contestant, after one that is not counted"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def run(contestants: list[Contestant], arguments: argparse.Namespace) -> dict[str, Result]:
    results = {contestant.name: Result() for contestant in contestants}
    for round_number in range(arguments.rounds + 1):
        for contestant in contestants:
            result = Result() if round_number == 0 else results[contestant.name]  # the first round only warms up
            if contestant.answer_all is not None:
                prompts = unique_prompts(arguments.streams)
                started = time.perf_counter()
                tokens = contestant.answer_all(prompts, arguments.max_tokens)
                result.tokens_per_s.append(tokens / (time.perf_counter() - started))
            if contestant.first_token is not None:
                seconds = [contestant.first_token(prompt) for prompt in unique_prompts(5)]
                result.first_token_s.append(statistics.median(seconds))
    return results


_numbers = iter(range(10**9))


def unique_prompts(count: int) -> Prompts:
    """Return prompts of about 40 tokens that differ from the first word on, from each other and from all before."""
    return [
        f"{number} is the number of this request. Tell the story of the town with that number on its gate: "
        "who built it, who lives there now, and what they do when it rains."
        for number in (next(_numbers) for _ in range(count))
    ]


@contextmanager
def trtbuild_contestant(folder: Path, streams: int) -> Iterator[Contestant]:
    deployment = parse(
        {
            "model": {"path": str(folder.resolve()), "dtype": "float32"},
            "limits": {"max_batch_size": streams, "max_seq_len": 1024, "max_num_tokens": MAX_NUM_TOKENS},
            "kv_cache": {"tokens_per_block": TOKENS_PER_BLOCK, "max_tokens": POOL_TOKENS},
        },
        origin="benchmark",
    )
    with tempfile.TemporaryDirectory(prefix="trtbuild-bench-") as temporary, ThreadPoolExecutor(streams) as pool:
        place = Path(temporary)
        summary = build(deployment, place / "build", force=False, quiet=True)
        checkpoint = Path(summary["checkpoint"])
        context = build_context(
            deployment,
            _json(checkpoint / "config.json"),
            checkpoint_dir=checkpoint,
            tokenizer_dir=checkpoint / "tokenizer",
        )
        render(context, place / "repository")
        with ExitStack() as stack:
            server = stack.enter_context(Server(place / "repository", ports=Ports(0, 0, 0)))
            clients = [stack.enter_context(Client(server.grpc_url)) for _ in range(streams)]

            def answer_all(prompts: Prompts, max_tokens: int) -> int:
                start = threading.Barrier(len(prompts))

                def ask(client: Client, prompt: str) -> int:
                    start.wait()
                    stream = client.stream(
                        prompt, max_tokens=max_tokens, end_id=NO_END_ID, return_num_output_tokens=True
                    )
                    for _ in stream:
                        pass
                    return stream.generation.record.output_tokens

                return sum(pool.map(ask, clients, prompts))

            def first_token(prompt: str) -> float:
                started = time.perf_counter()
                chunks = iter(clients[0].stream(prompt, max_tokens=2, end_id=NO_END_ID))
                next(chunks)
                seconds = time.perf_counter() - started
                for _ in chunks:
                    pass
                return seconds

            yield Contestant("trtbuild (Triton, ensemble)", answer_all, first_token)


def _json(path: Path) -> dict[str, Any]:
    import json

    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def load(folder: Path) -> tuple[Any, Any]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    return model, AutoTokenizer.from_pretrained(folder)


def transformers_contestant(folder: Path) -> Contestant:
    model, tokenizer = load(folder)

    def answer_all(prompts: Prompts, max_tokens: int) -> int:
        outputs = model.generate_batch(
            [tokenizer(prompt)["input_ids"] for prompt in prompts],
            generation_config=GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=NO_END_ID),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=TOKENS_PER_BLOCK, num_blocks=POOL_TOKENS // TOKENS_PER_BLOCK, max_batch_tokens=MAX_NUM_TOKENS
            ),
            persistent_manager=True,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return Contestant("transformers generate_batch", answer_all, None)


def generate_contestant(folder: Path) -> Contestant:
    model, tokenizer = load(folder)

    def first_token(prompt: str) -> float:
        started = time.perf_counter()
        inputs = tokenizer(prompt, return_tensors="pt")
        model.generate(**inputs, max_new_tokens=1, do_sample=False, pad_token_id=0)
        return time.perf_counter() - started

    return Contestant("transformers generate", None, first_token)


@contextmanager
def vllm_contestant(folder: Path) -> Iterator[Contestant]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        dtype="float32",
        max_model_len=1024,
        block_size=TOKENS_PER_BLOCK,
        max_num_batched_tokens=MAX_NUM_TOKENS,
    )

    def answer_all(prompts: Prompts, max_tokens: int) -> int:
        settings = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return sum(len(output.outputs[0].token_ids) for output in engine.generate(prompts, settings, use_tqdm=False))

    def first_token(prompt: str) -> float:
        started = time.perf_counter()
        engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        return time.perf_counter() - started

    yield Contestant("vllm", answer_all, first_token)


def machine() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def report(results: dict[str, Result], arguments: argparse.Namespace, folder: Path) -> None:
    ours, ceiling, alone = list(results.values())[:3]
    throughput = [mine / theirs for mine, theirs in zip(ours.tokens_per_s, ceiling.tokens_per_s, strict=True)]
    latency = [mine / theirs for mine, theirs in zip(ours.first_token_s, alone.first_token_s, strict=True)]
    ratios = {"throughput": statistics.median(throughput), "first_token": statistics.median(latency)}
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "model")}
        print_json(
            {
                "machine": machine(),
                "model": folder.name,
                "settings": settings,
                "results": {name: asdict(result) for name, result in results.items()},
                "ratios": {name: round(value, 3) for name, value in ratios.items()},
                "goals": {"throughput": THROUGHPUT_GOAL, "first_token": FIRST_TOKEN_GOAL},
            }
        )
        return
    facts = machine()
    console = stdout_console()
    console.print(
        f"{folder.name}, float32, {arguments.streams} streams x {arguments.max_tokens} tokens, medians of "
        f"{arguments.rounds} rounds\n{facts['cpu']}, {facts['cores']} cores, load {facts['load_average']}, Python "
        f"{facts['python']}, torch {facts['torch']}, transformers {facts['transformers']}"
    )
    table = Table("", "tokens/s", "first token alone, ms")
    for name, result in results.items():
        table.add_row(
            name,
            f"{statistics.median(result.tokens_per_s):.1f}" if result.tokens_per_s else "",
            f"{statistics.median(result.first_token_s) * 1000:.0f}" if result.first_token_s else "",
        )
    console.print(table)
    console.print(
        f"throughput: {ratios['throughput']:.2f} x generate_batch (goal: at least {THROUGHPUT_GOAL})\n"
        f"first token: {ratios['first_token']:.2f} x generate (goal: at most {FIRST_TOKEN_GOAL})"
    )


if __name__ == "__main__":
    main()
