"""Triton model `preprocessing`: text and words in, token ids out. Glue only; the work is in the modules beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import file_names
import numpy as np
import triton_python_backend_utils as pb_utils
from chat_template import ChatTemplate
from limits import INT32_MAX, LIMITS, check_numbers, check_token_id
from messages import read_messages
from prompt import PromptEncoder
from serving import Parameters, RequestError, answer_each, array, texts
from tokenizer import end_ids, load_tokenizer
from words import embedding_bias, unique, word_ids, word_list_tensor

#: Public inputs that a text model behind this repository cannot serve.
UNSUPPORTED = {
    "DECODER_QUERY": "encoder-decoder models are not supported",
    "IMAGE_BYTES": "multimodal models are not supported",
    "IMAGE_URL": "multimodal models are not supported",
    "IMAGES": "multimodal models are not supported",
    "VIDEO_BYTES": "multimodal models are not supported",
    "PROMPT_TABLE_EXTRA_ID": "a text cannot address a prompt table; send token ids to tensorrt_llm",
}


class TritonPythonModel:
    """One instance: a tokenizer and what config.pbtxt says about prompts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and read the parameters; a wrong one stops the load with its name."""
        file_names.use_utf8()
        parameters = Parameters(args["model_config"])
        folder = parameters.required_text("tokenizer_dir")
        self._vocab_size = parameters.number("vocab_size")
        self._max_seq_len = parameters.number("max_seq_len")
        tokenizer = load_tokenizer(folder)
        self._encoder = PromptEncoder(tokenizer, add_special_tokens=parameters.flag("add_special_tokens", default=True))
        self._end_ids = end_ids(tokenizer, Path(folder))
        self._pad_id = self._end_ids[0] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self._stop_ids = word_ids(parameters.texts("stop_words"), self._encoder.word)
        self._chat: ChatTemplate | None = None
        self._takes_messages = parameters.text("chat_template") == "messages"
        if self._takes_messages or parameters.flag("chat_template", default=False):
            self._chat = ChatTemplate.of(tokenizer, Path(folder), system_prompt=parameters.text("system_prompt"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request; errors stay with their request."""
        return answer_each(requests, self._answer, "preprocessing")

    def _answer(self, request: Any) -> Any:
        for name, reason in UNSUPPORTED.items():
            if array(request, name) is not None:
                raise RequestError(f"{name}: {reason}")
        queries = array(request, "QUERY")
        lengths = array(request, "REQUEST_OUTPUT_LEN")
        assert queries is not None and lengths is not None  # Triton refuses a request without them
        if queries.size != len(queries) or lengths.shape != queries.shape:
            raise RequestError(
                f"need one QUERY and one REQUEST_OUTPUT_LEN per row, got {queries.shape}, {lengths.shape}"
            )
        if len(queries) > 1 and request.request_id():
            raise RequestError(
                f"a batch of {len(queries)} prompts cannot share the request id '{request.request_id()}', by which "
                "streamed text is put together: send one request per prompt, or no id"
            )
        check_numbers({name: array(request, name) for name in LIMITS} | {"max_tokens": lengths})
        for name in ("END_ID", "PAD_ID"):
            check_token_id(name.lower(), array(request, name), self._vocab_size)
        prompts = [self._prompt(text) for text in texts(queries, "QUERY")]
        for ids, length in zip(prompts, lengths.reshape(-1).tolist(), strict=True):
            if len(ids) + length > INT32_MAX:  # which the core computes in 32 bits
                raise RequestError(
                    f"max_tokens is {length}, need at most {INT32_MAX - len(ids)} behind {len(ids)} tokens"
                )
        return pb_utils.InferenceResponse(output_tensors=self._outputs(request, prompts, lengths))

    def _prompt(self, text: str) -> list[int]:
        ids = self._ids(text)
        if not ids:
            raise RequestError("QUERY is empty")
        if len(ids) >= self._max_seq_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, and prompt and answer together at most {self._max_seq_len}"
            )
        if max(ids) >= self._vocab_size:
            raise RequestError(f"the prompt has token {max(ids)}, and the model a vocabulary of {self._vocab_size}")
        return ids

    def _ids(self, text: str) -> list[int]:
        if self._chat is None:
            return self._encoder.plain(text)
        if self._takes_messages:
            return self._encoder.templated(self._chat.render_messages(read_messages(text)))
        return self._encoder.templated(self._chat.render(text))

    def _outputs(self, request: Any, prompts: list[list[int]], lengths: np.ndarray[Any, Any]) -> list[Any]:
        """Return the output tensors; lists of words and the bias are left out when the request has none."""
        rows = len(prompts)
        input_ids = np.zeros((rows, max(map(len, prompts))), dtype=np.int32)
        for row, ids in enumerate(prompts):
            input_ids[row, : len(ids)] = ids
        asked_end, asked_pad = array(request, "END_ID"), array(request, "PAD_ID")
        # A client that names its own end id decides alone when an answer ends.
        further_ends = [] if asked_end is not None else [[token_id] for token_id in self._end_ids[1:]]
        tensors = {
            "INPUT_ID": input_ids,
            "REQUEST_INPUT_LEN": np.array([[len(ids)] for ids in prompts], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": lengths,
            "OUT_END_ID": np.full((rows, 1), self._end_ids[0], np.int32) if asked_end is None else asked_end,
            "OUT_PAD_ID": np.full((rows, 1), self._pad_id, np.int32) if asked_pad is None else asked_pad,
        }
        stop = self._word_lists(request, "STOP_WORDS_DICT", rows, [*self._stop_ids, *further_ends])
        bad = self._word_lists(request, "BAD_WORDS_DICT", rows, [])
        tensors |= {name: value for name, value in (("STOP_WORDS_IDS", stop), ("BAD_WORDS_IDS", bad)) if value.size}
        bias = self._bias(request, rows)
        if bias is not None:
            tensors["EMBEDDING_BIAS"] = bias
        return [pb_utils.Tensor(name, value) for name, value in tensors.items()]

    def _word_lists(self, request: Any, name: str, rows: int, always: list[list[int]]) -> np.ndarray[Any, Any]:
        words = array(request, name)
        given = [[]] * rows if words is None else [texts(row, name) for row in words]
        return word_list_tensor([unique([*word_ids(row, self._encoder.word), *always]) for row in given])

    def _bias(self, request: Any, rows: int) -> np.ndarray[Any, Any] | None:
        words, weights = array(request, "EMBEDDING_BIAS_WORDS"), array(request, "EMBEDDING_BIAS_WEIGHTS")
        if words is None and weights is None:
            return None
        if words is None or weights is None or words.shape != weights.shape:
            raise RequestError(
                "embedding_bias_words and embedding_bias_weights must come together, one weight per word; got shapes "
                f"{getattr(words, 'shape', None)} and {getattr(weights, 'shape', None)}"
            )
        if not np.isfinite(weights).all():
            raise RequestError("embedding_bias_weights must be finite numbers")
        pairs = [(texts(words[row], "EMBEDDING_BIAS_WORDS"), weights[row].tolist()) for row in range(rows)]
        return embedding_bias(pairs, self._encoder.word, self._vocab_size)
