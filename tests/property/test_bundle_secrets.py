"""No secret that lies in the environment, the configs, the logs or the names of a folder is in any member of the archive."""

from __future__ import annotations

import json
import string
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.redaction.secret_forms import NAMED, PLACED

from trtbuild.doctor import survey
from trtbuild.doctor.bundle import write_bundle

WORDS = st.text(string.ascii_letters + string.digits + "-_", min_size=12, max_size=40).filter(
    lambda word: any(map(str.isdigit, word)) and any(map(str.isalpha, word))
)
SECRETS = st.text(string.ascii_letters + string.digits + "!#$%&()*+,-./:;=?@[]^_{|}~", min_size=12, max_size=40).filter(
    lambda word: (
        any(map(str.isdigit, word)) and any(map(str.isalpha, word)) and word[0].isalnum() and word[-1].isalnum()
    )
)
NAMES = st.sampled_from(
    [
        "MYSQL_PWD",
        "GITHUB_PAT",
        "PGPASS",
        "SVC_CRED",
        "WANDB_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "X_PASSPHRASE",
        "SLACK_WEBHOOK_URL",
        "DOCKER_AUTH_CONFIG",
    ]
)
PIECE = 10


def left_of(secret: str, text: str) -> bool:
    """Say whether a piece of a secret is still in a text."""
    return any(secret[start : start + PIECE] in text for start in range(len(secret) - PIECE + 1))


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name: file.read().decode() for member in archive if (file := archive.extractfile(member)) is not None
        }


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, SECRETS, min_size=1, max_size=4),
    st.sampled_from(NAMED),
    st.sampled_from(PLACED),
    SECRETS,
    WORDS,
)
def test_no_planted_secret_survives(variables: dict[str, str], named: str, placed: str, secret: str, word: str) -> None:
    if "'" in named or '"' in named or "<" in named:
        secret = word  # within quotes and tags a secret has none of their characters, or is escaped
    lines = [form.format(s=secret, u=word) for form in (named, placed)]
    environment = {
        **variables,
        "HTTPS_PROXY": f"http://bob:{word}@proxy",
        "LD_LIBRARY_PATH": "/opt/lib:" + next(iter(variables.values())),
        "NCCL_DEBUG": "INFO",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "engine"
        (folder / "sub").mkdir(parents=True)
        known = list(variables.values())
        (folder / "server.log").write_text(
            "\n".join(["first", *lines, *(f"x {each} y" for each in known), "last"]) + "\n"
        )
        (folder / "sub" / "config.pbtxt").write_text('name: "m"\n' + "\n".join(lines) + "\n")
        (folder / "config.json").write_text(
            json.dumps(
                {
                    "a": known,
                    "b": {known[0]: 1},
                    "c": lines,
                    "hf_token": secret,
                    "env": [{"name": "DB_PASS", "value": secret}],
                }
            )
        )
        (folder / "trtbuild.yaml").write_text(f"password: {json.dumps(secret)}\nnotes: {json.dumps(known)}\n")
        (folder / "manifest.json").write_text(json.dumps({"password": {"x": [secret]}, "k": known}, indent=2)[:-3])
        write_bundle(
            Path(name) / "r.tar.gz",
            [],
            survey(smi=lambda _: None, mpirun=lambda _: None, environment=environment),
            artifact=folder,
            environment=environment,
        )
        content = members(Path(name) / "r.tar.gz")
    assert len(content) == 9
    for planted in (*known, secret, word):
        leaks = [member for member, text in content.items() if left_of(planted, text) or left_of(planted, member)]
        assert leaks == [], planted
    assert content["trtbuild-report/artifact/server.log"].startswith("first\n")
    assert content["trtbuild-report/artifact/server.log"].endswith("last\n")
