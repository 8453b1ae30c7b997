"""A small stand-in for tensorrt_llm: the LLM repeats the prompt's words, one every few milliseconds.

Only what a Triton model uses: `LLM`, `SamplingParams`, and results that can be awaited, iterated and aborted. Arguments are checked as
strictly as the real ones are: an unknown one raises. Prompts are written to llm.begun in the model's folder, and how they ended to llm.log.

A prompt with "too long" is refused when it is submitted; one with "breaks" fails after a token; one with "quits" ends as cancelled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Generator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SECONDS_PER_TOKEN = 0.002
_LLM_ARGUMENTS = frozenset({
    "model", "tokenizer", "tensor_parallel_size", "pipeline_parallel_size", "moe_expert_parallel_size", "max_batch_size", "max_num_tokens",
    "max_seq_len", "max_beam_width", "enable_chunked_prefill", "kv_cache_config", "cuda_graph_config", "scheduler_config", "stream_interval",
    "moe_config", "attn_backend", "speculative_config", "lora_config", "peft_cache_config", "guided_decoding_backend", "enable_attention_dp",
    "disable_overlap_scheduler",
})  # fmt: skip


class RequestError(RuntimeError):
    """The engine refuses a request."""


@dataclasses.dataclass
class SamplingParams:
    """Sampling parameters; a value out of range raises ValueError."""

    best_of: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    max_tokens: int = 32
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.best_of is not None and self.best_of > 8:
            raise ValueError(f"best_of ({self.best_of}) is beyond max_beam_width (8)")


class Result:
    """A request on its way: awaitable for the whole answer, iterable for all states of it."""

    def __init__(self, llm: LLM, prompt: str, sampling: SamplingParams, streaming: bool) -> None:
        self._llm, self.prompt, self._sampling, self._streaming = llm, prompt, sampling, streaming
        self._aborted = threading.Event()
        self.tokens = 0
        self.outputs = [SimpleNamespace(
            text="", finish_reason=None, stop_reason=None, cumulative_logprob=None, request_perf_metrics=None
        )]  # fmt: skip

    @property
    def finished(self) -> bool:
        return self.outputs[0].finish_reason is not None

    def abort(self) -> None:
        self._aborted.set()
        self._llm.log(self, "aborted")

    def __await__(self) -> Generator[Any, None, Result]:
        return self._whole().__await__()

    async def _whole(self) -> Result:
        async for _ in self:
            pass
        return self

    async def __aiter__(self) -> AsyncIterator[Result]:
        first, words, sampling = self.outputs[0], self.prompt.split(), self._sampling
        while not self.finished:
            await asyncio.sleep(SECONDS_PER_TOKEN)
            if "breaks" in self.prompt and self.tokens:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            first.text += ("" if not self.tokens else " ") + words[self.tokens % len(words)]
            self.tokens += 1
            for word in sampling.stop or ():
                if word in first.text:
                    first.text, first.finish_reason, first.stop_reason = first.text.split(word)[0], "stop", word
            if "quits" in self.prompt and self.tokens == 2:
                first.finish_reason = "cancelled"
            elif not self.finished and self.tokens >= sampling.max_tokens:
                first.finish_reason = "length"
            if sampling.logprobs is not None:
                first.cumulative_logprob = -0.5 * self.tokens
            if self.finished and sampling.return_perf_metrics:
                first.request_perf_metrics = _metrics(self.tokens)
            yield self
        self._llm.log(self, first.finish_reason)


def _metrics(tokens: int) -> SimpleNamespace:
    return SimpleNamespace(
        kv_cache_metrics=SimpleNamespace(
            num_reused_blocks=3, kv_cache_hit_rate=0.75, num_new_allocated_blocks=1, num_total_allocated_blocks=4, num_missed_blocks=1
        ),
        timing_metrics=SimpleNamespace(
            arrival_time=timedelta(days=1, microseconds=1), first_scheduled_time=timedelta(days=1, microseconds=2),
            first_token_time=timedelta(days=1, microseconds=3), last_token_time=timedelta(days=1, microseconds=3 + tokens),
        ),
        speculative_decoding=SimpleNamespace(acceptance_rate=0.0, total_accepted_draft_tokens=0, total_draft_tokens=0),
    )  # fmt: skip


class LLM:
    """Answers without a model."""

    def __init__(self, model: str, **arguments: Any) -> None:
        unknown = sorted(set(arguments) - _LLM_ARGUMENTS)
        if unknown:
            raise ValueError(f"unknown arguments: {', '.join(unknown)}")
        self.arguments = {"model": model, **arguments}
        self._log = Path(model) / "llm.log"
        self._lock = threading.Lock()
        self.submitted: list[tuple[str, SamplingParams, bool]] = []
        self.is_shut_down = False

    def generate_async(
        self, inputs: str, sampling_params: SamplingParams, *, streaming: bool = False, lora_request: Any = None
    ) -> Result:
        if "too long" in inputs:
            raise RequestError("The prompt length exceeds max_seq_len (4096)")
        if not inputs:
            raise ValueError("the prompt is empty")
        self.submitted.append((inputs, sampling_params, streaming))
        self.lora_request = lora_request
        with self._lock, self._log.with_suffix(".begun").open("a", encoding="utf-8") as file:
            file.write(json.dumps(inputs) + "\n")
        return Result(self, inputs, sampling_params, streaming)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def log(self, result: Result, ended: str) -> None:
        with self._lock, self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": result.prompt, "tokens": result.tokens, "ended": ended}) + "\n")
