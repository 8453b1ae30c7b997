"""Opening model folders: every unusable one is refused with the reason, before anything is written."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import llama_tensors, read_safetensors, write_safetensors

from trtbuild.errors import TrtbuildError
from trtbuild.source import SourceCheckpoint

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(folder: Path, names: tuple[str, ...] = SHARDS) -> None:
    """Replace model.safetensors by shards with an index."""
    tensors = read_safetensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: names[index % len(names)] for index, name in enumerate(tensors)}
    for file in names:
        write_safetensors(folder / file, {name: tensors[name] for name in tensors if weight_map[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_and_unsharded_folders_hold_the_same_tensors(make_model: Callable[..., Path]) -> None:
    whole, cut = make_model(name="whole"), make_model(name="cut")
    shard(cut)
    one, many = SourceCheckpoint.open(whole), SourceCheckpoint.open(cut)
    assert {name: info.shape for name, info in one.tensors.items()} == {
        name: info.shape for name, info in many.tensors.items()
    }
    assert len(many.files) == 2


def test_missing_shards_are_all_named(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    shard(folder)
    (folder / SHARDS[1]).unlink()
    with pytest.raises(TrtbuildError, match="names 2 files, 1 exist; missing: ") as caught:
        SourceCheckpoint.open(folder)
    assert SHARDS[1] in caught.value.message
    assert SHARDS[0] not in caught.value.message


def test_a_stale_index_counts_what_is_there_instead(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    shard(folder)
    for old, new in zip(SHARDS, ("a.safetensors", "b.safetensors"), strict=True):
        (folder / old).rename(folder / new)
    with pytest.raises(TrtbuildError, match="names 2 files, 0 exist; 2 other safetensors files were found"):
        SourceCheckpoint.open(folder)


def test_an_index_that_misplaces_a_tensor_is_refused(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    shard(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = next(f for f in SHARDS if f != index["weight_map"]["model.norm.weight"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TrtbuildError, match=r"places model\.norm\.weight in"):
        SourceCheckpoint.open(folder)


@pytest.mark.parametrize(
    "outside", ["../../outside.safetensors", "/etc/outside.safetensors", "a/b.safetensors", "a\\b.safetensors", "x.bin"]
)
def test_an_index_cannot_lead_out_of_the_folder(make_model: Callable[..., Path], outside: str) -> None:
    folder = make_model()
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": outside}}))
    with pytest.raises(TrtbuildError, match="not a safetensors file of this folder"):
        SourceCheckpoint.open(folder)


def test_a_single_file_beside_an_index_of_others_is_refused(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    single = (folder / "model.safetensors").read_bytes()
    shard(folder)
    (folder / "model.safetensors").write_bytes(single)
    with pytest.raises(TrtbuildError, match=f"holds model.safetensors, and .*index.json, which names 2 .*{SHARDS[0]}"):
        SourceCheckpoint.open(folder)


def test_a_single_file_that_the_index_names_is_read(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    weight_map = dict.fromkeys(read_safetensors(folder / "model.safetensors"), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = SourceCheckpoint.open(folder)
    assert [file.name for file in source.files] == ["model.safetensors"]
    assert source.notes == ()


@pytest.mark.parametrize(
    ("name", "is_said"),
    [("model-extra.safetensors", True), ("mtp.safetensors", True), ("consolidated.safetensors", False),
     ("consolidated.00.safetensors", False), ("adapter_model.safetensors", False), ("model.fp16.safetensors", False)],
)  # fmt: skip
@pytest.mark.parametrize("is_sharded", [True, False])
def test_weights_that_are_not_read_are_said(
    name: str,
    is_said: bool,
    is_sharded: bool,
    make_model: Callable[..., Path],
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    folder = make_model()
    if is_sharded:
        shard(folder)
    write_safetensors(folder / name, {"model.extra.weight": np.ones((2, 2), np.float32)})
    code, out, err = cli("plan", folder)
    assert code == 0, err
    assert (f"not read: {name}, which" in " ".join(out.split())) is is_said
    assert ("the model.safetensors.index.json does not name" in " ".join(out.split())) is (is_said and is_sharded)


def test_weights_that_config_json_names_itself_are_refused(make_model: Callable[..., Path]) -> None:
    folder = make_model(transformers_weights="other.safetensors")
    with pytest.raises(TrtbuildError, match=r"transformers_weights = 'other\.safetensors' names other weights"):
        SourceCheckpoint.open(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_git_lfs_pointers_are_recognized(make_model: Callable[..., Path], name: str) -> None:
    folder = make_model()
    (folder / name).write_text(LFS_POINTER)
    with pytest.raises(TrtbuildError, match=r"Git LFS pointer.*4976698672 bytes"):
        SourceCheckpoint.open(folder)


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
def test_git_lfs_pointers_among_tokenizer_files_are_recognized(make_model: Callable[..., Path], name: str) -> None:
    folder = make_model()
    (folder / name).write_text(LFS_POINTER)
    with pytest.raises(TrtbuildError, match="Git LFS pointer"):
        SourceCheckpoint.open(folder).tokenizer_files()


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_files_are_recognized(make_model: Callable[..., Path], keep: int) -> None:
    folder = make_model()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(TrtbuildError, match="truncated|not a safetensors file"):
        SourceCheckpoint.open(folder)


def test_trailing_bytes_and_damaged_headers_are_recognized(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    file = folder / "model.safetensors"
    good = file.read_bytes()
    file.write_bytes(good + b"x")
    with pytest.raises(TrtbuildError, match="longer than its header says"):
        SourceCheckpoint.open(folder)
    file.write_bytes(good.replace(b'"shape": [128, 64]', b'"shape": [128, 65]', 1))
    with pytest.raises(TrtbuildError, match="inconsistent header entry"):
        SourceCheckpoint.open(folder)
    file.write_bytes(good[:8] + b"[" + good[9:])
    with pytest.raises(TrtbuildError, match="damaged safetensors header"):
        SourceCheckpoint.open(folder)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "model.ckpt"])
def test_pickled_weights_are_refused_and_never_loaded(
    make_model: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    folder = make_model()
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with pytest.raises(TrtbuildError, match="pickled weights only"):
        SourceCheckpoint.open(folder)
    assert not (tmp_path / "marker").exists()


def test_a_folder_without_weights_or_config_says_so(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_model()
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrtbuildError, match="no \\*.safetensors"):
        SourceCheckpoint.open(folder)
    with pytest.raises(TrtbuildError, match="does not exist"):
        SourceCheckpoint.open(tmp_path / "nowhere")
    with pytest.raises(TrtbuildError, match="is a file"):
        SourceCheckpoint.open(folder / "config.json")
    with pytest.raises(TrtbuildError, match="no config.json") as caught:
        SourceCheckpoint.open(tmp_path)
    assert str(folder) in caught.value.hint, "one level too high: the right folder is named"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": 64,}', r"not valid JSON.*line 1 column"),
        ("[1]", "holds a list"),
        ("", "not valid JSON"),
        ("\xff", "not valid JSON"),
    ],
)
def test_a_broken_config_is_named_with_the_position(make_model: Callable[..., Path], text: str, message: str) -> None:
    folder = make_model()
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TrtbuildError, match=message):
        SourceCheckpoint.open(folder)


def test_one_tensor_in_two_files_without_an_index_is_refused(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    shutil.move(folder / "model.safetensors", folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    with pytest.raises(TrtbuildError, match=r"in both a\.safetensors and b\.safetensors"):
        SourceCheckpoint.open(folder)


def test_opening_writes_nothing(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    before = sorted((file.name, file.stat().st_mtime_ns) for file in folder.iterdir())
    SourceCheckpoint.open(folder)
    assert sorted((file.name, file.stat().st_mtime_ns) for file in folder.iterdir()) == before


def test_the_text_model_of_a_nested_config_is_read(make_model: Callable[..., Path]) -> None:
    folder = make_model()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "outer", "text_config": config}))
    assert SourceCheckpoint.open(folder).config["hidden_size"] == 64


def test_the_fixture_model_has_unique_values() -> None:
    config = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 4,
        "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip
    values = [value for tensor in llama_tensors(config).values() for value in tensor.ravel().tolist()]
    assert len(set(values)) == len(values)
