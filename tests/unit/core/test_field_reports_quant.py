"""Reports from users of other converters about quantization, each as the smallest input that showed it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import read_safetensors

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.names import QUANTIZATIONS
from trtbuild.quant.scheme import load_scheme
from trtbuild.quant.weight_only import LoadedAs
from trtbuild.spec import parse

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
#: Fits every group size at tp 1 and 2.
WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256}
SCHEMES = [name for name in QUANTIZATIONS if name != "none"]


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"input_ids": list(range(first, first + 20))}) + "\n" for first in range(8)))
    return file


def told(err: str) -> str:
    """Return what was printed without its line breaks."""
    return " ".join(err.split())


def test_fp8_of_a_plain_model_says_that_it_needs_data(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    """A plain model and an FP8 flag ended in a NoneType error."""
    code, _, err = cli("convert", make_model(), "-o", tmp_path / "out", "--quantization", "fp8")
    assert code == 1
    assert "has no tokenizer, and calibration texts must be tokenized" in told(err)
    assert not (tmp_path / "out").exists()


def test_fp8_of_a_plain_model_computes_its_scales(cli: Cli, make_model: Make, tmp_path: Path, ids: Path) -> None:
    """A weight's scale is amax / 448."""
    model = make_model()
    code, _, err = cli("convert", model, "-o", tmp_path / "out", "--quantization", "fp8", "--calibration", ids)
    assert code == 0, err
    given = read_safetensors(model / "model.safetensors")
    written = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    for layer in range(3):
        for source, target in (("self_attn.o_proj", "attention.dense"), ("mlp.down_proj", "mlp.proj")):
            amax = np.abs(given[f"model.layers.{layer}.{source}.weight"].astype(np.float32)).max()
            scale = written[f"transformer.layers.{layer}.{target}.weights_scaling_factor"]
            assert scale.shape == (1,)
            assert scale[0] == np.float32(amax / np.float32(448))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("bits", [8, 4])
def test_weight_only_needs_no_scales_beforehand(cli: Cli, make_model: Make, tmp_path: Path, tp: int, bits: int) -> None:
    """Scales were demanded before they were made. Here the loader makes them from plain weights."""
    model = make_model(torch_dtype="float32")
    options = ("--quantization", f"int{bits}_weight_only", "--dtype", "float32", "--tp", tp)
    code, _, err = cli("convert", model, "-o", tmp_path / "out", *options)
    assert code == 0, err
    given = read_safetensors(model / "model.safetensors")["model.layers.1.self_attn.o_proj.weight"]
    ranks = [read_safetensors(tmp_path / "out" / f"rank{rank}.safetensors") for rank in range(tp)]
    weight = np.concatenate([rank["transformer.layers.1.attention.dense.weight"] for rank in ranks], axis=1)
    assert np.array_equal(weight, given)
    assert not any("scal" in name for rank in ranks for name in rank)
    scale = np.abs(weight).max(axis=1, keepdims=True) / (1 << (bits - 1))
    below_top = weight <= scale * ((1 << (bits - 1)) - 1)  # the largest positive code is one less
    assert (np.abs(LoadedAs(bits)(weight) - weight) <= scale * 0.50001)[below_top].all()


@pytest.mark.parametrize("scheme", ["int4_rtn", "int4_awq", "int4_gptq"])
@pytest.mark.parametrize(
    ("inter", "group", "tp", "inside", "suggestion"),
    [(192, 64, 2, 96, "--tp 1 fits; use --quantization fp8"), (384, 128, 2, 192, "--group-size 64 fits")],
)
def test_groups_that_straddle_ranks_are_refused_from_the_config(
    cli: Cli, make_model: Make, scheme: str, inter: int, group: int, tp: int, inside: int, suggestion: str
) -> None:
    """A rank's inputs of a row-parallel linear must be whole groups."""
    model = make_model(**{**WIDE, "intermediate_size": inter})
    (model / "model.safetensors").write_bytes(headers_only(model / "model.safetensors"))
    options = ("--quantization", scheme, "--group-size", group, "--tp", tp)
    code, _, err = cli("plan", model, "--target", "tensorrt", *options)
    assert code == 2
    part = f"down_proj (and 2 more) has {inter} inputs, {inside} per rank at tp={tp}, not a multiple of the group size {group}"
    assert part in told(err)
    assert suggestion in told(err)


