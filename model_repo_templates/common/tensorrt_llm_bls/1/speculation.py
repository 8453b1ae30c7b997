"""Speculation with a draft model: it guesses a few tokens, and the core checks them all in one step.

Every token of the answer is one that the core chose, so a greedy answer is the core's own whatever the draft model
guesses. A step is one request to each model; the core ends its request with the first token that is not a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from core_request import output
from draft_totals import Totals
from serving import RequestError, array

Inputs = dict[str, np.ndarray[Any, Any]]
#: (inputs, names of outputs) -> the responses of a model to one request.
Ask = Callable[[list[Any], list[str]], Iterable[Any]]

#: Inputs of the BLS model that this module answers for.
INPUTS = ("num_draft_tokens", "use_draft_logits")

#: What does not go together with draft tokens -> the values that ask for nothing. The first four are upstream's limits
#: (Triton specification 1.5); a guide would begin anew, and an embedding table be missing in the draft model, at every step.
REFUSED: dict[str, tuple[Any, ...]] = {
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "guided_decoding_guide_type": (),
    "guided_decoding_guide": (),
    "prompt_embedding_table": (),
    "prompt_vocab_size": (0,),
}

#: What the draft model is told besides the text. Its answer need not end where the core's does, so no stop words.
TO_DRAFT = (
    *("end_id", "pad_id", "bad_words_list", "embedding_bias", "temperature", "runtime_top_k", "runtime_top_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "random_seed", "min_tokens", "min_length"),
    *("return_perf_metrics", "return_kv_cache_reuse_stats"),
)
_NO_LOGITS = "the draft model gives no logits; its engine must be built with gather_generation_logits"
#: What the draft model's seed differs by where the core compares probabilities: its chances must not be those of the draw.
_OTHER_SEED = 1 << 63
#: Inputs of the core that each step sets itself.
_OF_A_STEP = ("input_ids", "input_lengths", "request_output_len", "streaming", "exclude_input_in_output")


@dataclass(frozen=True)
class Asked:
    """What a request wants: so many draft tokens for a step, and whether the core sees the draft model's logits."""

    draft_tokens: int
    use_logits: bool


def asked_of(request: Any, *, draft_model: str, most: int, has_logits: bool) -> Asked | None:
    """Return what a request wants of the draft model; None when it is to be answered without.

    Args:
        request: of the client.
        draft_model: its name, empty when there is none.
        most: draft tokens that the core takes for a step; 0 when that is not known.
        has_logits: whether the draft model can give its logits.

    Raises:
        RequestError: there is no draft model, the number is not allowed, or something else does not go together with it.
    """
    wanted, logits = array(request, "num_draft_tokens"), array(request, "use_draft_logits")
    use_logits = logits is not None and bool(logits.any())
    if wanted is None or not wanted.any():
        if use_logits:
            raise RequestError(
                "use_draft_logits: it needs num_draft_tokens" if draft_model else _none("use_draft_logits")
            )
        return None
    if not draft_model:
        raise RequestError(_none("num_draft_tokens"))
    values = wanted.reshape(-1).tolist()
    if len(values) != 1 or values[0] < 0 or (most and values[0] > most):
        allowed = f"0 to {most}" if most else "0 or more"
        raise RequestError(f"num_draft_tokens is {values}, need one value of {allowed}, and one prompt")
    if use_logits and not has_logits:
        raise RequestError(f"use_draft_logits: {_NO_LOGITS}")
    for name, neutral in REFUSED.items():
        given = array(request, name)
        if given is not None and any(value not in neutral for value in given.reshape(-1)[:1].tolist()):
            raise RequestError(f"num_draft_tokens does not go together with {name}: leave out one of the two")
    return Asked(int(values[0]), use_logits)


def _none(name: str) -> str:
    return f"{name}: there is no draft model"


