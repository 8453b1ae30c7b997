"""Names of hub models, and what may never be shown."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from trtbuild.errors import TrtbuildError
from trtbuild.hub import HubModel, download
from trtbuild.hub_errors import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubModel("owner/name")),
        ("meta-llama/Llama-3.2-1B", HubModel("meta-llama/Llama-3.2-1B")),
        ("owner/name@refs/pr/3", HubModel("owner/name", "refs/pr/3")),
        ("owner/name@" + "a" * 40, HubModel("owner/name", "a" * 40)),
    ],
)
def test_a_hub_name_has_an_owner_a_name_and_perhaps_a_revision(text: str, expected: HubModel) -> None:
    assert HubModel.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["gpt2", "./owner/name", "/owner/name", "../name", "a/b/c", "owner/name@", "a/..", "o w/n", "~/x", "", "a/b\n"],
)
def test_paths_and_odd_texts_are_no_hub_names(text: str) -> None:
    assert HubModel.parse(text) is None


def test_a_hub_model_gets_a_folder_of_its_own() -> None:
    assert HubModel("a/b").folder(Path("models")) == Path("models/a--b")


def test_tokens_are_redacted_whatever_carries_them() -> None:
    text = "hf_abcdefgh Bearer xyz https://user:pw@host/x plain secret"
    assert redact(text, "secret", None, "") == "*** Bearer *** https://***@host/x plain ***"


def test_a_missing_library_is_named_with_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_hub(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real_import(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without_hub)
    with pytest.raises(TrtbuildError, match="huggingface_hub") as caught:
        download(HubModel("a/b"), tmp_path, check=lambda _: None, quiet=True)
    assert "pip install" in caught.value.hint
