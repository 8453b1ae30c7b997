"""What is taken out of text and files, and what is left."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from tests.unit.redaction.secret_forms import HARMLESS, NAMED, PLACED, TOKENS

from trtbuild.redaction import REDACTED, Redactor, holds_secret, is_secret
from trtbuild.redaction.redactor import secret_values

WORD = "hunter2Zqw9"
#: A password as people make them.
PASSWORD = "hunter2;Zq,w9&x(1)!"


@pytest.mark.parametrize("form", [*NAMED, *PLACED])
def test_a_secret_is_taken_out_however_it_is_written(form: str) -> None:
    text = f"before: 1\n{form.format(s=PASSWORD, u=WORD)}\nafter: 2\n"
    result = Redactor().text(text)
    assert not any(part in result for part in ("hunter2", "Zq", "w9"))
    assert REDACTED in result
    assert result.startswith("before: 1\n")
    assert result.endswith("\nafter: 2\n")


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    "around", ["{}", "W using {}, then more", "[{}]", "path/{}/x", "x={}", '"{}"', "pre_{}", "<{}>", "({}).\n"]
)
def test_a_token_is_taken_out_by_its_looks(token: str, around: str) -> None:
    result = Redactor().text(around.format(token))
    assert token not in result
    assert token[8:20] not in result


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_is_left(line: str) -> None:
    assert Redactor().text(f"{line}\n") == f"{line}\n"


@pytest.mark.parametrize(
    "name",
    ["MYSQL_PWD", "GITHUB_PAT", "PGPASS", "PGPASSWORD", "MYCREDS", "SVC_CRED", "WANDB_KEY", "HF_TOKEN", "HF_TOKEN_PATH", "hfToken", "AWS_REGION", "DOCKER_AUTH_CONFIG", "NPM_CONFIG__AUTH",
     "SLACK_WEBHOOK_URL", "DATABASE_URL", "REDIS_URI", "SENTRY_DSN", "SSH_PRIVATE_KEY", "KEYSTORE_PASSPHRASE", "X-Api-Key", "apikey", "Authorization", "Set-Cookie", "SLURM_JWT",
     "AZURE_STORAGE_CONNECTION_STRING", "SESSION_ID", "GOOGLE_APPLICATION_CREDENTIALS", "LICENSE_KEY", "DEPLOY_KEY_1", "pwd", "my.service.auth_key", "SECRETKEY", "DBPASS2"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "max_tokens", "eos_token", "eos_token_id", "tokens_per_block", "tokenizer_dir", "num_key_value_heads", "inputs_key",
     "author", "secretary", "keyboard", "key", "keys", "missing_keys", "PYTHONPATH", "HOME", "bypass", "token_type_ids", "add_special_tokens", "time_to_first_token", "max_num_valid_tokens"],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(("value", "secret"), [
    ("http://bob:pw@proxy:3128", True), ("redis://:x@h", True), ("hf_AbCdEfGhIjKlMnOpQrSt", True), ("http://proxy:3128", False), ("/usr/bin:/opt/AbC1dEf2GhI3jKl4MnO5/bin", False),
])  # fmt: skip
def test_values_that_hold_secrets(value: str, secret: bool) -> None:
    assert holds_secret(value) is secret


def test_the_values_of_secret_variables_are_found_in_every_spelling() -> None:
    secret = 'Pa"ss/wörd+1'
    redactor = Redactor(
        secret_values({"MYSQL_PWD": secret, "PLAIN": "kept-as-it-is", "HTTPS_PROXY": "http://bob:s3cr3tpw@proxy"})
    )
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    for spelling in (
        secret,
        json.dumps(secret),
        quote(secret, safe=""),
        quote(secret),
        encoded,
        json.dumps(json.dumps(secret)),
        "s3cr3tpw",
    ):
        assert redactor.known(f"a {spelling} b").replace('"', "").replace("\\", "") == f"a {REDACTED} b"
    assert redactor.known("kept-as-it-is") == "kept-as-it-is"
    lines = Redactor(secret_values({"SSH_PRIVATE_KEY": "first-line\nsecond-line"}))
    assert lines.known("x second-line y") == f"x {REDACTED} y"
    assert secret_values({"A_TOKEN": "on", "B_TOKEN": "12345"}) == ()  # replacing these would destroy every text


def test_values_of_json_are_redacted_by_key_by_neighbour_and_by_value() -> None:
    redactor = Redactor(("12345678",))
    value = {
        "api_key": [1, {"a": b"x"}], "env": [{"value": WORD, "name": "HF_TOKEN"}], "args": ["--api-key", WORD, "--tp", "2"], "n": 12345678, "note": f"password={WORD}",
        "fine": [True, None, 3, "x"], "auth": True,
    }  # fmt: skip
    assert redactor.value(value) == {
        "api_key": [REDACTED, {"a": REDACTED}], "env": [{"value": REDACTED, "name": "HF_TOKEN"}], "args": ["--api-key", REDACTED, "--tp", "2"], "n": REDACTED,
        "note": f"password={REDACTED}", "fine": [True, None, 3, "x"], "auth": True,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a: &x {password: " + WORD + "}\nb: *x\n", "password: !!binary aHVudGVyMlpxdzk=\n", "? {password: " + WORD + "}\n: 1\n", "!!python/object:x {token: " + WORD + "}\n"])  # fmt: skip
def test_yaml_that_cannot_be_walked_is_redacted_as_text(text: str) -> None:
    result = Redactor().file("x.yaml", text)
    assert WORD not in result
    assert "aHVudGVy" not in result


def test_aliases_of_yaml_that_stand_for_a_billion_values_are_not_followed() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert Redactor().file("x.yaml", bomb) == bomb


@pytest.mark.parametrize("cut", [True, False])
def test_the_end_of_a_private_key_is_no_log(cut: bool) -> None:
    key = "".join(f"{'MIIabcdefghijk' * 4}\n" for _ in range(20)) + "-----END PRIVATE KEY-----\nlast: 1\n"
    assert Redactor().text(key if cut else f"-----BEGIN PRIVATE KEY-----\n{key}") == f"{REDACTED}\nlast: 1\n"


def test_what_is_redacted_already_stays_as_it_is() -> None:
    text = f"MYSQL_PWD={REDACTED}\nx api_key: {REDACTED}, next\nhttps://{REDACTED}@host/x?token={REDACTED}\n--token {REDACTED}\n"
    assert Redactor().text(text) == text
    assert Redactor(("zzz111222",)).text("x HF_TOKEN=zzz111222; a\n") == f"x HF_TOKEN={REDACTED}; a\n"


def test_people_and_machines_are_replaced_and_common_words_only_where_they_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "vm"})())
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr(Path, "home", lambda: Path("/root"))
    redactor = Redactor.of_this_machine({})
    assert (
        redactor.text("root@vm host vm user root as user=root on host: vm")
        == "[user]@[host] host [host] user [user] as user=[user] on host: [host]"
    )
    assert (
        redactor.text("root mean square of vm.overcommit; root module\n")
        == "root mean square of vm.overcommit; root module\n"
    )
    assert (
        redactor.text("username: alice, hostname=gpu7.corp\nhost: 127.0.0.1\nmail bob@corp")
        == "username: [user], hostname=[host]\nhost: 127.0.0.1\nmail [user]@[host]"
    )


def test_a_round_trip_of_what_is_harmless() -> None:
    value: dict[str, Any] = {
        "build_config": {"max_num_tokens": 8192, "plugin_config": {"gpt_attention_plugin": "auto"}},
        "version": "1.2.1",
    }
    assert json.loads(Redactor().file("config.json", json.dumps(value))) == value
    assert yaml.safe_load(Redactor().file("model.yaml", yaml.safe_dump(value))) == value


@pytest.mark.parametrize("text", ["x" * 10**6, "a.b-" * 10**5, "token" * 10**5, "://" * 10**5, "a@" * 10**5, "a:" * 10**5, '"' * 10**5, "<a " * 10**5, "key: [" * 10**4, "-----BEGIN " * 10**4, "x\n" * 10**5, "/hook" * 10**5])  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    import time

    started = time.process_time()
    Redactor().text(text)
    assert time.process_time() - started < 20
