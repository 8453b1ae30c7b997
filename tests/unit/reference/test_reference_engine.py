"""The engine: joining and leaving, ends of answers, cancellation, limits, statistics, and what happens when it dies."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.reference.conftest import SIZES, TIMEOUT_S, Listener, ask_all
from tests.unit.reference.tiny_models import VOCAB_SIZE, greedy, prompts, tiny_model
from transformers import PreTrainedModel

from trtbuild.errors import TrtbuildError
from trtbuild.reference.base import BaseEngine
from trtbuild.reference.batching import BatchingConfig
from trtbuild.reference.engine import Engine
from trtbuild.reference.factory import ENGINES
from trtbuild.reference.sampling import RequestError, SamplingParams
from trtbuild.reference.sequence import Chunk, Sequence
from trtbuild.reference.support import Batching

PROMPT = [3, 14, 15, 92, 65]


def test_tokens_come_one_by_one_and_the_last_says_why(engine: BaseEngine, llama: PreTrainedModel) -> None:
    listener = Listener()
    engine.submit(PROMPT, 6, listener)
    assert listener.finish() == greedy(llama, PROMPT, 6)
    assert [len(chunk.token_ids) for chunk in listener.chunks] == [1] * 6
    assert [chunk.finish_reason for chunk in listener.chunks] == [None] * 5 + ["length"]


def test_the_end_id_ends_the_answer_and_is_not_part_of_it(engine: BaseEngine, llama: PreTrainedModel) -> None:
    expected = greedy(llama, PROMPT, 8)
    end_id = expected[5]
    answer = engine.generate(PROMPT, 8, params=SamplingParams(end_id=end_id))
    assert answer.token_ids == expected[: expected.index(end_id)]
    assert answer.finish_reason == "end_id"


def test_without_an_end_id_the_answer_runs_to_max_tokens(engine: BaseEngine) -> None:
    assert engine.generate(PROMPT, 8).finish_reason == "length"


def test_a_stop_word_ends_the_answer_and_no_part_of_it_comes_out(engine: BaseEngine, llama: PreTrainedModel) -> None:
    expected = greedy(llama, PROMPT, 10)
    word = tuple(expected[4:6])
    listener = Listener()
    engine.submit(PROMPT, 10, listener, params=SamplingParams(stop_words=((VOCAB_SIZE - 1, 0), word)))
    assert listener.finish() == expected[:4]
    assert listener.chunks[-1].finish_reason == "stop_words"


def test_a_held_back_beginning_comes_out_when_the_answer_ends_otherwise(
    engine: BaseEngine, llama: PreTrainedModel
) -> None:
    expected = greedy(llama, PROMPT, 5)
    never = (expected[3], expected[4], 0)
    answer = engine.generate(PROMPT, 5, params=SamplingParams(stop_words=(never,)))
    assert answer.token_ids == expected and answer.finish_reason == "length"


def test_min_tokens_keeps_the_answer_going(engine: BaseEngine, llama: PreTrainedModel) -> None:
    expected = greedy(llama, PROMPT, 8)
    ends = SamplingParams(end_id=expected[1], stop_words=((expected[2],),))
    assert len(engine.generate(PROMPT, 8, params=ends).token_ids) <= 2
    longer = SamplingParams(end_id=expected[1], stop_words=((expected[2],),), min_tokens=6)
    answer = engine.generate(PROMPT, 8, params=longer)
    assert len(answer.token_ids) >= 6
    assert expected[1] not in answer.token_ids[:6] and expected[2] not in answer.token_ids[:6]


@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_draft_tokens_are_taken_as_far_as_they_are_right_and_one_more_comes(
    accepted: int, engine: BaseEngine, llama: PreTrainedModel
) -> None:
    expected, listener = greedy(llama, PROMPT, 8), Listener()
    wrong = [(expected[accepted] + 1) % VOCAB_SIZE, 0] if accepted < 4 else []
    sequence = engine.submit(PROMPT, 8, listener, draft=(*expected[:accepted], *wrong))
    assert listener.finish() == expected[: accepted + 1]
    assert listener.chunks[-1].finish_reason == "draft"
    assert sequence.num_accepted == accepted


def test_an_answer_ends_within_its_draft_where_it_would_end_without(engine: BaseEngine, llama: PreTrainedModel) -> None:
    expected = greedy(llama, PROMPT, 8)
    draft, end = tuple(expected[:7]), expected.index(expected[3])
    listener = Listener()
    engine.submit(PROMPT, 8, listener, draft=draft, params=SamplingParams(end_id=expected[3]))
    assert listener.finish() == expected[:end]
    assert listener.chunks[-1].finish_reason == "end_id"
    listener = Listener()
    engine.submit(PROMPT, 2, listener, draft=draft)
    assert listener.finish() == expected[:2]
    assert listener.chunks[-1].finish_reason == "length"


def test_what_may_become_a_stop_word_comes_out_with_the_last_draft_token(
    engine: BaseEngine, llama: PreTrainedModel
) -> None:
    expected, listener = greedy(llama, PROMPT, 4), Listener()
    never = (expected[2], expected[3], 0)
    engine.submit(PROMPT, 8, listener, draft=tuple(expected[:3]), params=SamplingParams(stop_words=(never,)))
    assert listener.finish() == expected


def test_a_draft_token_outside_the_vocabulary_is_refused(engine: BaseEngine) -> None:
    with pytest.raises(RequestError, match="draft_input_ids: token 128 is outside the vocabulary"):
        engine.submit(PROMPT, 8, Listener(), draft=(1, 128))


def test_bad_words_do_not_come_out(engine: BaseEngine, llama: PreTrainedModel) -> None:
    expected = greedy(llama, PROMPT, 4)
    bad = ((expected[0],), (expected[1], expected[2]))
    answer = engine.generate(PROMPT, 12, params=SamplingParams(bad_words=bad)).token_ids
    pairs = list(pairwise(answer))
    assert bad[0][0] not in answer and bad[1] not in pairs


def test_a_presence_penalty_makes_every_token_new(engine: BaseEngine) -> None:
    answer = engine.generate(PROMPT, 40, params=SamplingParams(presence_penalty=1000.0)).token_ids
    assert len({*answer, *PROMPT}) == 45


def test_an_embedding_bias_decides_the_token(engine: BaseEngine) -> None:
    bias = np.zeros(VOCAB_SIZE, np.float32)
    bias[77] = 1000.0
    assert engine.generate(PROMPT, 3, params=SamplingParams(embedding_bias=bias)).token_ids == [77] * 3


@pytest.mark.parametrize("params", [{"top_p": 0.95}, {"top_k": 20}, {"top_k": 40, "top_p": 0.9, "temperature": 1.5}])
def test_the_same_seed_gives_the_same_text_alone_and_in_a_crowd(engine: BaseEngine, params: dict[str, Any]) -> None:
    alone = {
        seed: engine.generate(PROMPT, 16, params=SamplingParams(seed=seed, **params)).token_ids for seed in range(3)
    }
    assert len({tuple(answer) for answer in alone.values()}) > 1, "seeds make a difference"
    listeners = [Listener() for _ in range(8)]
    for index, listener in enumerate(listeners):
        other = prompts(8, seed=index)[index]
        prompt = PROMPT if index < 3 else other
        engine.submit(prompt, 16, listener, params=SamplingParams(seed=index, **params))
    assert [listener.finish() for listener in listeners[:3]] == list(alone.values())
    for listener in listeners[3:]:
        listener.finish()


def test_log_probabilities_are_the_models_own(engine: BaseEngine, llama: PreTrainedModel) -> None:
    answer = engine.generate(PROMPT, 5, want_log_probs=True)
    with torch.no_grad():
        logits = llama(torch.tensor([PROMPT + answer.token_ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).flatten()
    assert answer.token_ids == greedy(llama, PROMPT, 5)
    assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-4)
    assert min(answer.log_probs or []) < 0
    assert engine.generate(PROMPT, 5).log_probs is None


def test_log_probabilities_stay_with_their_tokens_behind_a_stop_word(
    engine: BaseEngine, llama: PreTrainedModel
) -> None:
    expected = greedy(llama, PROMPT, 6)
    params = SamplingParams(stop_words=((expected[1], expected[2], 0), tuple(expected[4:6])))
    plain = engine.generate(PROMPT, 6, want_log_probs=True).log_probs or []
    answer = engine.generate(PROMPT, 6, params=params, want_log_probs=True)
    assert answer.token_ids == expected[:4] and answer.log_probs == pytest.approx(plain[:4], abs=1e-5)


def test_a_cancelled_request_ends_at_once_and_its_blocks_are_free(engine: BaseEngine) -> None:
    listener = Listener()
    sequence = engine.submit(PROMPT, 200, listener)
    listener.next()
    assert engine.stats().kv_blocks_used > 0
    engine.cancel(sequence)
    engine.cancel(sequence)
    assert listener.finish() == [token for chunk in listener.chunks for token in chunk.token_ids]
    assert listener.chunks[-1].finish_reason == "cancelled" and len(sequence.tokens) < 200
    stats = engine.stats()
    assert (stats.active, stats.kv_blocks_used, stats.kv_blocks_free) == (0, 0, stats.kv_blocks_max)


def test_a_waiting_request_can_be_cancelled(engine: BaseEngine) -> None:
    running = [Listener() for _ in range(SIZES.max_batch_size)]
    sequences = [engine.submit([index], 240, listener) for index, listener in enumerate(running)]
    waiting = Listener()
    engine.cancel(engine.submit(PROMPT, 240, waiting))
    assert waiting.finish() == [] and waiting.chunks[-1].finish_reason == "cancelled"
    for sequence in sequences:
        engine.cancel(sequence)


def test_requests_join_and_leave_between_steps(engine: BaseEngine, llama: PreTrainedModel) -> None:
    if not isinstance(engine, Engine):
        pytest.skip("a static batch is joined by nobody")
    long, short = Listener(), Listener()
    engine.submit(PROMPT, 60, long)
    long.next()
    engine.submit(PROMPT[:2], 3, short)
    assert short.finish() == greedy(llama, PROMPT[:2], 3)
    assert len(long.chunks) == 1 and long.finish() == greedy(llama, PROMPT, 60)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_failing_callback_ends_its_own_request_only(
    engine: BaseEngine, llama: PreTrainedModel, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    seen: list[Chunk] = []

    def broken(sequence: Sequence, chunk: Chunk) -> None:
        seen.append(chunk)
        if len(seen) <= failures:
            raise ValueError("the callback is broken")

    other = Listener()
    engine.submit(PROMPT, 30, broken)
    engine.submit(PROMPT, 30, other)
    assert other.finish() == greedy(llama, PROMPT, 30)
    assert [chunk.finish_reason for chunk in seen] == [None, "error"]
    assert "could not be delivered: ValueError: the callback is broken" in str(seen[-1].error)
    assert "the callback is broken" in caplog.text
    assert engine.stats().active == 0


def test_timings_are_in_order_and_blocks_are_counted(engine: BaseEngine) -> None:
    listener = Listener()
    sequence = engine.submit(list(range(30)), 4, listener)
    listener.finish()
    timing = sequence.timing
    moments = [timing.arrival_ns, timing.first_scheduled_ns, timing.first_token_ns, timing.last_token_ns]
    assert None not in moments and moments == sorted(moments)
    assert sequence.kv.total_blocks == 5  # 33 tokens are stored, 8 in a block


def test_blocks_of_an_equal_beginning_are_reused(llama: PreTrainedModel) -> None:
    prompt = prompts(1, longest=60, seed=5)[0] * 2
    with Engine(tiny_model("llama"), SIZES) as engine:
        first, second = Listener(), Listener()
        sequence = engine.submit(prompt, 8, first)
        assert sequence.kv.reused_blocks == 0
        assert first.finish() == greedy(llama, prompt, 8)
        again = engine.submit(prompt, 8, second)
        assert second.finish() == greedy(llama, prompt, 8)
        assert again.kv.reused_blocks == (len(prompt) - 1) // 8 > 0
        assert engine.stats().kv_blocks_reused == again.kv.reused_blocks


def test_reusable_blocks_give_way_to_new_requests(llama: PreTrainedModel) -> None:
    sizes = BatchingConfig(8, 160, max_num_tokens=48, max_seq_len=120, max_batch_size=4)
    texts = prompts(12, longest=80, seed=3)
    with Engine(tiny_model("llama"), sizes) as engine:
        assert ask_all(engine, texts, 20) == [greedy(llama, text, 20) for text in texts]
        assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize("kind", ENGINES)
def test_requests_wait_until_the_blocks_of_their_whole_answer_are_free(kind: Batching, llama: PreTrainedModel) -> None:
    sizes = BatchingConfig(8, 64, max_num_tokens=48, max_seq_len=64, max_batch_size=4)
    most = 0

    class Watching(Listener):
        def __call__(self, sequence: Sequence, chunk: Chunk) -> None:
            nonlocal most
            most = max(most, engine.stats().kv_blocks_used)
            super().__call__(sequence, chunk)

    texts = prompts(9, longest=24, seed=4)
    with ENGINES[kind](tiny_model("llama"), sizes) as engine:
        listeners = [Watching() for _ in texts]
        for text, listener in zip(texts, listeners, strict=True):
            engine.submit(text, 40, listener)
        assert [listener.finish() for listener in listeners] == [greedy(llama, text, 40) for text in texts]
    assert 0 < most <= 8


@pytest.mark.parametrize(
    ("size", "max_tokens", "fine"), [(254, 2, True), (255, 1, True), (255, 2, False), (256, 1, False)]
)
def test_prompt_plus_answer_may_be_exactly_max_seq_len(
    engine: BaseEngine, size: int, max_tokens: int, fine: bool
) -> None:
    prompt = [1] * size
    if fine:
        assert len(engine.generate(prompt, max_tokens).token_ids) == max_tokens
        return
    with pytest.raises(
        RequestError, match=f"{size} tokens.*{max_tokens}.*{size + max_tokens} exceeds max_seq_len = 256"
    ):
        engine.generate(prompt, max_tokens)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "problem"),
    [
        ([], 1, "no tokens"),
        ([1], 0, "request_output_len = 0"),
        ([1], -5, "request_output_len = -5"),
        ([1, 128], 1, "token 128 is outside the vocabulary.*0 to 127"),
        ([-1, 5], 1, "token -1 is outside the vocabulary"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    engine: BaseEngine, prompt: list[int], max_tokens: int, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        engine.submit(prompt, max_tokens, Listener())


def test_a_request_whose_every_token_is_forbidden_fails_alone(engine: BaseEngine, llama: PreTrainedModel) -> None:
    nothing = SamplingParams(bad_words=tuple((token,) for token in range(VOCAB_SIZE)))
    other = Listener()
    engine.submit(PROMPT, 10, other)
    with pytest.raises(RequestError, match="no token can be chosen"):
        engine.generate(PROMPT, 10, params=nothing)
    assert other.finish() == greedy(llama, PROMPT, 10)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokens_per_block": 2}, "tokens_per_block = 2.*at least 4"),
        ({"max_seq_len": 2000}, "128 blocks.*max_seq_len = 2000 needs 250.*at least 2000.*at most 1025"),
        ({"max_num_tokens": 4}, "max_num_tokens = 4 is less than max_batch_size = 8"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    changes: dict[str, int], problem: str, llama: PreTrainedModel
) -> None:
    sizes = {name: getattr(SIZES, name) for name in BatchingConfig.__slots__}
    with pytest.raises(TrtbuildError) as caught:
        Engine(llama, BatchingConfig(**{**sizes, **changes}))
    assert re.search(problem, str(caught.value))


def test_a_pool_that_does_not_fit_into_memory_is_refused() -> None:
    sizes = BatchingConfig(8, 10**12, max_num_tokens=48, max_seq_len=256, max_batch_size=8)
    with pytest.raises(TrtbuildError, match="KV cache of 1000000000000 tokens does not fit.*smaller"):
        Engine(tiny_model("llama"), sizes).start()


@pytest.mark.parametrize("kind", ENGINES)
def test_when_the_loop_dies_every_request_gets_an_error_and_so_do_later_ones(
    kind: Batching, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("llama")
    engine = ENGINES[kind](model, SIZES)
    engine.start()
    listeners = [Listener() for _ in range(12)]  # more than fit into a batch: some are still waiting
    for index, listener in enumerate(listeners):
        engine.submit([index, 5], 200, listener)
    listeners[0].next()

    def explode(*_: object) -> None:
        raise MemoryError("no memory left")

    handle = model.model.layers[1].register_forward_pre_hook(explode)
    for listener in listeners:
        listener.finish()
        assert listener.chunks[-1].finish_reason == "error"
        assert "no memory left" in str(listener.chunks[-1].error)
    (engine._watcher if isinstance(engine, Engine) else engine._thread).join(TIMEOUT_S)
    with pytest.raises(RequestError, match="not accepted.*died.*no memory left"):
        engine.submit(PROMPT, 1, Listener())
    handle.remove()
    engine.stop()


@pytest.mark.parametrize("kind", ENGINES)
def test_stopping_answers_whoever_is_left(kind: Batching) -> None:
    engine = ENGINES[kind](tiny_model("llama"), SIZES)
    engine.start()
    listeners = [Listener() for _ in range(10)]
    for index, listener in enumerate(listeners):
        engine.submit([index], 250, listener)
    engine.stop()
    for listener in listeners:
        listener.finish()
        assert listener.chunks[-1].error == "the engine was stopped"
    with pytest.raises(RequestError, match="the engine was stopped"):
        engine.submit(PROMPT, 1, Listener())


@pytest.mark.parametrize("family", ["mistral_window", "gemma2"])
def test_a_stopped_engine_leaves_the_model_as_it_was(family: str) -> None:
    model = tiny_model(family)
    ids = torch.tensor([prompts(1, longest=40, seed=9)[0]])
    before = model(ids).logits
    with Engine(model, SIZES) as engine:
        engine.generate(PROMPT, 2)
    assert torch.equal(model(ids).logits, before)


def test_more_positions_than_the_model_has_are_refused() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(TrtbuildError, match="max_seq_len = 1000 exceeds the 512 positions"):
        Engine(model, BatchingConfig(8, 1024, max_num_tokens=48, max_seq_len=1000, max_batch_size=8))