def headers_only(file: Path) -> bytes:
    """Return a file of the same tensors with nothing but zeros in it."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[: 8 + length] + bytes(len(raw) - 8 - length)


@pytest.mark.parametrize(("inter", "group", "tp"), [(384, 64, 2), (192, 64, 1)])
def test_what_was_suggested_works_and_no_group_straddles_ranks(
    cli: Cli, make_model: Make, tmp_path: Path, inter: int, group: int, tp: int
) -> None:
    """A suggestion is only good if it can be followed."""
    model = make_model(**{**WIDE, "intermediate_size": inter})
    options = ("--quantization", "int4_rtn", "--group-size", group, "--tp", tp)
    code, _, err = cli("convert", model, "-o", tmp_path / "out", *options)
    assert code == 0, err
    for rank in range(tp):
        tensors = read_safetensors(tmp_path / "out" / f"rank{rank}.safetensors")
        scales = tensors["transformer.layers.0.mlp.proj.weights_scaling_factor"]
        assert scales.shape == (256, inter // tp // group)


@pytest.mark.parametrize("size", [32, 256, -1, 0])
def test_group_sizes_that_no_kernel_knows_are_refused_where_they_are_typed(
    cli: Cli, make_model: Make, size: int
) -> None:
    """The quantizer took a group size that the run time did not."""
    model = make_model()
    code, _, err = cli("plan", model, "--quantization", "int4_awq", f"--group-size={size}")
    assert code == 2
    assert "is not one of '64', '128'" in err
    with pytest.raises(UsageError, match=rf"quantization\.group_size = {size}: .*64 or 128, or null"):
        parse(
            {"model": {"path": str(model)}, "quantization": {"scheme": "int4_awq", "group_size": size}}, origin="test"
        )


@pytest.mark.parametrize("scheme", ["int4_rtn", "int4_gptq"])
def test_linears_that_a_group_size_does_not_divide_are_listed_before_work_starts(
    cli: Cli, make_model: Make, tmp_path: Path, scheme: str
) -> None:
    """The last step of an hour failed. All linears of T0 but one shape are narrower than a group."""
    model = make_model()
    (model / "model.safetensors").write_bytes(headers_only(model / "model.safetensors"))
    options = ("--quantization", scheme, "--group-size", "128")
    code, _, err = cli("convert", model, "-o", tmp_path / "out", *options)
    assert code == 2
    assert "model.layers.0.self_attn.q_proj (and 11 more) has 64 inputs, 64 per rank at tp=1, not a multiple" in told(
        err
    )
    assert "model.layers.0.mlp.down_proj (and 2 more) has 192 inputs" in told(err)  # 15 in all: q, k and v count as one
    assert "--group-size 64 fits" in told(err)
    assert not (tmp_path / "out").exists()


def empty_groups(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.0.mlp.down_proj.weight"][:, :128] = 0
    tensors["model.layers.0.self_attn.o_proj.weight"][:] = 0
    tensors["model.layers.0.mlp.up_proj.weight"][5] = 0
    tensors["lm_head.weight"][100:] = 0


@pytest.mark.parametrize("name", SCHEMES)
def test_groups_of_zeros_have_scales_that_are_positive_and_finite(
    cli: Cli, make_model: Make, tmp_path: Path, ids: Path, name: str
) -> None:
    """A division by the largest weight of an empty group."""
    model = make_model(**WIDE, num_hidden_layers=1, edit=empty_groups)
    target = "tensorrt" if load_scheme(name).ranks else "pytorch"
    options = ("--quantization", name, "--calibration", ids, "--target", target)
    code, _, err = cli("convert", model, "-o", tmp_path / "out", *options)
    assert code == 0, err
    (file,) = (tmp_path / "out").glob("*.safetensors")
    for tensor, values in read_safetensors(file).items():
        if values.dtype.kind not in "iu":
            numbers = values.astype(np.float32)
            assert np.isfinite(numbers).all(), tensor
            assert "scal" not in tensor or (numbers > 0).all(), tensor
    assert cli("verify", tmp_path / "out")[0] == 0, "zeros come back as zeros"


def test_excluded_linears_and_only_those_stay_as_they_are(
    cli: Cli, make_model: Make, tmp_path: Path, ids: Path
) -> None:
    """Patterns are globs over whole names, so `model.layers.1*` holds for layer 10 too."""
    model = make_model(num_hidden_layers=11)
    patterns = ("*.down_proj", "model.layers.1*", "*router*")
    options = [word for pattern in patterns for word in ("--exclude", pattern)]
    code, _, err = cli(
        "convert", model, "-o", tmp_path / "out", "--quantization", "fp8", "--calibration", ids, *options
    )
    assert code == 0, err
    assert "the pattern *router* matches no module" in told(err)
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    codes = {name for name, values in tensors.items() if values.dtype.name == "float8_e4m3fn"}
    linears = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate")
    assert codes == {f"transformer.layers.{layer}.{name}.weight" for layer in (0, *range(2, 10)) for name in linears}
    listed = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]["exclude_modules"]
    assert {"transformer.layers.10.mlp.fc", "transformer.layers.0.mlp.proj", "*lm_head", "*router"} <= set(listed)
    assert "transformer.layers.0.mlp.fc" not in listed


@pytest.mark.parametrize("scheme", ["int8_weight_only", "int4_rtn"])
def test_a_tied_head_stays_equal_to_the_embedding(cli: Cli, make_model: Make, tmp_path: Path, scheme: str) -> None:
    """Two different heads, or none, while the flag said tied."""
    code, _, err = cli(
        "convert", make_model(tie_word_embeddings=True), "-o", tmp_path / "out", "--quantization", scheme
    )
    assert code == 0, err
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    head, embedding = tensors["lm_head.weight"], tensors["transformer.vocab_embedding.weight"]
    assert head.dtype.name == "bfloat16"
    assert np.array_equal(head.view(np.uint16), embedding.view(np.uint16))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize("algo", ["W4A16_AWQ", "NVFP4", None])
def test_verify_finds_another_algorithm_in_the_config(
    cli: Cli, make_model: Make, tmp_path: Path, ids: Path, algo: str | None
) -> None:
    """The tensors did not fit the declared algorithm, and only the engine build said so."""
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out, "--quantization", "fp8", "--calibration", ids)[0] == 0
    config = json.loads((out / "config.json").read_text())
    config["quantization"]["quant_algo"] = algo
    (out / "config.json").write_text(json.dumps(config))
    code, text, _ = cli("verify", out)
    assert code == 3
    assert "config.json: is not what was written: it has " in told(text)
    assert "{" not in text
    with pytest.raises(TrtbuildError, match=r"does not fit its config\.json: (missing|surplus): .* and \d+ more"):
        Checkpoint.open(out)


def test_verify_names_tensors_that_are_missing_and_left_over(
    cli: Cli, make_model: Make, tmp_path: Path, ids: Path
) -> None:
    """A scale under another name."""
    out = tmp_path / "out"
    assert cli("convert", make_model(), "-o", out, "--quantization", "fp8", "--calibration", ids)[0] == 0
    file = out / "rank0.safetensors"
    raw, name = file.read_bytes(), b"transformer.layers.1.mlp.fc.weights_scaling_factor"
    other = name.replace(b"scaling", b"scalinG")
    assert raw.count(name) == 1
    file.write_bytes(raw.replace(name, other))
    code, _, err = cli("verify", out)
    assert code == 1
    assert f"does not fit its config.json: missing: {name.decode()}; surplus: {other.decode()}" in told(err)


def test_channels_that_a_norm_closes_are_written_and_verified(
    cli: Cli, make_model: Make, tmp_path: Path, ids: Path
) -> None:
    """A norm's weight of zero has no factor that could be folded into it."""

    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.input_layernorm.weight"][:4] = 0

    options = ("--target", "pytorch", "--quantization", "int4_awq", "--calibration", ids)
    code, _, err = cli("convert", make_model(**WIDE, edit=edit), "-o", tmp_path / "out", *options)
    assert code == 0, err
    code, out, err = cli("verify", tmp_path / "out")
    assert code == 0, out + err
