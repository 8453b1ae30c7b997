"""The environment of a server: UTF-8, the right interpreter, no secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.redaction import is_secret
from trtbuild.serve.environment import FIXED, server_environment

NAMES = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=20)


def environment(inherited: dict[str, str], library_path: Path | None = None) -> dict[str, str]:
    return server_environment(inherited, python_folder=Path("/venv/bin"), library_path=library_path)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY",
     "NGC_API_KEY", "DB_PASSWORD", "WANDB_API_KEY", "AZURE_CLIENT_SECRET", "GITHUB_TOKEN", "MYSQL_PWD", "GITHUB_PAT"],
)  # fmt: skip
def test_credentials_are_left_out(name: str) -> None:
    assert is_secret(name)
    assert name not in environment({name: "hunter2"})


def test_a_value_that_holds_a_password_is_left_out_under_any_name() -> None:
    given = {
        "HTTPS_PROXY": "http://bob:hunter2@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
        "MIRROR": "https://:x@host",
    }
    assert set(given) & set(environment(given)) == {"HTTP_PROXY"}


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_DEBUG", "HOME"]
)
def test_settings_are_passed_on(name: str) -> None:
    assert environment({name: "value"})[name] == "value"


def test_a_posix_locale_becomes_utf8() -> None:
    result = environment(
        {"LC_ALL": "C", "LC_CTYPE": "POSIX", "LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    )
    assert result["LC_ALL"] == result["LANG"] == "C.UTF-8"
    assert result["PYTHONUTF8"] == "1"
    assert not {"LC_CTYPE", "PYTHONIOENCODING"} & set(result)


def test_a_foreign_python_home_does_not_reach_the_embedded_interpreter() -> None:
    assert not {"PYTHONHOME", "PYTHONPATH"} & set(environment({"PYTHONHOME": "/opt/other", "PYTHONPATH": "/opt/lib"}))


def test_this_interpreter_comes_first_in_path() -> None:
    assert environment({"PATH": "/usr/bin:/bin"})["PATH"] == "/venv/bin:/usr/bin:/bin"
    assert environment({})["PATH"] == f"/venv/bin:{os.defpath}"


def test_the_library_folder_comes_first_and_keeps_what_was_there() -> None:
    assert environment({}, Path("/run/lib"))["LD_LIBRARY_PATH"] == "/run/lib"
    assert environment({"LD_LIBRARY_PATH": "/cuda"}, Path("/run/lib"))["LD_LIBRARY_PATH"] == "/run/lib:/cuda"
    assert environment({"LD_LIBRARY_PATH": "/cuda"})["LD_LIBRARY_PATH"] == "/cuda"


@given(st.dictionaries(NAMES, st.text(max_size=5)))
def test_nothing_secret_gets_through_and_the_hub_is_never_asked(inherited: dict[str, str]) -> None:
    result = environment(inherited)
    assert not any(is_secret(name) for name in result if name not in FIXED)
    assert result["HF_HUB_OFFLINE"] == "1"
