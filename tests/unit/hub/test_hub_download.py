"""Downloads through the real huggingface_hub from a hub on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.hub.fake_hub import COMMIT, FakeHub, safetensors_bytes

from trtbuild.arch.registry import resolve
from trtbuild.errors import TrtbuildError
from trtbuild.hub import ORIGIN, Download, HubModel, download, weight_files
from trtbuild.initialize import initialize
from trtbuild.source import read_config

MODEL = HubModel("owner/name")


def fetch(model: HubModel, models_dir: Path) -> Download:
    """Download with a check that knows the supported architectures."""
    return download(model, models_dir, check=lambda folder: resolve(read_config(folder), where="config"), quiet=True)


def test_only_data_files_at_the_top_are_fetched(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.files |= {
        "pytorch_model.bin": b"pickle", "modeling_x.py": b"code", "training_args.pt": b"pickle", "README.md": b"text",
        "consolidated.safetensors": safetensors_bytes({"x": (1, 1)}), "onnx/config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}", "generation_config.json": b"{}",
    }  # fmt: skip
    done = fetch(MODEL, tmp_path)
    expected = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert fake_hub.fetched == expected
    assert done.commit == COMMIT
    assert done.path == tmp_path / "owner--name"
    assert sorted(p.name for p in done.path.iterdir() if p.is_file()) == sorted([*expected, ORIGIN])


def test_a_sharded_model_is_fetched_as_its_index_says(fake_hub: FakeHub, tmp_path: Path) -> None:
    del fake_hub.files["model.safetensors"]
    shards = {f"model-{n}.safetensors": safetensors_bytes({f"t{n}": (2, 2)}) for n in (1, 2)}
    index = {"weight_map": {"t1": "model-1.safetensors", "t2": "model-2.safetensors"}}
    fake_hub.files |= {**shards, "model.safetensors.index.json": json.dumps(index).encode()}
    fake_hub.files["other.safetensors"] = safetensors_bytes({"t3": (2, 2)})
    fetch(MODEL, tmp_path)
    assert {"model-1.safetensors", "model-2.safetensors"} <= set(fake_hub.fetched)
    assert "other.safetensors" not in fake_hub.fetched


def test_a_second_download_fetches_nothing(fake_hub: FakeHub, tmp_path: Path) -> None:
    fetch(MODEL, tmp_path)
    fake_hub.requests.clear()
    fetch(MODEL, tmp_path)
    assert fake_hub.fetched == []


def test_a_torn_weight_file_is_fetched_again(fake_hub: FakeHub, tmp_path: Path) -> None:
    weights = fetch(MODEL, tmp_path).path / "model.safetensors"
    weights.unlink()
    fetch(MODEL, tmp_path)
    assert weights.read_bytes() == fake_hub.files["model.safetensors"]


def test_a_file_shorter_than_the_hub_says_is_an_error(fake_hub: FakeHub, tmp_path: Path) -> None:
    fetch(MODEL, tmp_path)
    fake_hub.listed_sizes["model.safetensors"] = 10_000
    with pytest.raises(TrtbuildError, match=r"model\.safetensors did not arrive whole"):
        fetch(MODEL, tmp_path)


def test_an_unknown_architecture_is_refused_before_its_weights_are_fetched(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.files["config.json"] = b'{"architectures": ["LlamaForCausalLN"]}'
    with pytest.raises(TrtbuildError, match="LlamaForCausalLN"):
        fetch(MODEL, tmp_path)
    assert fake_hub.fetched == ["config.json", "tokenizer.json"]
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_refuses_leaves_an_earlier_download_in_place(fake_hub: FakeHub, tmp_path: Path) -> None:
    weights = fetch(MODEL, tmp_path).path / "model.safetensors"

    def refuse(_: Path) -> None:
        raise TrtbuildError("no")

    with pytest.raises(TrtbuildError, match="no"):
        download(MODEL, tmp_path, check=refuse, quiet=True)
    assert weights.is_file()


def test_a_repository_of_pickles_is_refused_and_nothing_is_fetched(fake_hub: FakeHub, tmp_path: Path) -> None:
    del fake_hub.files["model.safetensors"]
    fake_hub.files["pytorch_model.bin"] = b"pickle"
    with pytest.raises(TrtbuildError, match=r"no \*\.safetensors file, only pytorch_model\.bin"):
        fetch(MODEL, tmp_path)
    assert fake_hub.fetched == []
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_names_a_file_the_repository_lacks_is_refused(fake_hub: FakeHub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    fake_hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    fake_hub.files["model-1.safetensors"] = safetensors_bytes({"a": (1, 1)})
    with pytest.raises(TrtbuildError, match=r"names 2 weight files, the repository lacks model-2\.safetensors"):
        fetch(MODEL, tmp_path)


def test_a_single_file_beside_an_index_of_others_is_not_chosen_in_silence(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    fake_hub.files["model-1.safetensors"] = safetensors_bytes({"a": (1, 1)})
    with pytest.raises(TrtbuildError, match=r"has model\.safetensors and an index of 1 other files"):
        fetch(MODEL, tmp_path)


def test_weight_names_that_look_like_patterns_are_taken_literally(fake_hub: FakeHub, tmp_path: Path) -> None:
    del fake_hub.files["model.safetensors"]
    fake_hub.files |= {"w[1].safetensors": safetensors_bytes({"a": (1, 1)})}
    assert weight_files(tmp_path, fake_hub.files) == ["w[1].safetensors"]
    assert (fetch(MODEL, tmp_path).path / "w[1].safetensors").is_file()


def test_two_commits_are_never_mixed_in_one_folder(fake_hub: FakeHub, tmp_path: Path) -> None:
    fetch(MODEL, tmp_path)
    fake_hub.commit = "f" * 40
    with pytest.raises(TrtbuildError, match=f"holds owner/name at {COMMIT}") as caught:
        fetch(MODEL, tmp_path)
    assert "--models-dir" in caught.value.hint


def test_a_folder_of_the_user_is_left_alone(fake_hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "owner--name").mkdir()
    (tmp_path / "owner--name" / "mine.txt").write_text("mine")
    with pytest.raises(TrtbuildError, match="was not downloaded by trtbuild"):
        fetch(MODEL, tmp_path)
    assert fake_hub.fetched == []


def test_a_full_disk_is_noticed_before_the_weights(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.listed_sizes["model.safetensors"] = 10**15
    with pytest.raises(TrtbuildError, match="bytes are missing"):
        fetch(MODEL, tmp_path)
    assert "model.safetensors" not in fake_hub.fetched


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "GatedRepo", "accepted the licence"),
        (401, "RepoNotFound", "no such model, or it is private"),
        (404, "RepoNotFound", "no such model, or it is private"),
        (404, "RevisionNotFound", "no such branch, tag or commit"),
        (429, "", "limits the rate"),
    ],
)
def test_a_refusal_of_the_hub_is_put_into_words(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    fake_hub.refusal = (status, code)
    with pytest.raises(TrtbuildError, match=said) as caught:
        fetch(MODEL, tmp_path)
    assert "owner/name" in caught.value.message
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_dead_connection_is_reported_as_such(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:  # bound and not listening: connections to it are refused
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        _expect_connect_error(tmp_path)


def _expect_connect_error(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="ConnectError") as caught:
        fetch(MODEL, tmp_path)
    assert "hf download owner/name" in caught.value.hint


def test_an_earlier_download_is_named_when_the_hub_cannot_be_reached(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(MODEL, tmp_path).path
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(TrtbuildError) as caught:
        fetch(MODEL, tmp_path)
    assert f"trtbuild init {folder}" in caught.value.hint


def test_an_offline_hub_gives_the_command_to_run_elsewhere(
    fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(TrtbuildError, match="offline mode") as caught:
        fetch(HubModel("owner/name", "v1"), tmp_path)
    assert "hf download owner/name --revision v1 --include '*.safetensors'" in caught.value.hint
    assert f"copy that folder to {tmp_path / 'owner--name'}" in caught.value.hint
    assert fake_hub.requests == []


def test_a_tp_size_that_does_not_fit_is_refused_before_the_weights_are_fetched(
    fake_hub: FakeHub, tmp_path: Path
) -> None:
    with pytest.raises(TrtbuildError, match="tp=3"):
        initialize(
            "owner/name", tmp_path / "trtbuild.yaml", settings={"parallel.tp_size": 3}, fetch=True,
            models_dir=tmp_path / "models", force=False, quiet=True,
        )  # fmt: skip
    assert "model.safetensors" not in fake_hub.fetched
    assert list((tmp_path / "models").iterdir()) == []
    assert not (tmp_path / "trtbuild.yaml").exists()


def test_the_token_is_sent_and_appears_nowhere_else(fake_hub: FakeHub, tmp_path: Path) -> None:
    token = "hf_verySecretToken0123456789"
    environment = {
        **os.environ, "HF_ENDPOINT": fake_hub.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "trtbuild", "init", "owner/name@main", "--download", "--debug", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert set(fake_hub.tokens) == {f"Bearer {token}"}
    assert token not in ran.stdout + ran.stderr
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file
    result = json.loads(ran.stdout)
    assert result["revision"] == COMMIT
    assert f"revision: {COMMIT}" in (tmp_path / "trtbuild.yaml").read_text()
    assert "path: models/owner--name" in (tmp_path / "trtbuild.yaml").read_text()


def test_a_token_is_not_repeated_when_the_hub_refuses_it(fake_hub: FakeHub, tmp_path: Path) -> None:
    token = "hf_verySecretToken0123456789"
    fake_hub.refusal = (500, f"broken for Bearer {token}")
    environment = {**os.environ, "HF_ENDPOINT": fake_hub.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "trtbuild", "init", "owner/name", "--download"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert token not in ran.stdout + ran.stderr
    assert not (tmp_path / "trtbuild.yaml").exists()
