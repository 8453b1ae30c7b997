"""The archive for a bug report: what goes in, what never does, and that it cannot be made to leak."""

from __future__ import annotations

import json
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.doctor.conftest import Fake

from trtbuild.doctor import examine_for
from trtbuild.doctor.bundle import LOG_LINES, Bundle, write_bundle
from trtbuild.redaction import REDACTED, Redactor, is_secret
from trtbuild.variables import SETUP

Cli = Callable[..., tuple[int, str, str]]
Machine = Callable[..., Fake]
SECRET = "hunter2-is-the-value"


def read(path: Path) -> dict[str, str]:
    """Return name -> text of everything in an archive."""
    with tarfile.open(path) as archive:
        members = {member.name.removeprefix("trtbuild-report/"): archive.extractfile(member) for member in archive}
        return {name: file.read().decode() for name, file in members.items() if file is not None}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Return an engine folder with a config, weights and a log."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "config.json").write_text('{"version": "1.2.1", "build_config": {"max_num_tokens": 8192}, "pretrained_config": {}}')  # fmt: skip
    (folder / "rank0.engine").write_bytes(b"WEIGHTS" * 100)
    (folder / "model.safetensors").write_bytes(b"WEIGHTS" * 100)
    return folder


@pytest.fixture
def bundle(artifact: Path, machine: Machine, tmp_path: Path) -> Callable[..., tuple[Bundle, dict[str, str]]]:
    """Return a function that makes an archive of the artifact in an environment, and reads it."""

    def make(environment: dict[str, str] | None = None) -> tuple[Bundle, dict[str, str]]:
        facts = machine(gpus=1, environment=environment or {}).survey()
        path = tmp_path / "report.tar.gz"
        made = write_bundle(path, examine_for(artifact, facts, even_if_broken=True), facts, artifact=artifact, environment=environment or {}, force=True)  # fmt: skip
        return made, read(path)

    return make


def test_it_holds_findings_versions_configs_and_no_weights(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]],
) -> None:
    made, content = bundle({"CUDA_VISIBLE_DEVICES": "0"})
    assert set(content) == set(made.files) == {"doctor.json", "machine.json", "versions.json", "environment.json", "artifact/config.json"}  # fmt: skip
    assert not any("WEIGHTS" in text for text in content.values())
    assert json.loads(content["doctor.json"])["has_gpu"] is True
    assert json.loads(content["environment.json"]) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert json.loads(content["artifact/config.json"])["build_config"] == {"max_num_tokens": 8192}
    assert "pytest" in json.loads(content["versions.json"])["packages"]


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "WANDB_API_KEY", "NGC_API_KEY"])
def test_the_value_of_a_secret_variable_is_found_nowhere(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path, name: str
) -> None:
    (artifact / "server.log").write_text(f"starting with {SECRET} in the middle\nhttp://x/?q={SECRET}&y\n")
    (artifact / "trtbuild.yaml").write_text(
        f"model: {{path: /m}}\n# {SECRET}\nserving: {{system_prompt: 'say {SECRET}'}}\n"
    )
    _, content = bundle({name: SECRET, "LD_LIBRARY_PATH": f"/opt/{SECRET}/lib"})
    assert not any(SECRET in text for text in content.values())
    assert "environment.json" in content
    assert name not in content["environment.json"]


def test_only_listed_variables_are_named_and_none_of_them_is_a_secret(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]],
) -> None:
    assert [name for name in SETUP if is_secret(name)] == []
    _, content = bundle({"INNOCENT": "visible-value", "DATABASE_URL": "postgres://u:p@h/d", "NCCL_DEBUG": "INFO"})
    assert json.loads(content["environment.json"]) == {"NCCL_DEBUG": "INFO"}
    assert "visible-value" not in "".join(content.values())


