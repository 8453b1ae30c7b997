"""NVIDIA's own repositories get the findings that they are known for, and --fix mends what can be mended without a person."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.unit.repo.stock_repository import MANDATORY, fill, write_llmapi, write_stock

from trtbuild.repo.lint import check
from trtbuild.repo.lint.fix import plan, write
from trtbuild.trtllm.versions import find_release

RELEASES = ("0.17.0", "0.19.0", "0.20.0", "1.2.1")


def test_the_template_as_it_lies_in_the_container_leaves_43_parameters_of_the_core_open(tmp_path: Path) -> None:
    release = find_release("1.2.0")
    findings = check(write_stock(tmp_path / "stock", release), release=release).findings
    core = [each for each in findings if each.rule == "unfilled" and each.file == "tensorrt_llm/config.pbtxt"]
    of_parameters = [each for each in core if "the backend" in each.message or "does not load" in each.message]
    assert len(of_parameters) == 43
    unreadable = {each.file.partition("/")[0] for each in findings if each.rule == "syntax"}
    assert unreadable == {"preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"}


@pytest.mark.parametrize("name", RELEASES)
def test_the_documented_recipe_leaves_the_rest_open_and_nothing_else_is_wrong(tmp_path: Path, name: str) -> None:
    release, stock = find_release(name), tmp_path / "stock"
    write_stock(stock, release)
    fill(stock, {**MANDATORY, "engine_dir": str(tmp_path), "tokenizer_dir": str(tmp_path)})
    rules = Counter(finding.rule for finding in check(stock, release=release).findings)
    assert rules.pop("unfilled") > 30
    # No tokenizer in the folder, no engine in it; trust_remote_code in two files; a tensor listed twice.
    assert rules == {"tokenizer": 1, "engine-folder": 1, "remote-code": 2, "duplicate-tensor": 1}


def test_fix_leaves_a_filled_template_of_which_the_core_has_nothing_open(tmp_path: Path) -> None:
    release, stock = find_release("1.2.0"), tmp_path / "stock"
    write_stock(stock, release)
    fill(stock, {**MANDATORY, "engine_dir": str(tmp_path)})
    core = stock / "tensorrt_llm" / "config.pbtxt"
    before = core.read_text()
    write(stock, plan(stock, check(stock, release=release).findings))
    after = check(stock, release=release).findings
    assert [each for each in after if each.rule == "unfilled" and each.file.startswith("tensorrt_llm/")] == []
    assert not any(each.rule in ("missing-parameter", "duplicate-tensor", "syntax") for each in after)
    # What is left is what was there, line by line.
    kept = iter(before.splitlines())
    assert all(line in kept for line in core.read_text().splitlines() if 'string_value: ""' not in line)
    assert 'key: "guided_decoding_backend"' in core.read_text()
    assert 'key: "max_beam_width"' not in core.read_text()


def test_an_old_template_lacks_the_keys_that_a_newer_backend_needs(tmp_path: Path) -> None:
    stock = write_stock(tmp_path / "stock", find_release("0.18.0"))
    fill(stock, {**MANDATORY, "engine_dir": "/engine", "tokenizer_dir": "/tokenizer"})
    newer = check(stock, release=find_release("1.2.1")).findings
    missing = [each.message for each in newer if each.rule == "missing-parameter"]
    assert len(missing) == 3
    assert all("1.2.1 does not load the model without the key" in message for message in missing)
    renamed = {each.message.split("'")[1] for each in newer if each.rule == "renamed-tensor"}
    assert renamed == {"random_seed", "min_length", "return_kv_cache_reuse_stats"}


def test_a_new_template_names_what_an_older_backend_does_not_read(tmp_path: Path) -> None:
    stock = write_stock(tmp_path / "stock", find_release("1.2.0"))
    fill(stock, {**MANDATORY, "engine_dir": "/engine", "tokenizer_dir": "/tokenizer", "lookahead_window_size": "4"})
    older = check(stock, release=find_release("0.18.0")).findings
    found = [each for each in older if each.rule in ("renamed-tensor", "unread-parameter")]
    assert {each.severity for each in found} == {"warning"}
    assert any("there it is 'random_seed'" in each.message for each in found)
    assert any("does not read 'lookahead_window_size'" in each.message for each in found)


@pytest.mark.parametrize(("decoupled", "rules"), [(False, set()), (True, {"llmapi-differs"})])
def test_the_stock_model_of_the_llm_api_falls_into_its_trap_when_it_streams(
    tmp_path: Path, decoupled: bool, rules: set[str]
) -> None:
    stock = write_llmapi(tmp_path / "stock", find_release("1.2.1"), decoupled=decoupled)
    assert {finding.rule for finding in check(stock).findings} == rules


def test_without_a_release_a_note_says_what_was_not_looked_at(tmp_path: Path) -> None:
    stock = write_stock(tmp_path / "stock", find_release("1.2.0"))
    fill(stock, MANDATORY)
    [note] = check(stock).notes
    assert "nothing says which TensorRT-LLM" in note
    assert "--tensorrt-llm" in note
