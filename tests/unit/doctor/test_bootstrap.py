"""The scripts behind make: which Python they choose, what they say, and that they install nothing to find out."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the bootstrap needs, without an environment."""
    shutil.copytree(ROOT / "scripts", tmp_path / "clone" / "scripts")
    shutil.copytree(ROOT / "builder", tmp_path / "clone" / "builder")
    return tmp_path / "clone"


def bootstrap(checkout: Path, pythons: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the bootstrap with a PATH on which only the given Pythons are; each is the text of a shell script."""
    folder = checkout / "path"
    folder.mkdir()
    for tool in ("bash", "dirname", "tail", "env"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    for name, script in pythons.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [checkout / "scripts" / "bootstrap.sh", "environment"],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_any_python_it_names_the_package(checkout: Path) -> None:
    answer = bootstrap(checkout, {})
    assert answer.returncode == 1
    assert "no suitable Python: 3.10 to 3.13 with venv is needed" in answer.stderr
    assert "apt-get install python3 python3-venv" in answer.stderr


def test_each_unsuitable_python_is_named_with_the_reason(checkout: Path) -> None:
    too_old = "echo 'is Python 3.9; 3.10 to 3.13 are supported'; exit 2"
    no_venv = "echo 'is Python 3.12 without venv; Debian or Ubuntu: apt-get install python3.12-venv'; exit 2"
    answer = bootstrap(checkout, {"python3": too_old, "python3.12": no_venv, "python3.13": "exit 127"})
    assert answer.returncode == 1
    assert "hint: python3: is Python 3.9" in answer.stderr
    assert "apt-get install python3.12-venv" in answer.stderr
    assert "python3.13:" not in answer.stderr


def test_a_python_that_the_server_cannot_embed_is_used_with_a_warning_and_only_if_there_is_no_better(
    checkout: Path,
) -> None:
    half = "case $1 in *check*) echo 'needs libpython3.11.so.1.0; apt-get install libpython3.11'; exit 3;; esac; exit 1"
    answer = bootstrap(checkout, {"python3": half})
    assert "warning: python3: needs libpython3.11.so.1.0; apt-get install libpython3.11" in answer.stderr


def test_the_python_named_is_the_only_one_looked_at(checkout: Path) -> None:
    answer = bootstrap(checkout, {"python3": "exit 0"}, PYTHON="python3.99")
    assert "looked for python3.99 on PATH" in answer.stderr


def test_this_python_passes_its_own_check() -> None:
    answer = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_python.py"], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (0, "")


@pytest.fixture(scope="module")
def torch_size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_size", ROOT / "scripts" / "torch_size.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def item(name: str, version: str, url: str = "https://index.invalid/file.whl") -> dict[str, Any]:
    """Return one entry of pip's report."""
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": url}}


@pytest.mark.parametrize(
    ("items", "is_cuda"),
    [
        ([item("torch", "2.13.0+cpu"), item("sympy", "1.14")], False),
        ([item("torch", "2.13.0"), item("numpy", "2.4")], False),
        ([item("torch", "2.13.0"), item("nvidia-cublas", "13.1")], True),
        ([item("torch", "2.14.1+cu130")], True),
        ([], False),
    ],
)
def test_a_cuda_build_is_recognized(torch_size: ModuleType, items: list[dict[str, Any]], is_cuda: bool) -> None:
    assert torch_size.is_cuda_build(items) is is_cuda


def test_the_size_and_the_alternative_are_said(torch_size: ModuleType, tmp_path: Path) -> None:
    remote = torch_size.describe([item("torch", "2.13.0"), item("nvidia-cublas", "13.1")])
    assert "torch 2.13.0 and 1 more packages, about 3 GB to fetch, about 5.5 GB on disk" in remote
    assert "make TORCH=" in remote
    file = tmp_path / "torch 1.whl"
    with file.open("wb") as sparse:
        sparse.truncate(2_500_000_000)
    local = torch_size.describe([item("torch", "2.14.1+cu130", file.as_uri())])
    assert "2.5 GB to fetch" in local


def test_pips_report_is_asked_for_and_a_failing_pip_is_left_alone(
    torch_size: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = json.dumps({"install": [item("torch", "1")]})
    answers = iter([subprocess.CompletedProcess([], 0, report), subprocess.CompletedProcess([], 1, "")])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: next(answers))
    assert torch_size.would_install(["torch"]) == [item("torch", "1")]
    assert torch_size.would_install(["torch"]) == []


def test_make_help_lists_the_targets() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    answer = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    for target in ("demo", "test", "test-all", "check", "bench", "clean"):
        assert f"make {target} " in answer.stdout
