"""The model `postprocessing`: pieces of streams by request id, whole answers without one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.templates import triton_stub
from tests.unit.templates.tiny_tokenizers import byte_ids, byte_level, save

EOS, TOOL, TURN = 257, 258, 259


def ask(model: Any, ids: list[int], request_id: str = "", length: int | None = None) -> Any:
    """Return the text for the ids, or the error."""
    request = triton_stub.request(
        {
            "TOKENS_BATCH": np.array([[ids]], np.int32).reshape(1, 1, -1),
            "SEQUENCE_LENGTH": [[len(ids) if length is None else length]],
        },
        request_id,
    )
    [response] = model.execute([request])
    return response.error() if response.has_error() else response.values()["OUTPUT"][0][0]


def test_pieces_with_one_id_are_one_text(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    model = postprocessing(tokenizers["byte"])
    assert [ask(model, [token_id], "stream") for token_id in byte_ids("a🙂b")] == ["a", "", "", "", "🙂", "b"]


def test_two_streams_in_turns_do_not_mix(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    model = postprocessing(tokenizers["byte"])
    texts = {"one": "é1", "two": "家2"}
    answers = dict.fromkeys(texts, "")
    for position in range(4):
        for name, text in texts.items():
            answers[name] += ask(model, byte_ids(text)[position : position + 1], name)
    assert answers == texts


def test_a_whole_answer_equals_its_stream(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    model = postprocessing(tokenizers["byte"])
    ids = byte_ids("é家🙂 x")[:-4]
    assert ask(model, ids) == "".join(ask(model, [token_id], "s") for token_id in ids) == "é家"


def test_answers_without_an_id_know_nothing_of_each_other(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path]
) -> None:
    model = postprocessing(tokenizers["byte"])
    first, second = byte_ids("é")
    assert [ask(model, [first]), ask(model, [second]), ask(model, [first, second])] == ["", "", "é"]


def test_tokens_behind_the_length_are_padding(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    assert ask(postprocessing(tokenizers["byte"]), [*byte_ids("ab"), -1, -1], length=2) == "ab"


def test_every_row_and_beam_has_its_text(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    ids = np.array([[byte_ids("ab"), byte_ids("cd")], [byte_ids("ef"), byte_ids("gh")]], np.int32)
    request = triton_stub.request({"TOKENS_BATCH": ids, "SEQUENCE_LENGTH": [[2, 1], [2, 0]]})
    [response] = postprocessing(tokenizers["byte"]).execute([request])
    assert response.values() == {"OUTPUT": [["ab", "c"], ["ef", ""]]}


@pytest.mark.parametrize(("skip", "text"), [("true", "x"), ("false", "<tool>x")])
def test_special_tokens_are_left_out_only_if_asked_and_the_mark_of_the_end_always(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path], skip: str, text: str
) -> None:
    model = postprocessing(tokenizers["byte"], skip_special_tokens=skip)
    ids = [TOOL, *byte_ids("x"), EOS]
    assert ask(model, ids) == "".join(ask(model, [token_id], "s") for token_id in ids) == text


def test_end_ids_within_a_text_stay_and_those_at_its_end_go(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path]
) -> None:
    model = postprocessing(tokenizers["byte"], skip_special_tokens="false")
    ids = [*byte_ids("a"), EOS, *byte_ids("b"), EOS, EOS, 299]  # 299 is padding of the vocabulary, no text
    assert ask(model, ids) == "".join(ask(model, [token_id], "s") for token_id in ids) == "a</s>b"


@pytest.mark.parametrize("skip", ["true", "false"])
def test_every_end_id_that_generation_config_names_marks_the_end_even_one_that_is_not_special(
    postprocessing: Callable[..., Any], tmp_path: Path, skip: str
) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<turn>"])
    folder = save(tokenizer, tmp_path / "turns")
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{EOS}, {TURN}]}}')
    model = postprocessing(folder, skip_special_tokens=skip)
    for last in ([TURN], [EOS], [TURN, EOS], [EOS, TURN]):
        ids, name = [*byte_ids("x"), *last], f"s{last}"
        assert ask(model, ids) == "".join(ask(model, [token_id], name) for token_id in ids) == "x"


def test_padding_of_the_vocabulary_has_no_text(postprocessing: Callable[..., Any], tokenizers: dict[str, Path]) -> None:
    model = postprocessing(tokenizers["byte"])
    ids = [*byte_ids("a"), 299, *byte_ids("b")]
    assert ask(model, ids) == "ab"
    assert [ask(model, [token_id], "s") for token_id in ids] == ["a", "", "b"]


@pytest.mark.parametrize("wrong", [-1, 300])
def test_an_id_that_no_model_of_this_vocabulary_makes_is_an_error(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path], wrong: int
) -> None:
    model = postprocessing(tokenizers["byte"])
    requests = [
        triton_stub.request({"TOKENS_BATCH": [[[5, wrong]]], "SEQUENCE_LENGTH": [[2]]}),
        triton_stub.request({"TOKENS_BATCH": [[byte_ids("ok")]], "SEQUENCE_LENGTH": [[2]]}),
    ]
    bad, good = model.execute(requests)
    assert bad.error().message() == f"token id {wrong} is outside the vocabulary of 300"
    assert good.values() == {"OUTPUT": [["ok"]]}


@pytest.mark.parametrize("length", [-1, 3])
def test_a_length_that_does_not_fit_is_an_error(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path], length: int
) -> None:
    error = ask(postprocessing(tokenizers["byte"]), byte_ids("ab"), length=length)
    assert "does not fit TOKENS_BATCH" in error.message()


def test_the_clean_up_of_old_configurations_rewrites_nothing(
    postprocessing: Callable[..., Any], tmp_path: Path
) -> None:
    folder = save(byte_level(), tmp_path / "clean", clean_up_tokenization_spaces=True)
    text = "if x != y , z ."
    model = postprocessing(folder)
    assert ask(model, byte_ids(text)) == "".join(ask(model, [i], "s") for i in byte_ids(text)) == text


def test_a_tokenizer_outside_of_the_machine_is_never_looked_for(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="'some/model' must be an absolute path of an existing folder"):
        postprocessing(Path("some/model"))
    with pytest.raises(ValueError, match="must be an absolute path"):
        postprocessing(tmp_path / "missing")


def test_the_author_s_code_is_not_run(
    postprocessing: Callable[..., Any], tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    folder, marker = tmp_path / "remote", tmp_path / "marker"
    shutil.copytree(tokenizers["byte"], folder)
    save(
        byte_level(),
        folder,
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
    )
    (folder / "tokenization_own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(Exception, match=r"trust_remote_code|custom code|does not exist|OwnTokenizer"):
        postprocessing(folder)
    assert not marker.exists()
