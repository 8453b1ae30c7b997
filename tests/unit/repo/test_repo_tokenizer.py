"""A tokenizer folder is checked when the repository is rendered, not when the server starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.repo.tokenizer import check_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return tmp_path


def configure(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **config}))
    return folder


def test_a_good_folder_passes(folder: Path) -> None:
    check_tokenizer(folder, chat_template=False)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="does not exist"):
        check_tokenizer(tmp_path / "missing", chat_template=False)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TrtbuildError, match=r"holds no tokenizer: none of tokenizer\.json"):
        check_tokenizer(tmp_path, chat_template=False)


def test_a_pointer_in_place_of_the_file(folder: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9085657\n"
    (folder / "tokenizer.json").write_text(pointer)
    with pytest.raises(TrtbuildError, match="Git LFS pointer"):
        check_tokenizer(folder, chat_template=False)


def test_a_tokenizer_that_needs_code_of_its_author(folder: Path) -> None:
    configure(folder, auto_map={"AutoTokenizer": ["tokenization_x.X", None]})
    with pytest.raises(TrtbuildError, match="needs code of its author"):
        check_tokenizer(folder, chat_template=False)


def test_a_configuration_that_is_no_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{,}")
    with pytest.raises(TrtbuildError, match="not valid JSON"):
        check_tokenizer(folder, chat_template=False)


@pytest.mark.parametrize(
    "template", ["{{ x }}", [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]]
)
def test_a_chat_template_in_the_configuration(folder: Path, template: Any) -> None:
    check_tokenizer(configure(folder, chat_template=template), chat_template=True)


def test_a_chat_template_in_a_file(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ x }}")
    check_tokenizer(folder, chat_template=True)


@pytest.mark.parametrize("template", [None, "", [], [{"name": "tools", "template": "a"}]])
def test_no_chat_template_where_one_is_needed(folder: Path, template: Any) -> None:
    configure(folder, chat_template=template)
    check_tokenizer(folder, chat_template=False)
    with pytest.raises(TrtbuildError, match="has no chat template"):
        check_tokenizer(folder, chat_template=True)


def test_no_end_of_sequence_is_named_anywhere(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TrtbuildError, match="every answer would run to max_tokens"):
        check_tokenizer(folder, chat_template=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("special_tokens_map.json", '{"eos_token": {"content": "</s>"}}'),
        ("generation_config.json", '{"eos_token_id": 0}'),
        ("generation_config.json", '{"eos_token_id": [1, 2]}'),
        ("config.json", '{"eos_token_id": 2}'),
    ],
)
def test_the_end_of_sequence_may_be_named_in_other_files(folder: Path, name: str, content: str) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / name).write_text(content)
    check_tokenizer(folder, chat_template=False)
