"""Which formats are refused for which GPU, against the support matrix typed in once more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.errors import UsageError
from trtbuild.gpus import GPUS, find_gpu
from trtbuild.hardware import FAMILIES, KV_CACHE, NEAREST, NEAREST_KV, SCHEME, check_hardware, nearest, verdict
from trtbuild.names import KV_CACHE_DTYPES, QUANTIZATIONS
from trtbuild.support import support

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]
SMS = (80, 86, 89, 90, 100, 103, 120, 121)
#: +: supported, -: impossible, ?: written down nowhere; for SM 80 86 89 90 100 103 120 121.
SPECIFICATION = {
    ("none", "tensorrt"): "++++++++",
    ("none", "pytorch"): "++++++++",
    ("fp8", "tensorrt"): "--++++++",
    ("fp8", "pytorch"): "--++++++",
    ("fp8_per_channel_per_token", "tensorrt"): "---+--??",
    ("fp8_per_channel_per_token", "pytorch"): "---+????",
    ("fp8_block", "tensorrt"): "--------",
    ("fp8_block", "pytorch"): "---+++??",
    ("int4_awq", "tensorrt"): "++++--??",
    ("int4_awq", "pytorch"): "++++????",
    ("int4_gptq", "tensorrt"): "++++--??",
    ("int4_gptq", "pytorch"): "++++????",
    ("int4_rtn", "tensorrt"): "++++--??",
    ("int4_rtn", "pytorch"): "++++????",
    ("w4a8_awq", "tensorrt"): "--++----",
    ("w4a8_awq", "pytorch"): "--++??--",
    ("int8_smoothquant", "tensorrt"): "++++--??",
    ("int8_smoothquant", "pytorch"): "--------",
    ("int8_weight_only", "tensorrt"): "++++--??",
    ("int8_weight_only", "pytorch"): "--------",
    ("int4_weight_only", "tensorrt"): "++++--??",
    ("int4_weight_only", "pytorch"): "--------",
    ("nvfp4", "tensorrt"): "----++++",
    ("nvfp4", "pytorch"): "----++++",
}
KV_SPECIFICATION = {
    ("auto", "tensorrt"): "++++++++",
    ("auto", "pytorch"): "++++++++",
    ("fp8", "tensorrt"): "++++++++",
    ("fp8", "pytorch"): "++++++++",
    ("int8", "tensorrt"): "++++--??",
    ("int8", "pytorch"): "--------",
}
STATES = {"+": "supported", "-": "impossible", "?": "undocumented"}
CELLS = [
    (kind, name, target, sm, STATES[mark])
    for kind, table in ((SCHEME, SPECIFICATION), (KV_CACHE, KV_SPECIFICATION))
    for (name, target), marks in table.items()
    for sm, mark in zip(SMS, marks, strict=True)
]


def check(kind: Any, name: str, target: str, sm: int) -> list[str]:
    schemes, kv_cache = ([name], "auto") if kind is SCHEME else (["none"], name)
    return [
        note
        for note in check_hardware(f"sm{sm}", target=target, schemes=schemes, kv_cache=kv_cache)
        if "CUDA 13" not in note
    ]


def test_the_specification_names_every_format_target_and_sm() -> None:
    assert {name for name, _ in SPECIFICATION} == set(QUANTIZATIONS) == set(SCHEME.table) == set(NEAREST)
    assert {name for name, _ in KV_SPECIFICATION} == set(KV_CACHE_DTYPES) == set(KV_CACHE.table) == set(NEAREST_KV)
    assert tuple(sm for sms in FAMILIES.values() for sm in sms) == SMS
    assert set(SMS) == {sm for sm in GPUS.values() if sm >= 80}


@pytest.mark.parametrize(("kind", "name", "target", "sm", "state"), CELLS)
def test_a_format_is_refused_warned_about_or_taken_as_specified(
    kind: Any, name: str, target: str, sm: int, state: str
) -> None:
    if state == "impossible":
        with pytest.raises(UsageError) as raised:
            check(kind, name, target, sm)
        other = next(nearest(kind, name, target=target, sm=sm)).settings[kind.place]
        assert verdict(kind, other, target=target, sm=sm).state == "supported"
        assert check(kind, other, target, sm) == []
        for part in (name, f"sm{sm}", target, verdict(kind, name, target=target, sm=sm).why, f"{kind.option} {other}"):
            assert part in str(raised.value)
    elif state == "undocumented":
        (note,) = check(kind, name, target, sm)
        assert note.startswith("unverified: ")
    else:
        assert check(kind, name, target, sm) == []


@pytest.mark.parametrize("sm", [70, 75, *SMS])
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_the_reference_target_is_never_refused(name: str, sm: int) -> None:
    assert check_hardware(f"sm{sm}", target="reference", schemes=[name], kv_cache="int8") == []


def test_formats_without_a_form_for_a_target_run_nowhere_with_it() -> None:
    row = next(row for row in support() if row.architecture == "LlamaForCausalLM")
    for (name, target), marks in SPECIFICATION.items():
        assert ("+" in marks) == (name in row.schemes[target]), (name, target)


@pytest.mark.parametrize(
    ("scheme", "gpu", "target", "expected"),
    [
        ("nvfp4", "h100", "tensorrt", "fp8"),
        ("nvfp4", "a100", "tensorrt", "int4_awq"),
        ("fp8", "a100", "tensorrt", "int4_awq"),
        ("fp8", "a10", "pytorch", "int4_awq"),
        ("int4_awq", "b200", "tensorrt", "nvfp4"),
        ("int8_smoothquant", "gb200", "tensorrt", "fp8"),
        ("int8_weight_only", "h200", "pytorch", "fp8_per_channel_per_token"),
        ("w4a8_awq", "a30", "tensorrt", "int4_awq"),
        ("w4a8_awq", "rtx5090", "pytorch", "nvfp4"),
        ("fp8_block", "l40s", "pytorch", "fp8"),
    ],
)
def test_the_nearest_is_named(scheme: str, gpu: str, target: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"the nearest that does is --quantization {expected}(;|$)"):
        check_hardware(gpu, target=target, schemes=[scheme], kv_cache="auto")


def test_another_target_that_takes_the_format_is_named() -> None:
    with pytest.raises(UsageError, match="fp8_block itself works with --target pytorch"):
        check_hardware("h100", target="tensorrt", schemes=["fp8_block"], kv_cache="auto")


@pytest.mark.parametrize(
    ("typed", "name", "sm"),
    [
        ("h100", "h100", 90),
        ("H100", "h100", 90),
        ("NVIDIA H100 80GB HBM3", "h100", 90),
        ("NVIDIA A100-SXM4-80GB", "a100", 80),
        ("A100 PCIe", "a100", 80),
        ("NVIDIA GeForce RTX 4090", "rtx4090", 89),
        ("RTX 3080 Ti", "rtx3080", 86),
        ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada", 89),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000", 120),
        ("rtx-pro-6000", "rtx_pro_6000", 120),
        ("NVIDIA GH200 480GB", "gh200", 90),
        ("DGX Spark", "dgx_spark", 121),
        ("l40s", "l40s", 89),
        ("sm90", "sm90", 90),
        ("SM_90a", "sm90", 90),
        ("compute_100", "sm100", 100),
        ("8.9", "sm89", 89),
    ],
)
def test_gpus_are_found_by_any_spelling(typed: str, name: str, sm: int) -> None:
    gpu = find_gpu(typed)
    assert (gpu.name, gpu.sm) == (name, sm)


@pytest.mark.parametrize("name", GPUS)
def test_every_name_finds_itself(name: str) -> None:
    assert find_gpu(name).sm == GPUS[name]


@pytest.mark.parametrize(
    ("typed", "suggestion"), [("h10O", "h100"), ("rtx4900", "rtx4090"), ("l4s", "l40s"), ("b20", "b200")]
)
def test_unknown_names_suggest_the_nearest(typed: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=f"unknown GPU '{typed}', did you mean '{suggestion}'"):
        find_gpu(typed)


@pytest.mark.parametrize("typed", ["tpu-v5", "sm42", "sm", "", "mi300x"])
def test_names_like_no_other_list_what_is_known(typed: str) -> None:
    with pytest.raises(ValueError, match=r"unknown GPU.*sm80, sm86, sm89, sm90, sm100, sm103, sm120, sm121"):
        find_gpu(typed)


def test_the_plan_refuses_warns_and_takes(cli: Cli, make_model: Make) -> None:
    model = make_model()
    code, _, err = cli("plan", model, "--target", "tensorrt", "--quantization", "nvfp4", "--gpu", "h100")
    told = " ".join(err.split())
    assert code == 2
    assert "quantization 'nvfp4' does not run on h100 (SM90) with target tensorrt: GPUs below SM100" in told
    assert "the nearest that does is --quantization fp8" in told
    for gpu, expected in (("h100", 0), ("rtx5090", 1), ("b300", 1)):
        code, out, err = cli(
            "convert", model, "--dry-run", "--json", "--target", "pytorch", "--target", "tensorrt", "--gpu", gpu,
            "--quantization", {"rtx5090": "fp8_per_channel_per_token", "b300": "none", "h100": "none"}[gpu],
        )  # fmt: skip
        assert code == 0, err
        notes = [note for note in json.loads(out)["warnings"] if "unverified" in note or "CUDA 13" in note]
        assert len(notes) == (2 if gpu == "rtx5090" else expected), notes


def test_every_target_of_a_conversion_is_checked(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    options = ("--quantization", "int4_rtn", "--group-size", 64, "--gpu", "b200", "-o", tmp_path / "out")
    code, _, err = cli("convert", model, "--target", "pytorch", "--target", "tensorrt", *options)
    assert code == 2
    assert "does not run on b200 (SM100) with target tensorrt: trtllm-build refuses it" in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_gpus_that_are_too_old_serve_the_reference_target_only(cli: Cli, make_model: Make) -> None:
    model = make_model()
    code, _, err = cli("plan", model, "--target", "tensorrt", "--gpu", "v100")
    assert code == 2
    assert "TensorRT-LLM does not run on v100 (SM70)" in " ".join(err.split())
    assert cli("plan", model, "--target", "reference", "--gpu", "v100")[0] == 0


def test_a_misspelt_gpu_in_the_file_is_a_usage_error(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    (tmp_path / "trtbuild.yaml").write_text(f"model: {{path: {make_model()}}}\nhardware: {{gpu: h1000}}\n")
    code, _, err = cli("plan", tmp_path / "trtbuild.yaml")
    assert code == 2
    assert "hardware: unknown GPU 'h1000', did you mean 'h100'?" in " ".join(err.split())


def test_schemes_of_single_linears_are_checked_too(cli: Cli, make_model: Make, tmp_path: Path) -> None:
    quantization = "{scheme: int8_weight_only, overrides: {'*.down_proj': fp8}}"
    (tmp_path / "trtbuild.yaml").write_text(f"model: {{path: {make_model()}}}\nquantization: {quantization}\n")
    code, _, err = cli("plan", tmp_path / "trtbuild.yaml", "--target", "tensorrt", "--gpu", "a100")
    assert (code, "quantization 'fp8' does not run on a100 (SM80)" in " ".join(err.split())) == (2, True), err