@pytest.mark.parametrize(
    "line",
    [
        "hf_token: {s}", "hf_token = '{s}'", 'HF_TOKEN="{s}"', "export NGC_API_KEY={s}", "--hf-token {s}", "--api-key={s}", "password={s};",
        "Authorization: Bearer {s}", "authorization: Basic {s}", "curl -H 'Authorization: Bearer {s}'", "https://alice:{s}@example.com/x",
        "postgres://{s}@db/x", "https://example.com/?access_token={s}&a=1", "{{'token': '{s}'}}", '{{"client_secret": "{s}"}}', '"secret": "a\\"{s}"',
        "AWS_SECRET_ACCESS_KEY={s}", "passwd: {s}", "passphrase: {s}", "Cookie: {s}", "x-api-key: {s}", "private_key: {s}", "credentials: {s}",
        "my.service.auth_key={s}", 'parameters {{ key: "hf_token" value: {{ string_value: "{s}" }} }}',
        'parameters: {{\n  key: "api_key"\n  value: {{\n    string_value: "{s}"\n  }}\n}}',
    ],
)  # fmt: skip
def test_what_stands_beside_a_secret_key_is_redacted_however_it_is_written(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path, line: str
) -> None:
    text = line.format(s=SECRET)
    (artifact / "server.log").write_text(f"before\n{text}\nafter\n")
    (artifact / "model").mkdir()
    (artifact / "model" / "config.pbtxt").write_text(f'name: "x"\n{text}\nbackend: "python"\n')
    _, content = bundle()
    assert SECRET not in "".join(content.values())
    assert content["artifact/server.log"].startswith("before\n")
    assert content["artifact/server.log"].endswith("after\n")
    assert 'backend: "python"' in content["artifact/model/config.pbtxt"]


@pytest.mark.parametrize(
    "token",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWx", "nvapi-abcdEFGH1234_-xyz", "ghp_abcdefghijklmnopqrstuvwxyz0123", "github_pat_11ABCDEFG_abcdefgh",
        "glpat-abcdefgh12345678", "sk-proj-abcdefgh12345678", "xoxb-123456789012-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-abcdefghijklmnopqrstuvwx",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123",
    ],
)  # fmt: skip
def test_tokens_of_known_services_are_redacted_without_any_key(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path, token: str
) -> None:
    (artifact / "server.log").write_text(f"W downloading with {token}, then more\n[{token}]\npath/{token}/x\n")
    (artifact / "manifest.json").write_text(json.dumps({"note": token, token: 1, "nested": [{"a": [token]}]}))
    _, content = bundle()
    assert token not in "".join(content.values())
    assert ", then more" in content["artifact/server.log"]


def test_a_private_key_is_redacted_whole(bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path) -> None:
    (artifact / "server.log").write_text(
        "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END RSA PRIVATE KEY-----\nb\n"
    )
    _, content = bundle()
    assert content["artifact/server.log"] == f"a\n{REDACTED}\nb\n"


def test_json_is_redacted_by_key_whatever_is_below_it(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path
) -> None:
    secret = {
        "hf_token": SECRET,
        "a": {"password": [SECRET, {"x": 1}], "api_key": 123456789},
        "credentials": {"user": SECRET},
    }
    (artifact / "manifest.json").write_text(json.dumps(secret))
    _, content = bundle()
    assert SECRET not in "".join(content.values())
    assert "123456789" not in content["artifact/manifest.json"]
    for indent in (None, 2):  # a broken file must not get through either
        (artifact / "manifest.json").write_text(json.dumps(secret, indent=indent)[:-1])
        (artifact / "model.yaml").write_text(f"model: x\ncredentials:\n  user: {SECRET}\n  list:\n  - {SECRET}\n")
        (artifact / "evaluation.json").write_text(f"'a': 1\npassword:\n  - {SECRET}\n")
        _, content = bundle()
        assert SECRET not in "".join(content.values())
        assert content["artifact/model.yaml"].startswith("model: x\n")


def test_users_hosts_homes_and_mail_addresses_are_replaced(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]],
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-17.corp.example")
    monkeypatch.setattr(Path, "home", lambda: Path("/data/homes/alice"))
    (artifact / "alice-notes").mkdir()
    (artifact / "alice-notes" / "server.log").write_text(
        "/data/homes/alice/models /home/bob/x /Users/carol /root/.cache\nalice@gpu-box-17 and gpu-box-17.corp.example: malice stays\nalice.b@corp.example\n"
    )
    (artifact / "manifest.json").write_text(json.dumps({"source": {"path": "/home/bob/models/llama"}}))
    _, content = bundle({"USER": "alice", "HOSTNAME": "gpu-box-17"})
    log = content["artifact/[user]-notes/server.log"]
    for name in ("alice/", "bob", "carol", "gpu-box", "corp.example", "/root"):
        assert name not in log, name
    assert "malice stays" in log
    assert json.loads(content["artifact/manifest.json"])["source"]["path"] == "~/models/llama"
    assert "alice" not in "".join(content.values()).replace("malice", "")


