"""`trtbuild doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from trtbuild import doctor
from trtbuild.cli.doctor import doctor as command
from trtbuild.doctor import Finding, examine, host
from trtbuild.errors import CheckFailed, TrtbuildError
from trtbuild.requirements import Requirement

ROOT = Path(__file__).parents[3]


def one(findings: Iterator[Finding]) -> Finding:
    """Return the only finding of a check."""
    (finding,) = findings
    return finding


def test_every_finding_that_fails_comes_with_a_remedy() -> None:
    findings = examine()
    assert [finding.name for finding in findings if finding.status == "fail" and not finding.remedy] == []
    assert {"python", "torch", "transformers", "tritonclient", "memory", "gpu", "ports"} <= {f.name for f in findings}


def test_it_imports_nothing_heavy() -> None:
    code = "import sys; from trtbuild.doctor import examine; examine(); print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


@pytest.mark.parametrize(
    ("system", "machine", "libc", "status"),
    [
        ("Linux", "x86_64", ("glibc", "2.36"), "ok"),
        ("Linux", "x86_64", ("glibc", "2.35"), "ok"),
        ("Linux", "x86_64", ("glibc", "2.31"), "fail"),
        ("Linux", "x86_64", ("", ""), "fail"),
        ("Linux", "aarch64", ("glibc", "2.36"), "fail"),
        ("Darwin", "arm64", ("", ""), "fail"),
    ],
)
def test_the_platform_must_be_that_of_the_servers_wheel(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str], status: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert one(host.check_platform()).status == status


@pytest.mark.parametrize(("version", "status"), [((3, 9), "fail"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "fail")])
def test_the_python_must_be_supported(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], status: str) -> None:
    monkeypatch.setattr(host, "sys", SimpleNamespace(version_info=(*version, 1), executable="/usr/bin/python3"))
    finding = one(host.check_python())
    assert finding.status == status
    assert ("3.10 to 3.13" in finding.remedy) is (status == "fail")


def test_the_supported_pythons_are_those_of_pyproject_and_of_the_bootstrap() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">={}.{}"'.format(*host.PYTHONS[0]) in pyproject
    bootstrap = (ROOT / "scripts" / "check_python.py").read_text(encoding="utf-8")
    assert "OLDEST, NEWEST = {}, {}\n".format(*host.PYTHONS) in bootstrap


def test_a_missing_and_an_old_package_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        Requirement("click", ">=8.1", ""),
        Requirement("tritonclient", ">=999", ""),
        Requirement("no-such-package", ">=1", "build"),
    ]
    monkeypatch.setattr(host, "own_requirements", lambda *_: wanted)
    click, client, missing = host.check_packages()
    assert click.status == "ok"
    assert client.status == missing.status == "fail"
    assert "needed: tritonclient>=999" in client.detail
    assert missing.detail == "not installed, needed: no-such-package>=1 (extra build)"
    assert missing.remedy == f"{sys.executable} -m pip install 'no-such-package>=1'"


def test_a_missing_server_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise TrtbuildError("no tritonserver found", hint="install it")

    monkeypatch.setattr(host, "find_server", nothing)
    finding = one(host.check_server())
    assert (finding.status, finding.detail) == ("fail", "no tritonserver found")
    assert "pip install --no-deps --target" in finding.remedy


def test_a_missing_libpython_is_a_failure_of_the_python_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: object) -> None:
        raise TrtbuildError("needs libpython3.11.so.1.0", hint="apt-get install libpython3.11")

    monkeypatch.setattr(host, "find_server", lambda: SimpleNamespace(version="2.51.0", kind="carrier", binary="/x"))
    monkeypatch.setattr(host, "find_stub", nothing)
    server, backend = host.check_server()
    assert server.status == "ok"
    assert (backend.status, backend.remedy) == ("fail", "apt-get install libpython3.11")


def test_taken_default_ports_are_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        serving = SimpleNamespace(address="127.0.0.1", http_port=port, grpc_port=0, metrics_port=0)
        monkeypatch.setattr(host, "Serving", lambda: serving)
        finding = one(host.check_ports())
    assert finding.status == "warn"
    assert f"{port} is already in use" in finding.detail


@pytest.mark.parametrize(("free", "status"), [(10**9, "fail"), (2 * 10**9, "ok")])
def test_a_full_disk_is_a_failure(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert [finding.status for finding in host.check_disk()] == [status, status]


@pytest.mark.parametrize(("gibibytes", "status"), [(1, "fail"), (2, "warn"), (3, "warn"), (4, "ok")])
def test_memory_is_graded(monkeypatch: pytest.MonkeyPatch, gibibytes: int, status: str) -> None:
    monkeypatch.setattr(host, "available_memory_bytes", lambda: gibibytes * 2**30)
    assert one(host.check_memory()).status == status


def test_leftovers_in_shared_memory_are_shown_with_the_way_to_remove_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "trtbuild_0123_x").write_bytes(bytes(2**20))
    (tmp_path / "somebody_elses").write_bytes(b"")
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path)
    _, left = host.check_shared_memory()
    assert left.detail == "1 files of trtbuild, 1 MiB"
    assert f"rm {tmp_path}/trtbuild_*" in left.remedy


@pytest.mark.parametrize(("cores", "status"), [(0.5, "warn"), (1, "warn"), (2, "ok")])
def test_one_core_is_a_warning(monkeypatch: pytest.MonkeyPatch, cores: float, status: str) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    assert one(host.check_processors()).status == status


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Three findings, one of each kind, in place of the real ones."""
    made = [
        Finding("python", "ok", "3.11.7"),
        Finding("ports", "warn", "8000 is taken", "pass another"),
        Finding("disk", "fail", "[0 GB] free", "free some"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda _facts: made)
    return made


def test_a_failure_is_exit_code_3_after_the_whole_report(findings: list[Finding]) -> None:
    result = CliRunner().invoke(command, [])
    assert result.stdout.splitlines() == [
        "ok    python  3.11.7",
        "warn  ports   8000 is taken",
        "      → pass another",
        "fail  disk    [0 GB] free",
        "      → free some",
    ]
    assert isinstance(result.exception, CheckFailed)
    assert result.exception.exit_code == 3
    assert result.exception.message == "1 of 3 checks failed: disk"


def test_quiet_shows_only_what_is_not_ok(findings: list[Finding]) -> None:
    assert "python" not in CliRunner().invoke(command, ["--quiet"]).stdout


def test_json_holds_every_finding(findings: list[Finding]) -> None:
    report = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert report == {"ok": False, "findings": [finding.to_json() for finding in findings]}


def test_warnings_alone_are_exit_code_0(findings: list[Finding]) -> None:
    findings.pop()
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["ok"] is True
