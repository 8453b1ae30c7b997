"""A model that is only sized: every wish is followed, refused or named as without effect; nothing is suggested that was not sized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import write_sparse

Cli = Callable[..., tuple[int, str, str]]

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "num_attention_heads": 128, "n_routed_experts": 256, "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


@pytest.fixture
def deepseek(tmp_path: Path) -> Path:
    """Return a model folder of DeepSeek-V3's sizes: 671 GB."""
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_sparse(folder / "model.safetensors", [("model.layers.0.mlp.experts.weight", [335_500, 1_000_000])], "BF16")
    return folder


def plan(cli: Cli, folder: Path, *options: object, code: int = 0) -> dict[str, Any]:
    found, out, err = cli("plan", folder, "--target", "pytorch", *options, "--json")
    assert found == code, err
    made: dict[str, Any] = json.loads(out)
    return made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "parallel.bogus=16"), "unknown key 'parallel.bogus'"),
        (("--set", "bogus.key=16"), "unknown key 'bogus.key'"),
        (("--quantization", "int4_awq"), "quantization.scheme: DeepseekV3ForCausalLM is not converted"),
        (("--dequantize", "--dtype", "float16"), "model.dtype, quantization.dequantize: "),
        (("--override", "*.x=fp8"), "quantization.overrides: "),
        (("--input-len", 99_999_999), "--input-len 99999999: a request has at most 163840 tokens"),
        (("--input-len", 163_000, "--output-len", 1000), "--input-len 163000 and --output-len 1000: a request"),
        (("--tp", 3), "num_attention_heads=128 cannot be split over tp=3"),
        (("--tp", 32, "--ep", 3), "moe_ep_size=3 does not divide tp_size=32"),
        (("--tp", 2, "--ep", 4), "moe_ep_size=4 does not divide tp_size=2"),
        (("--tp", 512), "cannot be split over tp=512"),
        (("--pp", 62), "num_layers=61 cannot fill pp=62 stages"),
        (("--instances", 2), "--instances: DeepseekV3ForCausalLM is only sized"),
        (("--measured", "-o", "out"), "--measured, --output: "),
        (("--gpu", "v100"), "does not run on v100"),
        (("--gpu", "h100", "--kv-cache", "int8"), "KV cache 'int8' does not run on"),
    ],
)
def test_a_wish_that_it_cannot_have_is_a_fault_of_the_user(
    deepseek: Path, cli: Cli, options: tuple[object, ...], words: str
) -> None:
    code, out, err = cli("plan", deepseek, "--target", "pytorch", *options)
    assert (code, out) == (2, ""), err
    assert words.lower() in err.lower()
    assert "hint:" in err


@pytest.mark.parametrize("options", [(), ("--target", "reference"), ("--target", "tensorrt", "--gpu", "h100")])
def test_a_target_that_cannot_have_it_is_an_error_behind_the_sizes(
    deepseek: Path, cli: Cli, options: tuple[object, ...]
) -> None:
    code, out, err = cli("plan", deepseek, *options)
    assert code == 1
    assert "per GPU: weights 624.92 GiB" in out
    assert "DeepseekV3ForCausalLM cannot be built for target " in err
    assert "--target pytorch plans that" in err


def test_the_target_that_serves_the_folder_itself_is_planned(deepseek: Path, cli: Cli) -> None:
    code, out, err = cli("plan", deepseek, "--target", "pytorch", "--tp", 8, "--gpu", "h200", "--input-len", 2000)
    assert (code, err) == (0, "")
    assert "`trtbuild build` makes nothing of it" in out
    assert "requests of 2000 + 256 tokens at once" in out
    few = plan(cli, deepseek, "--tp", 8, "--gpu", "h200", "--input-len", 100_000)["memory"]
    many = plan(cli, deepseek, "--tp", 8, "--gpu", "h200", "--input-len", 1000)["memory"]
    assert few["requests"] < 20 < many["requests"]
    assert many["requests"] == many["kv_pool_tokens"] // 1280  # 1256 tokens in blocks of 32


