"""Every rule finds its mistake, under its name, and nothing is found in a good repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.repo.lint import lint

Mutation = Callable[[Path], None]


def swap(model: str, old: str, new: str) -> Mutation:
    """Return a mutation that replaces the first `old` in a model's config.pbtxt."""

    def mutate(repository: Path) -> None:
        file = repository / model / "config.pbtxt"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")

    return mutate


def drop(path: str) -> Mutation:
    """Return a mutation that deletes a file or folder."""

    def mutate(repository: Path) -> None:
        place = repository / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return mutate


def move(old: str, new: str) -> Mutation:
    """Return a mutation that renames a folder."""
    return lambda repository: (repository / old).rename(repository / new) and None


def cycle(*mutations: Mutation) -> Mutation:
    """Return a mutation made of several."""

    def mutate(repository: Path) -> None:
        for mutation in mutations:
            mutation(repository)

    return mutate


#: What goes wrong -> (the mutation, every rule it must break).
MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    "placeholder in a number": (
        swap("ensemble", "max_batch_size: 16", "max_batch_size: ${size}"),
        {"unfilled", "syntax"},
    ),
    "placeholder in a text": (
        swap(
            "preprocessing",
            '"add_special_tokens" value { string_value: "true"',
            '"add_special_tokens" value { string_value: "${flag}"',
        ),
        {"unfilled"},
    ),
    "jinja left over": (swap("ensemble", 'platform: "ensemble"', 'platform: "{{ platform }}"'), {"unfilled"}),
    "jinja block left over": (swap("ensemble", 'platform: "ensemble"', "{% if x %}"), {"unfilled", "syntax"}),
    "unknown field": (swap("postprocessing", "backend:", "backendd:"), {"syntax"}),
    "unknown type": (swap("tensorrt_llm", "TYPE_INT32", "TYPE_INTEGER"), {"syntax"}),
    "no configuration": (drop("postprocessing/config.pbtxt"), {"syntax"}),
    "other name": (swap("postprocessing", 'name: "postprocessing"', 'name: "post"'), {"name-differs"}),
    "hidden member": (
        swap("ensemble", 'model_name: "postprocessing"', 'model_name: "../secret"'),
        {"model-name", "ensemble-member"},
    ),
    "folder with a space": (
        cycle(move("tensorrt_llm_bls", "my bls"), swap("my bls", 'name: "tensorrt_llm_bls"', 'name: "my bls"')),
        {"model-name"},
    ),
    "no version": (drop("ensemble/1"), {"no-version"}),
    "version with a letter": (move("ensemble/1", "ensemble/v1"), {"no-version"}),
    "no code": (drop("preprocessing/1/model.py"), {"no-model-file"}),
    "empty parameter": (
        swap(
            "preprocessing",
            '"add_special_tokens" value { string_value: "true"',
            '"add_special_tokens" value { string_value: ""',
        ),
        {"empty-parameter"},
    ),
    "parameter twice": (
        swap(
            "preprocessing",
            "parameters {",
            'parameters { key: "vocab_size" value { string_value: "1" } }\nparameters {',
        ),
        {"duplicate-parameter"},
    ),
    "no instance": (swap("tensorrt_llm_bls", "count: 2", "count: 0"), {"instance-count"}),
    "negative batch": (
        swap("tensorrt_llm_bls", "max_batch_size: 16", "max_batch_size: -1"),
        {"batch-size", "batch-sizes-differ"},
    ),
    "preferred batch": (
        swap("preprocessing", "preferred_batch_size: [ 16 ]", "preferred_batch_size: [ 17 ]"),
        {"batch-size"},
    ),
    "input twice": (swap("tensorrt_llm_bls", 'name: "top_p"', 'name: "top_k"'), {"duplicate-tensor", "tensor-differs"}),
    "no type": (swap("tensorrt_llm_bls", "data_type: TYPE_BOOL ", ""), {"tensor-type"}),
    "dimension of zero": (swap("tensorrt_llm_bls", "dims: [ -1, 3 ]", "dims: [ -1, 0 ]"), {"tensor-dims"}),
    "no dimensions": (swap("tensorrt_llm_bls", "dims: [ -1, 3 ]", "dims: [ ]"), {"tensor-dims"}),
    "unknown member": (swap("ensemble", 'model_name: "postprocessing"', 'model_name: "post"'), {"ensemble-member"}),
    "unknown tensor": (
        swap("ensemble", 'input_map { key: "QUERY"', 'input_map { key: "QUESTION"'),
        {"ensemble-tensor", "ensemble-required"},
    ),
    "output of nobody": (
        swap("ensemble", 'output { name: "text_output"', 'output { name: "text_result"'),
        {"ensemble-unused"},
    ),
    "wire from nowhere": (
        swap("ensemble", 'key: "input_ids" value: "_INPUT_ID"', 'key: "input_ids" value: "_IDS"'),
        {"ensemble-unset", "ensemble-unused"},
    ),
    "two makers": (
        swap(
            "ensemble", 'key: "sequence_length" value: "_SEQUENCE_LENGTH"', 'key: "sequence_length" value: "_INPUT_ID"'
        ),
        {"ensemble-unset"},
    ),
    "required input left out": (
        swap("ensemble", 'input_map { key: "input_lengths" value: "_REQUEST_INPUT_LEN" }', ""),
        {"ensemble-required", "ensemble-unused"},
    ),
    "other type": (
        swap("ensemble", 'name: "top_p" data_type: TYPE_FP32', 'name: "top_p" data_type: TYPE_FP64'),
        {"ensemble-datatype"},
    ),
    "other type between steps": (
        swap("preprocessing", 'name: "INPUT_ID" data_type: TYPE_INT32', 'name: "INPUT_ID" data_type: TYPE_INT64'),
        {"ensemble-datatype"},
    ),
    "other dims": (
        swap(
            "ensemble",
            'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ]',
            'name: "seed" data_type: TYPE_UINT64 dims: [ 2 ]',
        ),
        {"ensemble-dims"},
    ),
    "larger batch than a member": (
        swap("postprocessing", "max_batch_size: 16", "max_batch_size: 8"),
        {"ensemble-batch-size", "batch-sizes-differ"},
    ),
    "ensemble with instances": (
        swap("ensemble", 'platform: "ensemble"', 'platform: "ensemble" instance_group [ { count: 1 } ]'),
        {"ensemble-scheduling"},
    ),
    "ensemble with a policy": (
        swap("ensemble", 'platform: "ensemble"', 'platform: "ensemble" model_transaction_policy { decoupled: true }'),
        {"ensemble-scheduling"},
    ),
    "a model.yaml that says another thing than config.pbtxt": (
        lambda repository: (
            (repository / "tensorrt_llm" / "1" / "model.yaml").write_text(
                "model: org/m\ntriton_config: {decoupled: false, max_batch_size: 0}\n"
            )
            and None
        ),
        {"llmapi-differs"},
    ),
    "decoupled differs": (swap("tensorrt_llm_bls", "decoupled: true", "decoupled: false"), {"decoupled-differs"}),
    "other tokenizer": (swap("postprocessing", '/tokenizer"', '/tokens"'), {"tokenizer-differs", "path-missing"}),
    "two postprocessings": (swap("postprocessing", "count: 1", "count: 2"), {"postprocessing-instances"}),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found_under_its_name(repository: Path, name: str) -> None:
    mutate, rules = MUTATIONS[name]
    assert lint(repository) == []
    mutate(repository)
    findings = lint(repository)
    assert {finding.rule for finding in findings} == rules
    assert all(finding.message and finding.fix and finding.file for finding in findings)


