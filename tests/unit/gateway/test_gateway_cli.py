"""`trtbuild gateway` as users start it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from tests.unit.gateway.running import PATIENCE_S, command
from tests.unit.templates import tiny_tokenizers

from trtbuild.cli.edge import run
from trtbuild_client.mock.server import RunningMock

TOKEN = "0123456789abcdef"


def test_the_address_is_printed_when_requests_are_taken_and_sigterm_ends_it_well(mock: RunningMock) -> None:
    with command("--url", mock.grpc, "--json", "--served-name", "a", "--quiet") as (process, line):
        printed = json.loads(line)
        assert printed["models"] == ["a"] and printed["base_url"] == f"{printed['url']}/v1"
        assert httpx2.get(f"{printed['url']}/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None and process.stderr.read() == ""


def test_a_token_comes_from_the_environment_and_is_printed_nowhere(mock: RunningMock) -> None:
    with command("--url", mock.grpc, "--debug", environment={"TRTBUILD_GATEWAY_TOKEN": TOKEN}) as (process, url):
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        assert httpx2.get(f"{url}/v1/models", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "models 401" in log and "models 200" in log
    assert TOKEN not in log


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--host", "0.0.0.0"], 2, "reachable from other machines"),
        (["--timeout", "0"], 2, "no time above 0"),
        (["--max-body", "lots"], 2, "no size"),
        (["--max-in-flight", "0"], 2, "--max-in-flight"),
        (["--url", "nonsense"], 2, "url 'nonsense'"),
        (["--tokenizer", "."], 1, "the tokenizer in . cannot be loaded"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRTBUILD_GATEWAY_TOKEN", raising=False)
    assert run(["gateway", "--port", "0", *arguments]) == code
    assert words in capsys.readouterr().err


def test_a_taken_port_and_a_broken_template_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["gateway", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    folder = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "t", chat_template="{% for %}")
    assert run(["gateway", "--port", "0", "--tokenizer", str(folder)]) == 1
    assert "chat template" in capsys.readouterr().err


def test_without_the_extra_the_way_to_install_it_is_said() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from trtbuild.cli.edge import run\n"
        "sys.exit(run(['gateway', '--port', '0']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 1
    assert "pip install 'trtbuild[gateway]'" in done.stderr and "Traceback" not in done.stderr


def test_the_package_is_needed_for_a_tokenizer_folder_only(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from trtbuild.gateway.prompts import Tokenizer\n"
        "from trtbuild.errors import TrtbuildError\n"
        "try:\n    Tokenizer(Path(sys.argv[1]))\n"
        "except TrtbuildError as error:\n    print(error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )  # fmt: skip
    assert "trtbuild[gateway]" in done.stdout
