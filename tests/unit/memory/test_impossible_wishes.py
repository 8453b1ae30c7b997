"""Ten wishes that nothing can grant: `trtbuild plan` names what is wrong in one error, and a way out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import GIB, write_deployment, write_model

Cli = Callable[..., tuple[int, str, str]]

WISHES: list[Any] = [
    pytest.param(
        "llama3-8b", {"quantization": {"scheme": "fp8"}, "hardware": {"gpu": "a100"}}, 2, ["fp8", "a100", "--quantization int4_awq"],
        id="FP8 on a GPU without FP8",
    ),
    pytest.param(
        "llama3-8b", {"quantization": {"scheme": "nvfp4"}, "hardware": {"gpu": "h100"}}, 2, ["nvfp4", "h100", "--quantization fp8"],
        id="NVFP4 before Blackwell",
    ),
    pytest.param(
        "llama2-7b", {"quantization": {"scheme": "int4_awq"}, "parallel": {"tp_size": 8}}, 2, ["1376 per rank at tp=8", "--tp 1 fits", "--tp 2 fits"],
        id="groups that the cut does not keep",
    ),
    pytest.param(
        "llama3-8b", {"tensorrt_llm": "1.3.0rc29"}, 2, ["engine", "1.3.0rc29", "1.2.1|pytorch"], id="an engine of a release without engines",
    ),
    pytest.param(
        "llama3-8b", {"limits": {"max_input_len": 8000, "max_num_tokens": 4096}, "scheduling": {"chunked_context": False}}, 2,
        ["max_input_len=8000", "max_num_tokens=4096", "chunked_context: true"], id="prompts longer than a step, whole",
    ),
    pytest.param(
        "llama3-8b", {"limits": {"max_beam_width": 4}, "speculative": {"mode": "lookahead", "max_draft_len": 4}}, 2,
        ["beam", "specul|lookahead"], id="beams with speculation",
    ),
    pytest.param(
        "odd-heads", {"parallel": {"tp_size": 4}}, 2, ["num_kv_heads=6 cannot be split over tp=4", "valid tp sizes for this model: 1, 2"],
        id="kv heads that are neither cut nor copied evenly",
    ),
    pytest.param(
        "llama3-70b", {"hardware": {"gpu": "h100"}}, 3, ["rank 0 takes 13", "79.10 GiB", "parallel.tp_size="], id="more than the memory",
    ),
]  # fmt: skip


@pytest.fixture
def folder(model: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function from a name to a model folder; `odd-heads` has 24 heads and 6 kv heads."""

    def find(name: str) -> Path:
        if name != "odd-heads":
            return model(name)
        return write_model(
            tmp_path / name, "llama3-8b", num_attention_heads=24, num_key_value_heads=6, hidden_size=3072, head_dim=128
        )

    return find


def one_error(err: str, parts: list[str]) -> None:
    """Check that there is one error with a hint, no traceback, and one word of each of `parts` (alternatives apart by |)."""
    assert err.count("error:") == 1, err
    assert err.count("hint:") == 1, err
    assert "Traceback" not in err
    for part in parts:
        assert any(word in err for word in part.split("|")), (part, err)


@pytest.mark.parametrize(("name", "sections", "code", "parts"), WISHES)
def test_an_impossible_wish_is_one_error_with_a_way_out(
    folder: Callable[[str], Path],
    tmp_path: Path,
    cli: Cli,
    name: str,
    sections: dict[str, Any],
    code: int,
    parts: list[str],
) -> None:
    found, _, err = cli("plan", write_deployment(tmp_path / "t.yaml", folder(name), **sections))
    assert found == code, err
    one_error(err, parts)


def test_a_kv_cache_whose_scales_cannot_be_found_is_one_error_with_a_way_out(
    model: Callable[[str], Path], cli: Cli
) -> None:
    """FP8 needs the ranges of keys and values; without a tokenizer or token ids nothing can be run."""
    code, _, err = cli("plan", model("llama3-8b"), "--target", "pytorch", "--quantization", "fp8", "--kv-cache", "fp8")
    assert code == 1
    one_error(err, ["no tokenizer", "input_ids"])


def test_more_than_the_disk_is_one_error_with_a_way_out(
    model: Callable[[str], Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=20 * GIB))
    arguments = ("plan", model("llama3-8b"), "--target", "tensorrt")
    assert cli(*arguments)[0] == 0
    code, _, err = cli(*arguments, "-o", tmp_path / "build")
    assert code == 1
    one_error(err, ["bytes are missing"])


def test_the_wishes_are_ten() -> None:
    assert len(WISHES) + 2 == 10


def test_what_a_build_keeps_needs_no_room(
    make_model: Callable[..., Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = make_model(), tmp_path / "out"
    assert cli("build", model, "-o", out)[0] == 0
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10))
    assert cli("plan", out, "-o", out)[0] == 0
    assert cli("plan", out, "--tp", 2, "-o", out)[0] == 1
    rank = next((out / "checkpoint").glob("rank*.safetensors"))
    rank.unlink()
    code, _, err = cli("plan", out, "-o", out)
    assert (code, "bytes are missing" in err) == (1, True)