def test_errors_come_before_warnings(repository: Path) -> None:
    MUTATIONS["larger batch than a member"][0](repository)
    assert [finding.severity for finding in lint(repository)] == ["error", "warning"]


def test_a_placeholder_is_named_with_its_line(repository: Path) -> None:
    MUTATIONS["placeholder in a number"][0](repository)
    lines = (repository / "ensemble" / "config.pbtxt").read_text().split("\n")
    number = next(index for index, line in enumerate(lines, start=1) if "${size}" in line)
    assert any(f"line {number} still has the placeholder ${{size}}" in finding.message for finding in lint(repository))


def test_a_comment_may_hold_anything(repository: Path) -> None:
    file = repository / "ensemble" / "config.pbtxt"
    file.write_text("# fill ${this} or {{ that }}\n" + file.read_text())
    assert lint(repository) == []


def test_the_keys_a_backend_needs_may_be_empty(repository: Path) -> None:
    file = repository / "tensorrt_llm" / "config.pbtxt"
    file.write_text(file.read_text() + 'parameters { key: "guided_decoding_backend" value { string_value: "" } }\n')
    assert lint(repository) == []


def test_an_ensemble_of_other_models_is_checked_by_itself(tmp_path: Path) -> None:
    double = 'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }'
    chain = """platform: "ensemble" input { name: "a" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "b" data_type: TYPE_FP32 dims: [ 2 ] }
    ensemble_scheduling { step { model_name: "double" model_version: -1
      input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } } }"""
    for name, text in (("double", double), ("chain", chain)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "double" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    assert lint(tmp_path) == []


@pytest.mark.parametrize("content", ["missing", "empty", "file"])
def test_something_else_than_a_repository_is_an_error(tmp_path: Path, content: str) -> None:
    place = tmp_path / "place"
    if content == "empty":
        place.mkdir()
    elif content == "file":
        place.write_text("x")
    with pytest.raises(TrtbuildError, match=r"is not a folder|holds no model"):
        lint(place)
