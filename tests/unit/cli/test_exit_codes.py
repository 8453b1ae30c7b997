"""1 for what is missing, damaged or in the way; 2 for what was typed and is not allowed; 3 for what a check found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import TrtbuildError

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "options",
    [
        ["--tp", "3"],
        ["--tp", "0"],
        ["--pp", "99"],
        ["--ep", "2", "--tp", "2"],
        ["--quantization", "fp9"],
        ["--quantization", "int4_awq", "--group-size", "100"],
        ["--quantization", "int4_awq", "--tp", "2", "--group-size", "128"],
        ["--quantization", "fp8", "--group-size", "64"],
        ["--quantization", "int8_weight_only", "--target", "pytorch"],
        ["--kv-cache", "int8", "--target", "pytorch"],
        ["--quantization", "fp8_block", "--target", "tensorrt"],
        ["--embedding", "hidden", "--quantization", "nvfp4", "--target", "pytorch", "--tp", "7"],
        ["--override", "*"],
        ["--gpu", "abacus"],
        ["--dequantize"],
        ["--calibration-field", "body"],
        ["--quantization", "fp8", "--calibration", "CONFIG"],
        ["--no-such-option"],
    ],
)
def test_what_was_typed_and_is_not_allowed_is_2(options: list[str], make_model: Make, cli: Cli) -> None:
    model = make_model()
    given = [str(model / "config.json") if option == "CONFIG" else option for option in options]
    code, out, err = cli("plan", model, *given)
    assert (code, out) == (2, ""), err


@pytest.mark.parametrize(
    "text",
    [
        "model: [",
        "model: {path: MODEL}\nparalel: {}",
        "model: {path: MODEL}\nparallel: {tp_size: 3}",
        "model: {path: MODEL}\nlimits: {max_seq_len: 1000000}",
        "model: {path: MODEL}\ntarget: tensort",
    ],
)
def test_what_a_trtbuild_yaml_asks_for_and_is_not_allowed_is_2(
    text: str, make_model: Make, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "trtbuild.yaml"
    file.write_text(text.replace("MODEL", str(make_model())))
    assert cli("plan", file)[0] == 2


def no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def cut_short(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(1000)


def no_config(model: Path) -> None:
    (model / "config.json").unlink()


def broken_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def changed(**fields: Any) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


DAMAGES = {
    "no weights": no_weights,
    "cut short": cut_short,
    "no config": no_config,
    "broken config": broken_config,
    "other layers": changed(num_hidden_layers=9),
    "other architecture": changed(architectures=["NoSuchForCausalLM"]),
    "heads that do not divide": changed(num_attention_heads=3),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_model_that_is_missing_or_damaged_is_1(damage: str, make_model: Make, cli: Cli) -> None:
    model = make_model()
    DAMAGES[damage](model)
    assert cli("plan", model)[0] == 1


def test_files_that_are_not_there_or_in_the_way_are_1(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    model, out = make_model(), tmp_path / "out"
    assert cli("plan", tmp_path / "nothing")[0] == 1
    assert cli("plan", tmp_path / "nothing.yaml")[0] == 1
    assert cli("plan", model, "--quantization", "fp8", "--calibration", tmp_path / "nothing.jsonl")[0] == 1
    assert cli("plan", model, "--merge-lora", tmp_path / "nothing")[0] == 1
    assert cli("convert", model, "-o", out)[0] == 0
    assert cli("convert", model, "-o", out, "--tp", "2")[0] == 1  # exists, and is another
    assert cli("convert", model, "-o", model / "inside")[0] == 2
    assert cli("init", model, "-o", out)[0] == 1


def test_a_size_is_2_where_it_was_typed_and_1_where_a_file_says_it(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out)[0] == 0
    file = out / "config.json"
    config = json.loads(file.read_text())
    for tp_size in (3, 0):
        file.write_text(json.dumps({**config, "mapping": {**config["mapping"], "tp_size": tp_size}}))
        with pytest.raises(TrtbuildError, match=r"config\.json: ") as caught:
            Checkpoint.open(out)
        assert caught.value.exit_code == 1


def test_what_a_check_finds_is_3(make_model: Make, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out)[0] == 0
    with (out / "rank0.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    assert cli("verify", out)[0] == 3


#: A name with a byte that is no UTF-8, as Python reads it.
BYTES = "bad\udcff"


@pytest.mark.parametrize(
    "words",
    [
        ("convert", BYTES, "-o", "c"), ("convert", "MODEL", "-o", BYTES), ("build", BYTES), ("init", BYTES), ("init", "MODEL", "-o", f"{BYTES}/t.yaml"),
        ("plan", BYTES), ("lint", BYTES), ("serve", BYTES), ("doctor", "--for", BYTES), ("diff", "MODEL", BYTES),
        ("render", "MODEL", "--path-map", f"{BYTES}=/models"), ("plan", "MODEL", f"--calibration={BYTES}"),
    ],
)  # fmt: skip
def test_a_name_that_is_no_text_is_2(words: tuple[str, ...], make_model: Make, cli: Cli, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    code, out, err = cli(*(str(make_model()) if word == "MODEL" else word for word in words))
    assert (code, out) == (2, "")
    assert "bad\\xff" in err
    assert "is not UTF-8" in err
    assert "defect" not in err
    assert [path for path in sorted(tmp_path.iterdir()) if "bad" in path.name] == [path for path in before if "bad" in path.name]  # fmt: skip


def test_a_current_folder_whose_name_is_no_text_is_2(
    make_model: Make, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    (tmp_path / BYTES).mkdir()
    monkeypatch.chdir(tmp_path / BYTES)
    model.rename("model")
    code, _, err = cli("convert", "model", "-o", "c")
    assert (code, f"{tmp_path}/bad\\xff' is not UTF-8" in err) == (2, True)
    assert cli("versions")[0] == 0
