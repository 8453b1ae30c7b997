"""The engine's hooks into transformers' continuous batching: who is told, what is chosen, when blocks are evicted.

`ContinuousBatchingManager` owns the loop, the scheduler and the paged cache. It is given three parts of ours: a router
(hears of every generated token in the loop's own thread), a logits processor list (chooses tokens per request) and a
scheduler. They are the only classes that know transformers' continuous batching.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler
from transformers.generation.logits_process import LogitsProcessorList

from trtbuild.errors import TrtbuildError
from trtbuild.reference.attention import RAGGED, StepPlanner, register
from trtbuild.reference.sampling import RequestError
from trtbuild.reference.sequence import Sequence
from trtbuild.reference.step import StepCounts, next_token

SCHEDULER = "trtbuild_reserved"


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Sizes of the engine.

    Attributes:
        tokens_per_block: tokens in one block of the paged cache.
        max_tokens_in_paged_kv_cache: size of the pool, in tokens.
        max_num_tokens: tokens processed in one step, over all requests; longer prompts take several steps.
        max_seq_len: prompt plus answer of one request, in tokens.
        max_batch_size: requests in flight.
        enable_kv_cache_reuse: share filled blocks between requests whose prompts begin alike.
    """

    tokens_per_block: int
    max_tokens_in_paged_kv_cache: int
    max_num_tokens: int
    max_seq_len: int
    max_batch_size: int
    enable_kv_cache_reuse: bool = True

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.max_tokens_in_paged_kv_cache // self.tokens_per_block

    def blocks_of(self, tokens: int) -> int:
        """Return how many blocks hold that many tokens."""
        return -(-tokens // self.tokens_per_block)


class Router(OutputRouter):  # type: ignore[misc]  # transformers' types are not followed
    """Hands outputs to the engine in the thread that made them, instead of putting them into a queue."""

    def __init__(self, on_output: Callable[[Any], None]) -> None:
        super().__init__()
        self._on_output = on_output

    def deliver(self, output: Any) -> None:
        """Pass one `GenerationOutput` on."""
        self._on_output(output)

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Pass the outputs of one step on."""
        for output in outputs:
            self._on_output(output)


class StepSampler(ContinuousBatchingLogitsProcessorList):  # type: ignore[misc]  # transformers' types are not followed
    """Chooses the next token of every request in a step that wants more than the argmax.

    transformers takes the argmax of what this returns; a choice is made known to it by an infinite logit.
    """

    def __init__(self, sequences: Mapping[str, Sequence], tokens_per_block: int) -> None:
        super().__init__(LogitsProcessorList())
        self._sequences = sequences
        self._tokens_per_block = tokens_per_block
        self._rows: list[Sequence | None] = []
        self.counts = StepCounts()

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Note which request each row of logits will belong to; called once per step, before the forward pass."""
        now = time.monotonic_ns()
        self._rows = []
        context = context_tokens = 0
        for request in requests_in_batch:
            sequence = self._sequences.get(request.state.request_id)
            if sequence is not None:
                if not sequence.tokens:
                    context, context_tokens = context + 1, context_tokens + request.query_length
                self._note_progress(sequence, request, now)
            if request.has_new_token:
                self._rows.append(sequence)
        self.do_processing = any(sequence is not None and sequence.needs_choosing for sequence in self._rows)
        self.counts = StepCounts(
            self.counts.iteration + 1, len(requests_in_batch), context, context_tokens, time.time()
        )
        return arg_storage

    def _note_progress(self, sequence: Sequence, request: Any, now_ns: int) -> None:
        stored, new = request.state.position_offset, request.query_length
        if sequence.timing.first_scheduled_ns is None:
            sequence.timing.first_scheduled_ns = now_ns
            sequence.kv.reused_blocks = (stored - new) // self._tokens_per_block
        sequence.kv.total_blocks = -(-stored // self._tokens_per_block)

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, logits_processor_args: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits [rows, vocab_size], f32, with the chosen token of each request on top."""
        for row, sequence in enumerate(self._rows):
            if sequence is not None and sequence.needs_choosing:
                self._choose(scores[row], sequence)
        return scores

    def _choose(self, logits: torch.Tensor, sequence: Sequence) -> None:
        try:
            token = next_token(logits, sequence)
        except RequestError as error:
            sequence.choice_error = str(error)
            return
        logits[token] = float("inf")


class ReservedScheduler(FIFOScheduler):  # type: ignore[misc]  # transformers' types are not followed
    """First come, first served, for requests whose blocks are reserved before they come here.

    Reserved blocks may still hold reusable content of finished requests; when waiting prompts need them, all such
    content is given up before the step is put together.
    """

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        """Return the next step's requests, as the base class does."""
        allocator = only_allocator(self.cache)
        prompts = (len(state.remaining_prefill_tokens) for state in self.waiting_requests.values())
        needed = len(self.active_requests) + sum(tokens // allocator.tokens_per_page + 1 for tokens in prompts)
        if needed > free_blocks(self.cache):
            self.cache.evict_cached_blocks()
        return super().schedule_batch(token_budget, cache_budget)


def only_allocator(cache: Any) -> Any:
    """Return the allocator that serves all layers; there is one, since every layer keeps all tokens."""
    (allocator,) = cache.cache_allocators.values()
    return allocator


def free_blocks(cache: Any) -> int:
    """Return how many blocks are neither in use nor kept for reuse."""
    allocator = only_allocator(cache)
    free: int = cache.pool.count_free_blocks(allocator.index)
    return free + int(cache.pool.num_free_sectors * allocator.blocks_per_sector)


def make_manager(
    model: PreTrainedModel, config: BatchingConfig, router: Router, sampler: StepSampler
) -> ContinuousBatchingManager:
    """Return a manager with our parts in place and its cache allocated, ready to start.

    Raises:
        TrtbuildError: the cache does not fit into memory.
    """
    register()
    SCHEDULER_MAPPING[SCHEDULER] = ReservedScheduler
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=config.tokens_per_block,
            num_blocks=config.num_blocks,
            max_batch_tokens=config.max_num_tokens,
            max_requests_per_batch=config.max_batch_size,
            max_memory_percent=1.0,
            allow_block_sharing=config.enable_kv_cache_reuse,
            scheduler_type=SCHEDULER,
            safety_margin=0.0,
            auto_switch_to_flash=False,
            use_async_batching=False,
            use_cuda_graph=False,
        ),
    )
    manager.output_router = router
    manager.logit_processor = sampler
    model.set_attn_implementation(RAGGED)
    with _no_sliding_window(model.config.get_text_config()):
        try:
            manager.warmup()  # allocates the cache
        except MemoryError as error:
            raise TrtbuildError(
                f"a KV cache of {config.max_tokens_in_paged_kv_cache} tokens does not fit into memory: {error}",
                hint="make max_tokens_in_paged_kv_cache or max_num_tokens smaller",
            ) from error
    return manager


@contextmanager
def _no_sliding_window(config: Any) -> Iterator[None]:
    """Let the cache keep all tokens of every layer; `ragged_attention` looks back only as far as the layer says."""
    saved = {name: getattr(config, name) for name in ("sliding_window", "layer_types") if hasattr(config, name)}
    for name in saved:
        setattr(config, name, None)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(config, name, value)


def planner_hook(model: PreTrainedModel) -> Any:
    """Install the step planner on the model; return the handle that removes it."""
    return model.register_forward_pre_hook(StepPlanner(), with_kwargs=True)