class Speculation:
    """The steps that answer one request.

    Args:
        asked: what the request wants.
        inputs: what the core would be asked without a draft model, by name, one row.
        seed_name: what the release calls the seed.
        ask_draft: the draft model.
        ask_target: the core.
        outputs: the core's outputs that the client gets.
    """

    def __init__(
        self, asked: Asked, inputs: Inputs, *, seed_name: str, ask_draft: Ask, ask_target: Ask, outputs: Sequence[str]
    ) -> None:
        self._asked, self._inputs, self._seed_name = asked, inputs, seed_name
        self._ask_draft, self._ask_target, self._outputs = ask_draft, ask_target, outputs
        size = int(inputs["input_lengths"].reshape(-1)[0])
        self._prompt: list[int] = inputs["input_ids"].reshape(-1)[:size].tolist()
        self._max_tokens = int(inputs["request_output_len"].reshape(-1)[0])
        self._is_streaming = "streaming" in inputs and bool(inputs["streaming"].all())
        self._echoes = not self._is_streaming and not inputs["exclude_input_in_output"].all()
        end_id = inputs.get("end_id")
        self._end_id = None if end_id is None else int(end_id.reshape(-1)[0])
        self._stop_words = _words(inputs.get("stop_words_list"))
        self._answer: list[int] = []
        self._is_in_doubt = False

    def responses(self, is_over: Callable[[], bool]) -> Iterator[Any]:
        """Yield the responses that the core would have given: one per step of a stream, else one.

        Args:
            is_over: says between two requests whether anybody still wants the answer.

        Raises:
            RequestError: either model refused its part, or the draft model gave no logits.
        """
        totals = Totals(len(self._prompt))
        has_ended, sent = False, 0
        while not has_ended and not is_over():
            draft, logits = self._guess(totals)
            if is_over():
                return
            has_ended = self._check(draft, logits, totals)
            if self._is_streaming or has_ended:
                new = self._answer[sent:]
                sent = len(self._answer)
                ids = [*self._prompt, *new] if self._echoes else new
                yield _response(ids, totals.flush(len(new), is_last=has_ended))

    def _guess(self, totals: Totals) -> tuple[list[int], np.ndarray[Any, Any] | None]:
        """Return the draft model's tokens, and its logits [1, tokens, vocab_size] if the core is to see them."""
        count = min(self._asked.draft_tokens, self._max_tokens - len(self._answer) - 1)
        if count < 1 or self._is_in_doubt:
            return [], None
        inputs = self._step(count, TO_DRAFT, other_seed=_OTHER_SEED if self._asked.use_logits else 0)
        outputs = ["output_ids", "sequence_length", *(name for name in totals.OF_DRAFT if name in self._outputs)]
        if self._asked.use_logits:
            inputs["return_generation_logits"] = np.ones((1, 1), np.bool_)
            outputs.append("generation_logits")
        responses = list(self._ask_draft(_tensors(inputs), outputs))
        totals.add_draft(responses)
        tokens = self._before_end(_tokens(responses))[0]
        if not tokens or not self._asked.use_logits:
            return tokens, None
        logits = next((found for each in responses if (found := output(each, "generation_logits")) is not None), None)
        if logits is None or logits.shape[2] < len(tokens):
            raise RequestError(f"use_draft_logits: {_NO_LOGITS}")
        return tokens, np.ascontiguousarray(logits[:, 0, : len(tokens)])

    def _check(self, draft: list[int], logits: np.ndarray[Any, Any] | None, totals: Totals) -> bool:
        """Let the core check draft tokens and add what it makes of them to the answer; return whether that ends it."""
        inputs = self._step(len(draft) + 1, (name for name in self._inputs if name not in _OF_A_STEP))
        if draft:
            inputs["draft_input_ids"] = np.array([draft], np.int32)
        if logits is not None:
            inputs["draft_logits"] = logits
        responses = list(self._ask_target(_tensors(inputs), ["output_ids", "sequence_length", *self._outputs]))
        found, has_ended = self._before_end(_tokens(responses))
        # A core that goes on has chosen a token of its own: behind the accepted ones, or in place of a refused one. By logits
        # it may refuse a token and draw it again, so there a step without draft tokens shows whether it has ended.
        is_all_drafted = found == draft[: len(found)]
        self._is_in_doubt = is_all_drafted and logits is not None and bool(found)
        has_ended = has_ended or (is_all_drafted and not self._is_in_doubt)
        new, has_stopped = self._before_stop(found)
        totals.add_target(responses, drafted=len(draft), accepted=_agreeing(draft, found), kept=len(new))
        self._answer += new
        return has_ended or has_stopped or len(self._answer) >= self._max_tokens

    def _step(self, count: int, names: Iterable[str], *, other_seed: int = 0) -> Inputs:
        """Return the inputs of one request: the text so far, `count` tokens to make of it, and the settings of those names."""
        text, done = [*self._prompt, *self._answer], len(self._answer)
        inputs = {name: self._inputs[name] for name in names if name in self._inputs}
        for name in ("min_tokens", "min_length"):
            if name in inputs:
                inputs[name] = np.clip(inputs[name] - done, 0, count).astype(inputs[name].dtype)
        # Every request begins with the first random number of its seed, so each step has a seed of its own.
        seed = int(inputs[self._seed_name].reshape(-1)[0]) if self._seed_name in inputs else 0
        return {
            **inputs,
            "input_ids": np.array([text], np.int32),
            "input_lengths": np.array([[len(text)]], np.int32),
            "request_output_len": np.array([[count]], np.int32),
            "exclude_input_in_output": np.ones((1, 1), np.bool_),
            self._seed_name: np.array([[((seed + done) % 2**64) ^ other_seed]], np.uint64),
        }

    def _before_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        """Return the tokens before the end id and whether it is among them; some releases report it, some do not."""
        has_end = self._end_id in tokens
        return (tokens[: tokens.index(self._end_id)] if self._end_id is not None and has_end else tokens), has_end

    def _before_stop(self, new: list[int]) -> tuple[list[int], bool]:
        """Return the tokens up to the first stop word of the answer, which may have begun in an earlier step."""
        text, done = [*self._answer, *new], len(self._answer)
        for end in range(done + 1, len(text) + 1):
            if any(text[max(0, end - len(word)) : end] == word for word in self._stop_words):
                return new[: end - done], True
        return new, False


def _response(ids: list[int], others: Inputs) -> Any:
    values = {
        "output_ids": np.array(ids, np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(ids)]], np.int32),
        **others,
    }
    return pb_utils.InferenceResponse(output_tensors=_tensors(values))


def _tensors(values: Inputs) -> list[Any]:
    return [pb_utils.Tensor(name, each) for name, each in values.items()]


def _tokens(responses: Iterable[Any]) -> list[int]:
    """Return the tokens of the one beam of the responses, in order."""
    found: list[int] = []
    for response in responses:
        ids, lengths = output(response, "output_ids"), output(response, "sequence_length")
        if ids is not None and lengths is not None:
            found += ids[0, 0, : int(lengths.reshape(-1)[0])].tolist()
    return found


def _words(values: np.ndarray[Any, Any] | None) -> list[list[int]]:
    """Return the words of a tensor [1, 2, n]: all ids in a row, and where each word ends (Triton specification 5.6)."""
    if values is None or values.size == 0:
        return []
    ids, ends = values[0].tolist()
    starts = [0, *ends]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False) if end > start]


def _agreeing(draft: list[int], found: list[int]) -> int:
    """Return how many tokens the two have in common from the start."""
    pairs = enumerate(zip(draft, found, strict=False))
    return next((at for at, (guess, chosen) in pairs if guess != chosen), min(len(draft), len(found)))
