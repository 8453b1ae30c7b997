"""Rules for Dockerfiles: no foreign TensorRT, no root, a health check, a named version, no secrets."""

from __future__ import annotations

import pytest

from trtbuild.dockerfile import RULES, check_dockerfile, parse_dockerfile

GOOD = """\
ARG TAG=26.07
FROM nvcr.io/nvidia/tritonserver:${TAG}-trtllm-python-py3
RUN apt-get update
USER 1000:1000
HEALTHCHECK CMD ["true"]
"""


def rules(text: str) -> list[str]:
    """Return the rules that a Dockerfile breaks."""
    return [problem.rule for problem in check_dockerfile(text)]


def test_a_good_one_has_no_problem() -> None:
    assert rules(GOOD) == []


@pytest.mark.parametrize(
    "command",
    [
        "pip install tensorrt", "pip3 install --no-cache-dir tensorrt-cu12", "python3 -m pip install -U 'tensorrt>=10'", "uv pip install tensorrt_llm",
        "pip install torch==2.9.0 tensorrt_cu13_libs", "pip install tensorrt==10.*", 'pip install "tensorrt-llm[devel]"', "apt-get update && pip install tensorrt~=10.9",
        "pip --quiet install TensorRT", "pip3.12 install tensorrt-cu12-bindings<11", "pip install tensorrt@https://example.com/x.whl",
    ],
)  # fmt: skip
def test_an_unpinned_tensorrt_is_flagged_with_its_line(command: str) -> None:
    (problem,) = check_dockerfile(GOOD.replace("apt-get update", command))
    assert (problem.rule, problem.line) == ("tensorrt", 3)
    assert "no engine loads" in problem.message


def test_an_unpinned_tensorrt_is_found_over_several_lines_and_in_exec_form() -> None:
    text = GOOD.replace(
        "apt-get update", "apt-get update && \\\n    # a comment\n    pip install \\\n      numpy \\\n      tensorrt"
    )
    assert rules(text) == ["tensorrt"]
    assert rules(GOOD.replace("apt-get update", '["pip", "install", "tensorrt"]')) == ["tensorrt"]


@pytest.mark.parametrize(
    "command",
    [
        "pip install tensorrt==10.14.1.48", "pip install 'tensorrt-llm==1.2.1' numpy", "pip install torch-tensorrt==2.9.0 && echo tensorrt", "pip install torch",
        "pip uninstall -y tensorrt", "echo pip; ls tensorrt", "pip download tensorrt",
    ],
)  # fmt: skip
def test_an_exact_tensorrt_and_other_words_are_not_flagged(command: str) -> None:
    assert rules(GOOD.replace("apt-get update", command)) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (GOOD.replace("USER 1000:1000\n", ""), "user"),
        (GOOD.replace("1000:1000", "root"), "user"),
        (GOOD.replace("1000:1000", "0:0"), "user"),
        (GOOD + "USER root\n", "user"),
        (GOOD.replace('HEALTHCHECK CMD ["true"]', ""), "healthcheck"),
        (GOOD.replace('CMD ["true"]', "NONE"), "healthcheck"),
        (GOOD.replace(":${TAG}-trtllm-python-py3", ""), "pinned"),
        (GOOD.replace("${TAG}-trtllm-python-py3", "latest"), "pinned"),
        (GOOD.replace("RUN apt-get update", "ENV HF_TOKEN=hf_abc"), "secret"),
        (GOOD.replace("RUN apt-get update", 'ARG MY_PASSWORD="x"'), "secret"),
    ],
)
def test_each_rule_finds_its_mistake(text: str, rule: str) -> None:
    assert rules(text) == [rule]


def test_only_the_last_stage_is_what_runs() -> None:
    assert rules("FROM python:3.12 AS build\nUSER root\n" + GOOD.replace("ARG TAG=26.07\n", "").replace("${TAG}", "26.07")) == []  # fmt: skip
    assert rules(GOOD + "FROM python:3.12\n") == ["user", "healthcheck"]


def test_an_earlier_stage_a_digest_and_scratch_need_no_tag() -> None:
    for image in ("build", "scratch", "example.com:5000/x@sha256:0123"):
        text = f"FROM python:3.12 AS build\nFROM {image}\nUSER 1000\nHEALTHCHECK CMD x\n"
        assert rules(text) == []


def test_an_empty_file_is_not_a_crash() -> None:
    assert rules("") == ["user", "healthcheck"]
    assert parse_dockerfile("# nothing\n") == []
    assert set(RULES) == {"tensorrt", "user", "healthcheck", "pinned", "secret"}
