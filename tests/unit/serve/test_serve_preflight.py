"""What is checked before a server is started."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from serve_helpers import write_echo

from trtbuild.errors import TrtbuildError
from trtbuild.serve.preflight import find_repository, model_names, shared_memory_warning


def test_a_build_folder_stands_for_its_repository(tmp_path: Path) -> None:
    write_echo(tmp_path / "repository")
    (tmp_path / "trtbuild.yaml").write_text("model: {path: x}\n", encoding="utf-8")
    assert find_repository(tmp_path) == tmp_path / "repository"
    assert find_repository(tmp_path / "repository") == tmp_path / "repository"


def test_a_model_called_repository_is_no_repository(tmp_path: Path) -> None:
    model = write_echo(tmp_path) / "echo"
    model.rename(tmp_path / "repository")
    assert find_repository(tmp_path) == tmp_path


def test_a_build_folder_that_is_not_rendered_says_how_to_render_it(tmp_path: Path) -> None:
    (tmp_path / "trtbuild.yaml").write_text("model: {path: x}\n", encoding="utf-8")
    with pytest.raises(TrtbuildError, match="without a model repository") as caught:
        find_repository(tmp_path)
    assert caught.value.hint == f"run: trtbuild render {tmp_path}"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="is not a folder"):
        find_repository(tmp_path / "nowhere")


def test_models_are_listed_sorted(tmp_path: Path) -> None:
    write_echo(tmp_path)
    ensemble = tmp_path / "alpha"
    (ensemble / "1").mkdir(parents=True)
    (ensemble / "config.pbtxt").write_text('name: "alpha" platform: "ensemble"', encoding="utf-8")
    (tmp_path / "notes").mkdir()
    assert model_names(tmp_path) == ["alpha", "echo"]


def test_an_empty_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrtbuildError, match="holds no model"):
        model_names(tmp_path)


def test_a_model_without_version_folder_is_an_error(repository: Path) -> None:
    (repository / "echo" / "1" / "model.py").unlink()
    (repository / "echo" / "1").rmdir()
    with pytest.raises(TrtbuildError, match="model 'echo' has no version folder"):
        model_names(repository)


def test_a_missing_model_py_is_found_before_the_server_hangs_on_it(repository: Path) -> None:
    (repository / "echo" / "1" / "model.py").unlink()
    with pytest.raises(TrtbuildError, match=r"model 'echo' has no .*/echo/1/model\.py"):
        model_names(repository)


def test_a_model_file_of_another_name_is_left_to_the_server(repository: Path) -> None:
    config = repository / "echo" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8") + 'default_model_filename: "core.py"\n', encoding="utf-8")
    (repository / "echo" / "1" / "model.py").rename(repository / "echo" / "1" / "core.py")
    assert model_names(repository) == ["echo"]


def test_a_configuration_that_does_not_parse_is_located(repository: Path) -> None:
    (repository / "echo" / "config.pbtxt").write_text('name: "echo"\nmax_batch_size: "many"\n', encoding="utf-8")
    with pytest.raises(TrtbuildError, match=r"echo/config\.pbtxt is not a valid model configuration: 2:17"):
        model_names(repository)


@pytest.mark.parametrize(("mebibytes", "is_warned"), [(64, True), (255, True), (256, False), (8192, False)])
def test_the_shared_memory_of_a_default_container_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: int, is_warned: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=mebibytes * 256, f_frsize=4096))
    warning = shared_memory_warning(tmp_path)
    assert (warning is not None) is is_warned
    if warning:
        assert f"{mebibytes} MiB" in warning
        assert "--shm-size=1g" in warning


def test_a_missing_shared_memory_is_warned_about(tmp_path: Path) -> None:
    assert "does not exist" in str(shared_memory_warning(tmp_path / "shm"))
