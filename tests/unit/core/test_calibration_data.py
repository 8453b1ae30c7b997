"""Which samples are taken from a calibration file, in which order, and what is said about them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import write_safetensors
from tests.unit.core.conftest import CHAT_TEMPLATE

from trtbuild.errors import TrtbuildError
from trtbuild.quant.calibrate.doubts import FEWEST_SAMPLES, FEWEST_TOKENS, doubts
from trtbuild.quant.calibrate.samples import DEFAULT_LENGTH_TOKENS, DEFAULT_SAMPLES, Samples, load_samples
from trtbuild.source import SourceCheckpoint
from trtbuild.spec import Calibration
from trtbuild.spec.fields import fields

Make = Callable[..., SourceCheckpoint]
Cli = Callable[..., tuple[int, str, str]]
USER, ANSWER = {"role": "user", "content": "hé"}, {"role": "assistant", "content": "yes"}


def load(source: SourceCheckpoint, file: Path, **changes: Any) -> Samples:
    return load_samples(source, file, **{"vocab_size": 256, "max_samples": 64, "max_length": 512, **changes})


def lines(file: Path, *records: Any) -> Path:
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return file


def text_of(source: SourceCheckpoint, row: tuple[int, ...]) -> str:
    from transformers import AutoTokenizer

    text: str = AutoTokenizer.from_pretrained(source.path, local_files_only=True).decode(list(row))
    return text


@pytest.mark.parametrize("field", ["content", "text"])
def test_the_named_field_is_read(source: SourceCheckpoint, tmp_path: Path, field: str) -> None:
    file = lines(tmp_path / "a.jsonl", {"text": "four", "content": "a longer one", "input_ids": [1]})
    assert [len(row) for row in load(source, file, field=field).rows] == [{"content": 12, "text": 4}[field]]


def test_a_missing_named_field_is_refused_with_file_line_and_the_fields_there_are(
    source: SourceCheckpoint, tmp_path: Path
) -> None:
    file = lines(tmp_path / "a.jsonl", {"body": "a"}, {"text": "b", "input_ids": [1]})
    with pytest.raises(TrtbuildError, match=r"a\.jsonl:2 has no field 'body'; it has input_ids, text"):
        load(source, file, field="body")


@pytest.mark.parametrize("seed", [None, 3])
def test_an_id_outside_the_vocabulary_is_reported_with_its_sample(
    source: SourceCheckpoint, tmp_path: Path, seed: int | None
) -> None:
    file = tmp_path / "ids.safetensors"
    write_safetensors(file, {"input_ids": np.array([[1, 2], [3, 256], [4, 5]], np.int64)})
    with pytest.raises(TrtbuildError, match=r"ids\.safetensors: sample 2: token id 256 is outside the vocabulary"):
        load(source, file, seed=seed)


@pytest.mark.parametrize("name", ["ids.safetensors", "texts.txt", "notes.md", None])
def test_a_field_is_refused_where_there_are_no_records(name: str | None, tmp_path: Path, cli: Cli) -> None:
    given = ("--calibration", tmp_path / name) if name else ()
    code, _, err = cli("plan", tmp_path, "--quantization", "fp8", "--calibration-field", "body", *given)
    assert (code, "field 'body' applies to the records of a JSONL file, not to" in err) == (2, True)
    assert (name or "the built-in texts") in err


@pytest.mark.parametrize(("field", "key"), [("text", "messages"), ("talk", "talk")])
def test_chats_are_written_by_the_models_own_template(byte_model: Make, tmp_path: Path, field: str, key: str) -> None:
    source = byte_model(chat_template=CHAT_TEMPLATE)
    rows = load(source, lines(tmp_path / "a.jsonl", {key: [USER, ANSWER]}), field=field).rows
    assert [text_of(source, row) for row in rows] == ["<user>hé</><assistant>yes</>"]


def test_a_template_in_a_file_of_its_own_is_used(byte_model: Make, tmp_path: Path) -> None:
    source = byte_model()
    (source.path / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert text_of(source, load(source, lines(tmp_path / "a.jsonl", {"messages": [USER]})).rows[0]) == "[hé]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"a\.jsonl:2: messages is empty"),
        ([{"role": "user"}], r'a\.jsonl:2: message 0 of the chat has no "role" and "content"'),
        ([USER, {"role": "user", "content": None}], r"a\.jsonl:2: message 1 of the chat"),
        ([USER, "hello"], r"a\.jsonl:2: message 1 of the chat"),
        (["hello"], r"a\.jsonl:2: field 'messages' is \[\"hello\"\], not a list of messages"),
        ([1, 2], r"a\.jsonl:2: field 'messages' is \[1, 2\], not a list of messages"),
        ("hello", r"a\.jsonl:2: field 'messages' is \"hello\", not a list of messages"),
        ({"role": "user"}, r"a\.jsonl:2: field 'messages' is \{.*\}, not a list of messages"),
        (
            [{"role": "nobody", "content": ""}],
            r"a\.jsonl:2: the model's chat template refuses the chat: who is nobody\?",
        ),
    ],
)
def test_malformed_chats_are_refused_with_file_and_line(
    byte_model: Make, tmp_path: Path, messages: Any, message: str
) -> None:
    source = byte_model(chat_template=CHAT_TEMPLATE)
    file = lines(tmp_path / "a.jsonl", {"messages": [USER]}, {"messages": messages})
    with pytest.raises(TrtbuildError, match=message):
        load(source, file)


@pytest.mark.parametrize("ids", ["hello", {"a": 1}, [1, "2"], [USER], [True], "x" * 500])
def test_token_ids_that_are_none_are_refused(byte_model: Make, tmp_path: Path, ids: Any) -> None:
    source = byte_model(chat_template=CHAT_TEMPLATE)
    with pytest.raises(TrtbuildError, match=r"a\.jsonl:1: field 'input_ids' is .*, not a list of token ids") as caught:
        load(source, lines(tmp_path / "a.jsonl", {"input_ids": ids}))
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ range(10 ** 9) }}", "Range too big"),
    ],
)
def test_templates_that_fail_are_named(byte_model: Make, tmp_path: Path, template: str, message: str) -> None:
    source = byte_model(chat_template=template)
    with pytest.raises(TrtbuildError, match=rf"a\.jsonl:1: the model's chat template refuses the chat: .*{message}"):
        load(source, lines(tmp_path / "a.jsonl", {"messages": [USER]}))


def test_half_a_surrogate_pair_is_no_text(byte_model: Make, tmp_path: Path) -> None:
    source = byte_model(chat_template=CHAT_TEMPLATE)
    file = tmp_path / "a.jsonl"
    for record in ({"text": "\ud800"}, {"messages": [{"role": "user", "content": "\ud800"}]}):
        file.write_text(json.dumps(record))
        with pytest.raises(TrtbuildError, match=r"a\.jsonl:1 is no Unicode text: surrogates not allowed"):
            load(source, file)


def test_chats_without_a_template_are_refused(source: SourceCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match=r"a\.jsonl:1 is a chat, and the tokenizer of .* has no chat template"):
        load(source, lines(tmp_path / "a.jsonl", {"messages": [USER]}))


def test_a_seed_shuffles_before_samples_are_taken(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", *({"input_ids": [number]} for number in range(20)))
    order = [8, 6, 10, 3, 11]  # spelled out: the same on every machine and for ever
    assert load(source, file, seed=7, max_samples=5).rows == tuple((number,) for number in order)
    assert load(source, file, max_samples=5).rows == tuple((number,) for number in range(5))
    assert load(source, file, seed=7).digest == load(source, file, seed=7).digest != load(source, file, seed=8).digest
    write_safetensors(tmp_path / "a.safetensors", {"input_ids": np.arange(20, dtype=np.int64)[:, None]})
    assert load(source, tmp_path / "a.safetensors", seed=7).digest == load(source, file, seed=7).digest


def test_records_that_are_not_taken_are_not_tokenized(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"input_ids": [1]}\nnot JSON\n')
    assert load(source, file, max_samples=1).rows == ((1,),)


def test_a_document_without_blank_lines_is_cut_into_pieces(source: SourceCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij\n" * 10)
    samples = load(source, tmp_path / "a.txt", max_length=50)
    assert [len(row) for row in samples.rows] == [50, 50, 9]
    assert "".join(text_of(source, row) for row in samples.rows) == ("abcdefghij\n" * 10).strip()


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b"])
def test_separators_inside_a_json_string_do_not_end_a_line(
    source: SourceCheckpoint, tmp_path: Path, separator: str
) -> None:
    file = lines(tmp_path / "a.jsonl", {"text": f"a{separator}b"})
    assert [text_of(source, row) for row in load(source, file).rows] == [f"a{separator}b"]


def test_a_byte_order_mark_and_carriage_returns_are_no_text(source: SourceCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"input_ids": [1]}\r\n{"input_ids": [2]}\r\n')
    assert load(source, tmp_path / "a.jsonl").rows == ((1,), (2,))


ENOUGH = tuple((number, *range(100, 164)) for number in range(FEWEST_SAMPLES))


@pytest.mark.parametrize(
    ("rows", "asked", "expected"),
    [
        (ENOUGH, (None, None), []),
        (ENOUGH, (8, 65), []),
        (ENOUGH[1:], (None, None), ["7 samples with 455 tokens are few"]),
        (tuple(row[:10] for row in ENOUGH), (None, None), ["8 samples with 80 tokens are few"]),
        (ENOUGH[:1] * 8, (None, None), ["all 8 samples are the same"]),
        (((5,) * 300, (5,) * 301) * 4, (None, None), ["the only token is 5"]),
        (ENOUGH, (9, None), ["9 samples were asked for, 8 are there"]),
        (ENOUGH, (None, 66), ["66 tokens per sample were asked for, the longest sample has 65"]),
    ],
)
def test_doubtful_sets_are_told(
    rows: tuple[tuple[int, ...], ...], asked: tuple[int | None, int | None], expected: list[str]
) -> None:
    found = list(doubts(Samples(rows, "test"), asked_samples=asked[0], asked_length=asked[1]))
    assert len(found) == len(expected)
    assert all(told.startswith(start) for told, start in zip(found, expected, strict=True))


def test_the_built_in_texts_are_no_doubtful_set(source: SourceCheckpoint) -> None:
    samples = load_samples(source, None, vocab_size=256, max_samples=DEFAULT_SAMPLES, max_length=DEFAULT_LENGTH_TOKENS)
    assert list(doubts(samples, asked_samples=None, asked_length=None)) == []
    assert samples.tokens > FEWEST_TOKENS


def test_the_documented_defaults_are_those_that_are_used() -> None:
    described = {each.path[-1]: each.description for each in fields(Calibration)}
    assert described["max_samples"].endswith(f"empty: {DEFAULT_SAMPLES}.")
    assert described["max_length_tokens"].endswith(f"empty: {DEFAULT_LENGTH_TOKENS}.")


def test_the_manifest_and_the_log_say_what_was_fed(byte_model: Make, tmp_path: Path, cli: Cli) -> None:
    source = byte_model(chat_template=CHAT_TEMPLATE)
    file = lines(tmp_path / "a.jsonl", *({"talk": [USER, {**ANSWER, "content": "x" * n}]} for n in range(12)))
    code, _, err = cli(
        "convert", source.path, "-o", tmp_path / "out", "--quantization", "fp8", "--calibration", file,
        "--calibration-field", "talk", "--calibration-seed", 3, "--calibration-samples", 16, "--calibration-length", 30,
    )  # fmt: skip
    assert code == 0, err
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())["calibration"]
    fed = load(source, file, field="talk", seed=3, max_samples=16, max_length=30)
    assert {key: written[key] for key in ("origin", "field", "seed", "samples", "tokens", "sha256")} == {
        "origin": str(file), "field": "talk", "seed": 3, "samples": 12, "tokens": fed.tokens, "sha256": fed.digest,
    }  # fmt: skip
    assert "16 samples were asked for, 12 are there" in written["warnings"]
    assert all(warning in err.replace("\n", " ") for warning in written["warnings"])


@pytest.mark.parametrize("content", ["", '{"input_ids": []}\n', '{"text": ""}\n'])
def test_static_scales_without_a_sample_are_an_error(byte_model: Make, tmp_path: Path, cli: Cli, content: str) -> None:
    """Nothing was observed, so there is no scale to write."""
    (tmp_path / "a.jsonl").write_text(content)
    out = tmp_path / "out"
    options = ("--quantization", "fp8", "--calibration", tmp_path / "a.jsonl")
    code, _, err = cli("convert", byte_model().path, "-o", out, *options)
    assert code == 1
    assert "no calibration sample is left; at least one is needed" in " ".join(err.split())
    assert not out.exists()


def test_every_static_scale_is_finite_and_positive(byte_model: Make, tmp_path: Path, cli: Cli) -> None:
    """Every quantized linear has a weight scale and an activation scale."""
    from tests.conftest import read_safetensors

    code, _, err = cli("convert", byte_model().path, "-o", tmp_path / "out", "--quantization", "fp8")
    assert code == 0, err
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    codes = [name for name, tensor in tensors.items() if tensor.dtype.name == "float8_e4m3fn"]
    assert len(codes) == 3 * 5
    for name in codes:
        for scale in ("weights_scaling_factor", "activation_scaling_factor"):
            value = tensors[name.removesuffix("weight") + scale]
            assert np.isfinite(value).all() and (value > 0).all()


@pytest.mark.parametrize("folder", ["any_name", "cnn_dailymail", "wikitext"])
def test_the_path_of_the_file_does_not_matter_and_nothing_is_downloaded(
    source: SourceCheckpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    folder: str,
) -> None:
    """A data set is not guessed from a name; empty lines are skipped and told, long ones cut."""
    import socket

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a network call"))
    (tmp_path / folder).mkdir()
    file = lines(tmp_path / folder / "calib.jsonl", *({"text": text} for text in ("one", "", "x" * 10_000, "four")))
    with caplog.at_level(logging.INFO):
        assert [len(row) for row in load(source, file).rows] == [3, 512, 4]
    assert "1 empty samples skipped, 1 cut to 512 tokens" in caplog.text
