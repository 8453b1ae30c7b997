"""The model `preprocessing`: prompts, word lists, end ids, and errors that stay with their request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.templates import triton_stub
from tests.unit.templates.tiny_tokenizers import byte_ids, byte_level, metaspace, save

BOS, EOS, TOOL = 256, 257, 258
Load = Callable[..., Any]
Folders = dict[str, Path]


def ask(model: Any, text: Any, request_id: str = "", **inputs: Any) -> dict[str, Any]:
    """Return the outputs for one text."""
    request = triton_stub.request({"QUERY": [[text]], "REQUEST_OUTPUT_LEN": [[8]], **inputs}, request_id)
    [response] = model.execute([request])
    assert not response.has_error(), response.error().message()
    return response.values()


def refusal(model: Any, text: Any, request_id: str = "", **inputs: Any) -> str:
    """Return the message of the error for one text; a good request in the same batch must not suffer."""
    bad = triton_stub.request({"QUERY": [[text]], "REQUEST_OUTPUT_LEN": [[8]], **inputs}, request_id)
    good = triton_stub.request({"QUERY": [["ok"]], "REQUEST_OUTPUT_LEN": [[8]]})
    first, second = model.execute([bad, good])
    assert second.values()["INPUT_ID"] == [byte_ids("ok")]
    assert first.error().code() == triton_stub.TritonError.INVALID_ARG
    return str(first.error().message())


def test_a_prompt_becomes_ids_and_lengths(preprocessing: Load, tokenizers: Folders) -> None:
    assert ask(preprocessing(tokenizers["byte"]), "hé") == {
        "INPUT_ID": [byte_ids("hé")],
        "REQUEST_INPUT_LEN": [[3]],
        "REQUEST_OUTPUT_LEN": [[8]],
        "OUT_END_ID": [[EOS]],
        "OUT_PAD_ID": [[EOS]],
    }


def test_rows_of_a_batch_are_padded_on_the_right(preprocessing: Load, tokenizers: Folders) -> None:
    request = triton_stub.request({"QUERY": [["abc"], ["d"]], "REQUEST_OUTPUT_LEN": [[8], [9]]})
    [response] = preprocessing(tokenizers["byte"]).execute([request])
    values = response.values()
    assert values["INPUT_ID"] == [byte_ids("abc"), [*byte_ids("d"), 0, 0]]
    assert (values["REQUEST_INPUT_LEN"], values["REQUEST_OUTPUT_LEN"]) == ([[3], [1]], [[8], [9]])
    assert values["OUT_END_ID"] == [[EOS], [EOS]]


def test_every_output_has_the_type_that_is_declared(preprocessing: Load, tokenizers: Folders) -> None:
    inputs = {"STOP_WORDS_DICT": [["x"]], "EMBEDDING_BIAS_WORDS": [["x"]], "EMBEDDING_BIAS_WEIGHTS": [[1.0]]}
    request = triton_stub.request({"QUERY": [["a"]], "REQUEST_OUTPUT_LEN": [[8]], **inputs})
    [response] = preprocessing(tokenizers["byte"]).execute([request])
    types = {tensor.name(): tensor.as_numpy().dtype for tensor in response.output_tensors()}
    assert types.pop("EMBEDDING_BIAS") == np.float32
    assert set(types.values()) == {np.dtype(np.int32)}


class TestBeginningOfText:
    @pytest.mark.parametrize(("add", "ids"), [("true", [BOS, *byte_ids("a")]), ("false", byte_ids("a"))])
    def test_it_is_added_only_if_asked(
        self, preprocessing: Load, tokenizers: Folders, add: str, ids: list[int]
    ) -> None:
        assert ask(preprocessing(tokenizers["bos"], add_special_tokens=add), "a")["INPUT_ID"] == [ids]

    def test_a_prompt_that_brings_its_own_does_not_get_a_second(self, preprocessing: Load, tokenizers: Folders) -> None:
        assert ask(preprocessing(tokenizers["bos"]), "<s>a")["INPUT_ID"] == [[BOS, *byte_ids("a")]]

    @pytest.mark.parametrize("start", ["{{ bos_token }}", ""])
    def test_a_chat_template_gives_one_whether_it_writes_it_or_not(
        self, preprocessing: Load, tmp_path: Path, start: str
    ) -> None:
        folder = save(byte_level(adds_bos=True), tmp_path, chat_template=start + "{{ messages[0].content }}>")
        assert ask(preprocessing(folder, chat_template="true"), "hi")["INPUT_ID"] == [[BOS, *byte_ids("hi>")]]


class TestEndIds:
    @pytest.mark.parametrize(
        ("generation", "config", "end", "further"),
        [
            (None, None, EOS, []),
            (None, 5, 5, []),
            (7, 5, 7, []),
            ([EOS, 7, 9], None, EOS, [7, 9]),
            ([7, EOS, 9], 5, EOS, [7, 9]),
            ([7, 9, 7], None, 7, [9]),
        ],
    )
    def test_the_first_ends_the_answer_and_the_others_are_stop_words(
        self,
        preprocessing: Load,
        tokenizers: Folders,
        tmp_path: Path,
        generation: Any,
        config: Any,
        end: int,
        further: list[int],
    ) -> None:
        folder = tmp_path / "tokenizer"
        shutil.copytree(tokenizers["byte"], folder)
        for name, value in (("generation_config.json", generation), ("config.json", config)):
            if value is not None:
                (folder / name).write_text(json.dumps({"eos_token_id": value, "model_type": "llama"}))
        values = ask(preprocessing(folder), "a")
        assert values["OUT_END_ID"] == [[end]]
        expected = [[further, list(range(1, len(further) + 1))]] if further else None
        assert values.get("STOP_WORDS_IDS") == expected

    def test_an_end_id_of_the_request_replaces_all_of_them(
        self, preprocessing: Load, tokenizers: Folders, tmp_path: Path
    ) -> None:
        folder = tmp_path / "tokenizer"
        shutil.copytree(tokenizers["byte"], folder)
        (folder / "generation_config.json").write_text('{"eos_token_id": [257, 7]}')
        values = ask(preprocessing(folder), "a", END_ID=[[42]], PAD_ID=[[43]])
        assert (values["OUT_END_ID"], values["OUT_PAD_ID"]) == ([[42]], [[43]])
        assert "STOP_WORDS_IDS" not in values

    def test_a_model_without_any_does_not_load(self, preprocessing: Load, tmp_path: Path) -> None:
        folder = save(byte_level(), tmp_path, eos_token=None)
        with pytest.raises(ValueError, match="no end-of-sequence id"):
            preprocessing(folder)


class TestWords:
    def test_stop_words_hold_no_special_tokens(self, preprocessing: Load, tokenizers: Folders) -> None:
        values = ask(preprocessing(tokenizers["bos"]), "a", STOP_WORDS_DICT=[["hi", "abcde"]])
        assert values["STOP_WORDS_IDS"] == [[byte_ids("hiabcde"), [2, 7, -1, -1, -1, -1, -1]]]

    def test_bad_words_and_stop_words_do_not_mix(self, preprocessing: Load, tokenizers: Folders) -> None:
        values = ask(preprocessing(tokenizers["byte"]), "a", STOP_WORDS_DICT=[["x"]], BAD_WORDS_DICT=[["yz"]])
        assert values["STOP_WORDS_IDS"] == [[byte_ids("x"), [1]]]
        assert values["BAD_WORDS_IDS"] == [[byte_ids("yz"), [2, -1]]]

    @pytest.mark.parametrize("word", ["\n", ",", '"', "User:, Assistant:", " ", "a,b"])
    def test_a_word_is_itself_whatever_is_in_it(self, preprocessing: Load, tokenizers: Folders, word: str) -> None:
        ids = byte_ids(word)
        values = ask(preprocessing(tokenizers["byte"]), "a", STOP_WORDS_DICT=[[word, "", word]])
        assert values["STOP_WORDS_IDS"] == [[ids, [len(ids), *[-1] * (len(ids) - 1)]]]

    def test_only_empty_words_are_no_words(self, preprocessing: Load, tokenizers: Folders) -> None:
        assert "STOP_WORDS_IDS" not in ask(preprocessing(tokenizers["byte"]), "a", STOP_WORDS_DICT=[["", ""]])

    @pytest.mark.parametrize("word", ["\n", ",", "STOP", "Deep fun"])
    def test_metaspace_words_match_behind_a_space_and_behind_a_letter(
        self, shipped: Callable[[str], SimpleNamespace], word: str
    ) -> None:
        tokenizer = metaspace()

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        sequences = shipped("preprocessing").words.word_ids([word], encode)
        for before in ("fun", "fun "):
            inside = encode(before + word)
            assert any(inside[-len(ids) :] == ids for ids in sequences), (before, inside, sequences)
        decoded = {tokenizer.decode(encode("fun") + ids).removeprefix("fun") for ids in sequences}
        assert decoded == {word, " " + word}

    def test_stop_words_of_the_deployment_come_first(self, preprocessing: Load, tokenizers: Folders) -> None:
        model = preprocessing(tokenizers["byte"], stop_words='["é", "x"]')
        values = ask(model, "a", STOP_WORDS_DICT=[["x", "y"]])
        assert values["STOP_WORDS_IDS"] == [[byte_ids("xyé"), [1, 2, 4, -1]]]

    def test_rows_with_different_words_share_one_tensor(self, preprocessing: Load, tokenizers: Folders) -> None:
        request = triton_stub.request(
            {"QUERY": [["a"], ["b"]], "REQUEST_OUTPUT_LEN": [[8], [8]], "STOP_WORDS_DICT": [["abc", ""], ["x", "y"]]}
        )
        [response] = preprocessing(tokenizers["byte"]).execute([request])
        assert response.values()["STOP_WORDS_IDS"] == [
            [byte_ids("abc"), [3, -1, -1]],
            [[*byte_ids("xy"), 0], [1, 2, -1]],
        ]

    def test_an_example_of_the_layout(self, shipped: Callable[[str], SimpleNamespace]) -> None:
        words = shipped("preprocessing").words
        assert words.word_list_tensor([[[10], [20, 21], [30]]]).tolist() == [[[10, 20, 21, 30], [1, 3, 4, -1]]]
        assert words.word_list_tensor([[]]).shape == (1, 2, 0)


class TestEmbeddingBias:
    def test_each_token_of_a_word_gets_the_weight_once(self, preprocessing: Load, tokenizers: Folders) -> None:
        values = ask(
            preprocessing(tokenizers["byte"]),
            "a",
            EMBEDDING_BIAS_WORDS=[["aba", "b"]],
            EMBEDDING_BIAS_WEIGHTS=[[1.5, -1.0]],
        )
        [bias] = values["EMBEDDING_BIAS"]
        assert len(bias) == 300
        a, b = byte_ids("ab")
        assert {index: weight for index, weight in enumerate(bias) if weight} == {a: 1.5, b: 0.5}

    @pytest.mark.parametrize(
        "inputs",
        [
            {"EMBEDDING_BIAS_WORDS": [["a", "b"]]},
            {"EMBEDDING_BIAS_WEIGHTS": [[1.0]]},
            {"EMBEDDING_BIAS_WORDS": [["a", "b"]], "EMBEDDING_BIAS_WEIGHTS": [[1.0]]},
        ],
    )
    def test_words_and_weights_must_pair(
        self, preprocessing: Load, tokenizers: Folders, inputs: dict[str, Any]
    ) -> None:
        assert "one weight per word" in refusal(preprocessing(tokenizers["byte"]), "a", **inputs)

    @pytest.mark.parametrize("weight", [float("nan"), float("inf")])
    def test_weights_must_be_finite(self, preprocessing: Load, tokenizers: Folders, weight: float) -> None:
        inputs = {"EMBEDDING_BIAS_WORDS": [["a"]], "EMBEDDING_BIAS_WEIGHTS": [[weight]]}
        assert "finite" in refusal(preprocessing(tokenizers["byte"]), "a", **inputs)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("DECODER_QUERY", [["x"]]),
            ("IMAGE_BYTES", np.zeros((1, 1, 1, 1, 1), np.uint8)),
            ("IMAGE_URL", [["http://x"]]),
            ("IMAGES", [["x"]]),
            ("VIDEO_BYTES", np.zeros((1, 1, 1, 1, 1), np.uint8)),
            ("PROMPT_TABLE_EXTRA_ID", np.zeros((1, 1), np.uint64)),
        ],
    )
    def test_a_public_input_that_is_not_served_is_refused_by_name(
        self, preprocessing: Load, tokenizers: Folders, name: str, value: Any
    ) -> None:
        assert refusal(preprocessing(tokenizers["byte"]), "a", **{name: value}).startswith(name)

    def test_a_prompt_as_long_as_everything_together(self, preprocessing: Load, tokenizers: Folders) -> None:
        message = refusal(preprocessing(tokenizers["byte"]), "a" * 64)
        assert message == "the prompt has 64 tokens, and prompt and answer together at most 64"
        assert len(ask(preprocessing(tokenizers["byte"]), "a" * 63)["INPUT_ID"][0]) == 63

    def test_an_empty_prompt(self, preprocessing: Load, tokenizers: Folders) -> None:
        assert refusal(preprocessing(tokenizers["byte"]), "") == "QUERY is empty"

    def test_bytes_that_are_no_text(self, preprocessing: Load, tokenizers: Folders) -> None:
        assert "QUERY is not valid UTF-8" in refusal(preprocessing(tokenizers["byte"]), b"a\xff")

    def test_a_token_the_model_does_not_have(self, preprocessing: Load, tokenizers: Folders) -> None:
        model = preprocessing(tokenizers["byte"], vocab_size=str(TOOL))
        assert refusal(model, "<tool>") == "the prompt has token 258, and the model a vocabulary of 258"

    def test_a_batch_that_shares_an_id(self, preprocessing: Load, tokenizers: Folders) -> None:
        inputs = {"QUERY": [["a"], ["b"]], "REQUEST_OUTPUT_LEN": [[8], [8]]}
        assert "one request per prompt" in refusal(preprocessing(tokenizers["byte"]), "", "shared", **inputs)

    @pytest.mark.parametrize("key", ["add_special_tokens", "chat_template"])
    def test_a_flag_that_is_neither_true_nor_false_stops_the_load(
        self, preprocessing: Load, tokenizers: Folders, key: str
    ) -> None:
        with pytest.raises(ValueError, match=f"parameter '{key}' is 'yes', need true or false"):
            preprocessing(tokenizers["byte"], **{key: "yes"})

    @pytest.mark.parametrize("value", ["", "4abc", "1e9", "-1"])
    def test_a_number_with_anything_behind_it_stops_the_load(
        self, preprocessing: Load, tokenizers: Folders, value: str
    ) -> None:
        with pytest.raises(ValueError, match=f"parameter 'max_seq_len' is '{value}', need a whole number"):
            preprocessing(tokenizers["byte"], max_seq_len=value)