def test_what_ifs_are_compared_each_by_its_own_sizes(deepseek: Path, cli: Cli) -> None:
    whatever = (
        "parallel.tp_size=16", "quantization.scheme=fp8", "quantization.kv_cache=fp8,parallel.pp_size=2", "target=tensorrt", "parallel.tp_size=3",
        "limits.max_batch_size=7",
    )  # fmt: skip
    options = [part for text in whatever for part in ("--set", text)]
    made = plan(cli, deepseek, "--tp", 8, "--gpu", "h200", *options, code=3)
    columns = {column["name"]: column for column in made["what_if"]}
    assert list(columns) == ["as planned", *whatever]
    base = columns["as planned"]
    assert columns["parallel.tp_size=16"]["weight_bytes"] * 2 == base["weight_bytes"]
    both = columns["quantization.kv_cache=fp8,parallel.pp_size=2"]
    assert (both["gpus"], both["kv_bytes_per_token"] * 4) == (16, base["kv_bytes_per_token"])
    assert "is not converted" in columns["quantization.scheme=fp8"]["error"]
    assert "cannot be built for target tensorrt" in columns["target=tensorrt"]["error"]
    assert "cannot be split over tp=3" in columns["parallel.tp_size=3"]["error"]
    assert {**columns["limits.max_batch_size=7"], "name": 0, "settings": 0} == {**base, "name": 0, "settings": 0}
    assert made["notes"] == ["limits.max_batch_size=7: without effect (the model is only sized): limits.max_batch_size"]
    code, out, err = cli("plan", deepseek, "--target", "pytorch", "--tp", 8, *options)
    assert code == 3
    assert "parallel.tp_size=3 is refused: num_attention_heads=128" in out
    assert "not every what-if is possible" in err


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--gpu", "h200"), [{"parallel.tp_size": 8}]),
        (("--gpu", "l4"), [{"parallel.tp_size": 8, "parallel.pp_size": 4}]),
        (("--gpu", "h200", "--tp", 8, "--input-len", 160_000, "--output-len", 3000), []),
    ],
)
def test_every_suggestion_was_sized_and_fits(
    deepseek: Path, cli: Cli, options: tuple[object, ...], settings: list[dict[str, int]]
) -> None:
    made = plan(cli, deepseek, *options, code=3 if settings else 0)
    assert [each["settings"] for each in made["fit"]["suggestions"]] == settings
    for each in settings:
        again = ("--tp", each["parallel.tp_size"], "--pp", each.get("parallel.pp_size", 1))
        assert plan(cli, deepseek, *options, *again)["fit"]["fits"] is True


def test_a_pool_that_holds_no_request_does_not_fit(deepseek: Path, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        json.dumps(
            {
                "model": {"path": str(deepseek)},
                "target": "pytorch",
                "parallel": {"tp_size": 8},
                "kv_cache": {"max_tokens": 1024},
                "hardware": {"gpu": "h200", "count": 4},
                "scheduling": {"chunked_context": False},
            }
        )
    )
    code, out, err = cli("plan", file)
    assert code == 3
    assert "the KV pool has 1,024 tokens, one request of 1024 + 256 needs 1,280" in err
    assert "are 8 ranks, one GPU each, and hardware.count is 4" in err
    assert "nothing that was tried fits" in err
    assert "note: without effect (the model is only sized): scheduling.chunked_context" in out


@pytest.mark.parametrize("verb", ["build", "convert"])
@pytest.mark.parametrize(
    "options", [("--target", "tensorrt"), ("--target", "pytorch"), ("--quantization", "fp8", "--gpu", "v100")]
)
def test_the_architecture_is_what_is_refused_first(
    deepseek: Path, cli: Cli, tmp_path: Path, verb: str, options: tuple[str, ...]
) -> None:
    code, _, err = cli(verb, deepseek, *options, "-o", tmp_path / "out")
    assert code == 1
    assert "architecture 'DeepseekV3ForCausalLM' is not converted" in err
    assert "through the LLM API; `trtbuild plan --target pytorch` tells what it takes" in err


def test_what_a_hint_names_is_possible_for_such_a_model(deepseek: Path, cli: Cli) -> None:
    wish = ("plan", deepseek, "--target", "pytorch", "--gpu", "h100", "--tp", 16)
    code, _, err = cli(*wish, "--kv-cache", "int8")
    assert (code, "--kv-cache fp8" in err) == (2, True), err
    assert cli(*wish, "--kv-cache", "fp8")[0] == 0
    assert "--target reference" not in cli("plan", deepseek, "--target", "pytorch", "--gpu", "v100")[2]
