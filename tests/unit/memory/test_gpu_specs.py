"""The rows of the table of GPUs, and which of them a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.errors import UsageError
from trtbuild.gpu_specs import SPECS, find_spec
from trtbuild.gpus import GPUS, find_gpu

GIB = 2**30


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100 NVL", "H100 NVL"),
        ("h100-pcie", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("a100", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("a100 40gb", "A100 SXM 40GB"),
        ("NVIDIA A10", "A10"),
        ("l4", "L4"),
        ("L40S", "L40S"),
        ("H200", "H200"),
        ("NVIDIA H200 141GB", "H200"),
        ("B200", "B200"),
        ("B300", "B300"),
        ("GB200", "GB200"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx5090", "RTX 5090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("RTX 3080 10GB", "RTX 3080 10GB"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("gh200 96gb", "GH200 96GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("B200 192GB", "B200"),
        ("B200 180GB", "B200"),
    ],
)
def test_a_name_means_the_right_variant(typed: str, name: str) -> None:
    spec = find_spec(typed)
    assert spec is not None
    assert spec.name == name


@pytest.mark.parametrize(
    "typed",
    [
        "sm90",
        "v100",
        "RTX 4060",
        "RTX 4090 Laptop",
        "RTX 3090 Ti",
        "RTX 4080 SUPER",
        "RTX 4090 D",
        "RTX 5090 Laptop GPU",
        "GB10",
    ],
)
def test_a_gpu_that_only_the_sm_number_is_known_of_has_no_row(typed: str) -> None:
    assert find_spec(typed) is None


@pytest.mark.parametrize(
    ("typed", "message", "known"),
    [
        ("A100 20GB", "there is no a100 with 20 GB", "A100 SXM 40GB (39 GiB)"),
        ("H100 40GB", "there is no h100 with 40 GB", "H100 NVL (93 GiB)"),
        ("H100 NVL 80GB", "there is no H100 NVL with 80 GB", "H100 SXM (79 GiB)"),
        ("A10 40GB", "there is no a10 with 40 GB", "A10 (22 GiB)"),
        ("RTX 4090 48GB", "there is no rtx4090 with 48 GB", "RTX 4090 (24 GiB)"),
        ("h100 sxm pcie", "there is no h100 of several forms at once", "H100 PCIe (79 GiB)"),
    ],
)
def test_a_variant_that_does_not_exist_is_refused_with_those_that_do(typed: str, message: str, known: str) -> None:
    with pytest.raises(UsageError) as failure:
        find_spec(typed, UsageError)
    assert failure.value.message == f"'{typed}' is no GPU that trtbuild knows: {message}"
    assert known in failure.value.hint
    assert f"set hardware.memory_bytes beside hardware.gpu: {find_gpu(typed).name}" in failure.value.hint


def test_the_gpus_that_are_deployed_most_have_a_row() -> None:
    wanted = {"A100 SXM 80GB", "A10", "L4", "L40S", "H100 SXM", "H100 PCIe", "H100 NVL", "H200", "B200", "B300", "GB200", "RTX 6000 Ada", "RTX PRO 6000 Blackwell", "RTX 4090", "RTX 5090", "RTX 3090"}  # fmt: skip
    assert wanted <= {spec.name for spec in SPECS}
    assert len({spec.name for spec in SPECS}) == len(SPECS)


def test_every_row_is_complete_and_plausible() -> None:
    for spec in SPECS:
        assert GPUS[spec.kind] == spec.sm
        assert spec.source
        assert spec.memory_bytes > 9 * GIB
        assert spec.bandwidth >= 300 * 10**9
        assert spec.flops["fp16"] > 0
        assert spec.pcie > 0
        assert ("fp8" in spec.flops) == (spec.sm >= 89)
        assert ("fp4" in spec.flops) == (spec.sm >= 100)


def test_the_memory_that_was_published_is_what_the_table_says() -> None:
    """TensorRT-LLM's memory documentation: 79.10 GiB on an H100; NVIDIA/TensorRT-LLM#4275: 31.84 GiB on an RTX 5090."""
    by_name = {spec.name: spec for spec in SPECS}
    assert by_name["H100 SXM"].memory_bytes / GIB == pytest.approx(79.10)
    assert by_name["RTX 5090"].memory_bytes / GIB == pytest.approx(31.84)
    assert {by_name["H100 SXM"].evidence, by_name["RTX 5090"].evidence} == {"known"}


def test_a_plain_name_is_the_first_row_of_its_kind() -> None:
    for kind in {spec.kind for spec in SPECS}:
        assert find_spec(kind) == next(spec for spec in SPECS if spec.kind == kind)


def test_the_page_has_every_row() -> None:
    page = (Path(__file__).parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
    for spec in SPECS:
        mark = "" if spec.evidence == "known" else " *"
        assert f"| {spec.name} | {spec.sm} | {spec.memory_bytes / GIB:.2f}{mark} |" in page
    assert page.count("\n| ") >= len(SPECS)