def test_what_is_no_secret_is_kept(bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path) -> None:
    harmless = {
        "max_num_tokens": 8192, "tokens_per_block": 32, "eos_token": "</s>", "eos_token_id": 2, "add_special_tokens": True, "tokenizer_dir": "/models/t",
        "max_tokens": "8", "keys": "q k v", "author": "someone", "kv_cache": "fp8",
    }  # fmt: skip
    (artifact / "manifest.json").write_text(json.dumps(harmless))
    text = "max_num_tokens: 8192\neos_token: </s>\nTokens: 5\nnext token follows here\nkey: value\ntokenizer_dir: /models/t\n"
    (artifact / "trtbuild.yaml").write_text(text)
    (artifact / "server.log").write_text("I0101 token generation took 5 ms; tokens: 12; secretary: yes\n")
    redactor = Redactor()
    assert redactor.value(harmless) == harmless
    assert redactor.text(text) == text
    assert "took 5 ms; tokens: 12; secretary: yes" in redactor.text((artifact / "server.log").read_text())


def test_links_that_leave_the_folder_and_large_files_stay_out(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.json").write_text('{"a": "private"}')
    (artifact / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    (artifact / "sub").symlink_to(tmp_path)
    (artifact / "quant_cfg.json").write_bytes(b" " * (2**20 + 1))
    (artifact / "evaluation.json").symlink_to(tmp_path / "gone")
    made, content = bundle()
    assert "private" not in "".join(content.values())
    assert set(content) & {"artifact/manifest.json", "artifact/quant_cfg.json", "artifact/evaluation.json"} == set()
    assert any(name.startswith("manifest.json") for name in made.left_out)
    assert any(name.startswith("quant_cfg.json: 1048577 bytes") for name in made.left_out)


def test_the_last_lines_of_logs_are_kept(bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path) -> None:
    (artifact / "server.log").write_text("".join(f"line {number} {'x' * 3000}\n" for number in range(600)))
    _, content = bundle()
    kept = content["artifact/server.log"].splitlines()
    assert len(kept) <= LOG_LINES
    assert kept[-1].startswith("line 599 ")
    assert all(line.startswith("line ") for line in kept)


def test_ids_of_gpus_and_the_owner_of_files_are_not_in_it(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], tmp_path: Path
) -> None:
    _, content = bundle()
    assert "333344445555" not in "".join(content.values())
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        assert {(member.uid, member.uname, member.mtime) for member in archive} == {(0, "", 0)}


def test_the_command_writes_it_without_a_gpu_and_says_so(cli: Cli, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("PATH", os.defpath)
    target = tmp_path / "out.tar.gz"
    code, _, err = cli("doctor", "--for", artifact, "--bundle", target)
    assert (code, "read them before you send it" in err) == (3, True)
    content = read(target)
    assert SECRET not in "".join(content.values())
    report = json.loads(content["doctor.json"])
    assert report["has_gpu"] is False
    assert any(each["name"] == "gpu count" and "none here" in each["detail"] for each in report["findings"])
    assert cli("doctor", "--bundle", target)[0] == 2
    assert cli("doctor", "--bundle", tmp_path / "out.zip")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out.tar.gz"]


def test_a_long_word_is_no_obstacle() -> None:
    text = "x" * 10**6 + " " + "a.b-" * 10**5 + " " + "token" * 10**5
    assert Redactor().text(text) == text


def test_what_cannot_be_read_is_left_out_and_said(
    bundle: Callable[..., tuple[Bundle, dict[str, str]]], artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(artifact / "model.yaml")
    (artifact / "loop").symlink_to(".")
    (artifact / "evaluation.json").symlink_to("evaluation.json")
    (artifact / "manifest.json").write_text("{}")
    read = Path.read_text

    def refuse(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == "manifest.json":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **kwargs)  # type: ignore[arg-type]  # handed through

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr("trtbuild.doctor.bundle._MOST_FOLDERS", 2)
    for name in ("a", "b", "c"):
        (artifact / name).mkdir()
        (artifact / name / "x.log").write_text("x\n")
    made, content = bundle()
    assert "manifest.json: Permission denied" in made.left_out
    assert "more than 2 folders: the rest was not looked at" in made.left_out
    assert {"model.yaml: not a file of this folder", "evaluation.json: not a file of this folder"} <= set(made.left_out)
    assert sum(name.endswith(".log") for name in content) == 1


def test_a_broken_artifact_can_be_reported(cli: Cli, artifact: Path, tmp_path: Path) -> None:
    (artifact / "config.json").write_text('{"version": "1.2.1"')
    code, _, _ = cli("doctor", "--for", artifact, "--bundle", tmp_path / "out.tar.gz")
    assert code == 3
    content = read(tmp_path / "out.tar.gz")
    assert content["artifact/config.json"] == '{"version": "1.2.1"'
    assert json.loads(content["doctor.json"])["ok"] is False
    assert cli("doctor", "--for", artifact)[0] == 3
