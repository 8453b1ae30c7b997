"""`trtbuild plan`: what it prints, when it ends with 3, what it suggests, and what if."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.memory.shapes import GIB, write_deployment, write_sparse

from trtbuild.planning import parse_what_if

Cli = Callable[..., tuple[int, str, str]]
Model = Callable[[str], Path]


@pytest.fixture
def written(model: Model, tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, **sections: Any) -> Path:
        return write_deployment(tmp_path / "t.yaml", model(name), **sections)

    return write


def planned(cli: Cli, *arguments: object, code: int = 0) -> dict[str, Any]:
    found, out, err = cli("plan", *arguments, "--json")
    assert found == code, err
    plan: dict[str, Any] = json.loads(out)
    return plan


def test_what_fits_says_so_and_ends_with_0(written: Any, cli: Cli) -> None:
    file = written("llama3-8b", hardware={"gpu": "h100"})
    code, out, err = cli("plan", file)
    assert (code, err) == (0, "")
    assert "fits H100 SXM with 79.10 GiB" in out
    for name in ("weights", "activations", "decoder buffers", "free after engine load", "KV pool", "stays free"):
        assert name in out


def test_the_lines_of_a_rank_add_up(written: Any, cli: Cli) -> None:
    plan = planned(cli, written("llama3-70b", parallel={"tp_size": 4}, hardware={"gpu": "h100"}))
    for rank in plan["memory"]["ranks"]:
        fixed = sum(line["bytes"] for line in rank["lines"])
        assert fixed == rank["fixed_bytes"]
        assert rank["free_after_load_bytes"] == plan["memory"]["gpu_memory_bytes"] - fixed
        assert rank["reserve_bytes"] == rank["free_after_load_bytes"] - rank["kv_pool_bytes"]
        assert rank["total_bytes"] + rank["reserve_bytes"] == plan["memory"]["gpu_memory_bytes"]
    assert plan["schema_version"] == 1
    assert plan["fit"]["fits"] is True


def test_without_a_gpu_the_totals_are_printed_and_fit_is_not_checked(written: Any, cli: Cli) -> None:
    file = written("llama3-70b")
    code, out, _ = cli("plan", file)
    assert code == 0
    assert "fit not checked: no GPU of known memory is named" in out
    plan = planned(cli, file)
    assert plan["fit"] == {**plan["fit"], "checked": False, "fits": None, "problems": [], "suggestions": []}
    smallest = plan["memory"]["smallest_gpu_bytes"]
    for memory, code in ((smallest, 0), (smallest - GIB, 3)):
        assert cli("plan", written("llama3-70b", hardware={"memory_bytes": memory}))[0] == code


@pytest.mark.parametrize(
    "sections",
    [
        {"hardware": {"gpu": "h100"}, "limits": {"max_batch_size": 32}},
        {"hardware": {"gpu": "h100", "count": 1}, "limits": {"max_batch_size": 32, "max_seq_len": 4096}},
        {"hardware": {"gpu": "a100 40gb", "count": 2}, "parallel": {"tp_size": 2}, "limits": {"max_batch_size": 32}},
        {"hardware": {"gpu": "h100", "count": 2}, "parallel": {"tp_size": 2}, "limits": {"max_batch_size": 4096}},
    ],
)
def test_every_suggestion_fits_when_it_is_planned(written: Any, cli: Cli, sections: dict[str, Any]) -> None:
    plan = planned(cli, written("llama3-70b", **sections), code=3)
    assert plan["fit"]["suggestions"]
    for suggestion in plan["fit"]["suggestions"]:
        changed: dict[str, Any] = {key: dict(value) for key, value in sections.items()}
        for key, value in suggestion["settings"].items():
            section, _, name = key.partition(".")
            changed.setdefault(section, {})[name] = value
        again = planned(cli, written("llama3-70b", **changed))
        assert again["fit"]["fits"] is True
        assert len(again["memory"]["ranks"]) == suggestion["gpus"] <= sections["hardware"].get("count", 8)
        assert max(rank["fixed_bytes"] for rank in again["memory"]["ranks"]) == suggestion["fixed_bytes"]


def test_a_single_gpu_is_offered_fewer_bits_and_several_gpus_a_cut(written: Any, cli: Cli) -> None:
    many = planned(cli, written("llama3-70b", hardware={"gpu": "h100"}, limits={"max_batch_size": 32}), code=3)
    settings = [each["settings"] for each in many["fit"]["suggestions"]]
    assert {"parallel.tp_size": 4} in settings or {"parallel.tp_size": 2} in settings
    assert any("quantization.scheme" in each for each in settings)
    one = planned(
        cli, written("llama3-70b", hardware={"gpu": "h100", "count": 1}, limits={"max_batch_size": 32}), code=3
    )
    assert all("parallel.tp_size" not in each["settings"] for each in one["fit"]["suggestions"])


def test_nothing_is_suggested_that_does_not_help(written: Any, cli: Cli) -> None:
    code, _, err = cli("plan", written("llama3-405b", hardware={"gpu": "l4", "count": 1}))
    assert code == 3
    assert "nothing that was tried fits: use more or larger GPUs" in err


def test_what_ifs_are_columns_beside_the_plan(written: Any, cli: Cli) -> None:
    eight = {"hardware": {"gpu": "h100"}, "quantization": {"scheme": "fp8"}}
    file = written("llama3-70b", **eight, parallel={"tp_size": 4})
    asked = ("--set", "parallel.tp_size=2", "--set", "quantization.kv_cache=fp8,limits.max_batch_size=8")
    plan = planned(cli, file, *asked)
    base, narrow, small = plan["what_if"]
    assert (base["name"], base["gpus"], narrow["gpus"]) == ("as planned", 4, 2)
    assert small["settings"] == {"quantization.kv_cache": "fp8", "limits.max_batch_size": 8}
    assert small["kv_bytes_per_token"] * 2 == base["kv_bytes_per_token"]
    alone = planned(cli, written("llama3-70b", **eight, parallel={"tp_size": 2}))
    assert narrow["kv_tokens"] == alone["limits"]["kv_tokens"]
    out = cli("plan", file, *asked)[1]
    assert "as planned" in out
    assert "smallest GPU" in out


def test_a_what_if_that_is_impossible_says_why_and_the_others_stand(written: Any, cli: Cli) -> None:
    file = written("llama3-70b", hardware={"gpu": "h100"}, parallel={"tp_size": 4})
    asked = ("--set", "parallel.tp_size=3", "--set", "parallel.tp_size=1", "--set", "parallel.tp_size=8")
    plan = planned(cli, file, *asked, code=3)
    refused, small, large = plan["what_if"][1:]
    assert "cannot be split over tp=3" in refused["error"]
    assert "valid tp sizes" in refused["hint"]
    assert (small["fits"], large["fits"]) == (False, True)
    code, out, err = cli("plan", file, *asked)
    assert code == 3
    assert "refused: parallel.tp_size=3; not fitting: parallel.tp_size=1" in err
    assert "parallel.tp_size=3 is refused: num_attention_heads=64" in out
    assert "    hint: valid tp sizes for this model: 1, 2, 4" in out
    assert "parallel.tp_size=1 does not fit: rank 0 takes" in out
    assert "parallel.tp_size=8 " not in out.rpartition("tokens/s")[2]


def test_what_ifs_that_are_all_possible_end_with_0(written: Any, cli: Cli) -> None:
    file = written("llama3-70b", hardware={"gpu": "h100"}, parallel={"tp_size": 4})
    assert cli("plan", file, "--set", "parallel.tp_size=8", "--set", "limits.max_batch_size=8")[0] == 0


def test_a_share_of_memory_that_no_gpu_makes_enough_names_no_gpu(written: Any, cli: Cli) -> None:
    tiny = {"free_gpu_memory_fraction": 0.000001}
    file = written("llama3-8b", kv_cache=tiny)
    assert planned(cli, file)["memory"]["smallest_gpu_bytes"] is None
    out = cli("plan", file, "--set", "kv_cache.free_gpu_memory_fraction=0.9")[1]
    assert "no GPU that there is holds one sequence of full length with kv_cache.free_gpu_memory_fraction=1e-06" in out
    assert "TiB" not in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits.max_batch=8", "did you mean"),
        ("nowhere.key=1", "unknown key 'nowhere.key'"),
        ("limits.max_batch_size", "is not KEY=VALUE"),
    ],
)
def test_a_what_if_with_an_unknown_key_is_refused(written: Any, cli: Cli, text: str, message: str) -> None:
    code, _, err = cli("plan", written("llama3-8b"), "--set", text)
    assert code == 2
    assert message in err


def test_a_what_if_may_hold_lists() -> None:
    assert parse_what_if("kv_cache.max_attention_window=[512,4096],limits.max_batch_size=8") == {
        "kv_cache.max_attention_window": [512, 4096],
        "limits.max_batch_size": 8,
    }


def test_explain_names_the_origin_and_the_formula_of_every_line(written: Any, cli: Cli) -> None:
    file = written("llama3-8b", hardware={"gpu": "h100"}, limits={"max_batch_size": 8})
    plan = planned(cli, file)
    rows = {row["name"]: row for row in plan["explain"]}
    assert {line["name"] for line in plan["memory"]["ranks"][0]["lines"]} <= set(rows)
    assert all(
        row["origin"] in ("user", "default", "model", "rule", "engine limit") and row["formula"]
        for row in rows.values()
    )
    assert (rows["limits.max_batch_size"]["origin"], rows["decoder buffers"]["origin"]) == ("user", "user")
    out = cli("plan", file, "--explain")[1]
    assert "activations = " in out
    assert "(default): max_num_tokens 8,192 x" in out


@pytest.mark.parametrize("target", ["tensorrt", "pytorch"])
@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("llama3-8b", {}),
        ("mixtral-8x7b", {"parallel": {"tp_size": 2, "pp_size": 2, "ep_size": 2}}),
        ("gemma3-1b", {}),
        ("gemma3-1b", {"kv_cache": {"max_tokens": 65536}}),
    ],
)
def test_explained_values_add_up_to_what_is_planned(
    written: Any, cli: Cli, name: str, sections: dict[str, Any], target: str
) -> None:
    plan = planned(cli, written(name, hardware={"gpu": "h100"}, target=target, **sections))
    rows = {row["name"]: row for row in plan["explain"]}
    assert len(rows) == len(plan["explain"]), "every name once"
    ranks = plan["memory"]["ranks"]
    rank = max(ranks, key=lambda rank: rank["fixed_bytes"])
    assert rows["before the KV cache"]["value"] == sum(rows[line["name"]]["value"] for line in rank["lines"])
    assert rows["free after engine load"]["value"] == rows["gpu_memory_bytes"]["value"] - rank["fixed_bytes"]
    assert rows["stays free"]["value"] == rows["free after engine load"]["value"] - rows["KV pool"]["value"]
    per_token = {key: row["value"] for key, row in rows.items() if key.startswith("KV bytes per token")}
    blocks = {key: row["value"] for key, row in rows.items() if key.startswith("KV pool blocks")}
    size = plan["limits"]["tokens_per_block"]
    assert len(per_token) == len(blocks) == (2 if name.startswith("gemma") else 1)
    assert (
        sum(a * b * size for a, b in zip(per_token.values(), blocks.values(), strict=True)) == rows["KV pool"]["value"]
    )
    assert rows["disk"]["value"] == plan["host"]["disk_bytes"]
    assert rows["TTFT"]["value"] == plan["speed"]["ttft_s"]
    assert rows["smallest GPU"]["value"] == plan["memory"]["smallest_gpu_bytes"]
    assert "limits.kv_tokens" not in rows
    assert ("experts of a token" in rows["activations"]["formula"]) == name.startswith("mixtral")


@pytest.mark.parametrize("target", ["reference", "tensorrt"])
def test_every_target_is_explained_in_words(model: Model, cli: Cli, target: str) -> None:
    out = cli("plan", model("llama3-1b"), "--target", target, "--explain")[1]
    assert "limits.max_seq_len = 8,192 tokens (model): positions of the model" in out
    assert "memory of the server = " in out
    assert ("gpu_memory_bytes = not known (default): no GPU is named" in out) == (target == "tensorrt")
    assert "None" not in out


def test_windows_have_pools_of_their_own_in_the_summary(model: Model, cli: Cli) -> None:
    out = cli("plan", model("gemma3-1b"), "--target", "tensorrt", "--gpu", "h100")[1]
    assert "tokens, and 2" in out
    assert "of layers with a window of 512, in blocks of 32" in out


def test_what_is_missing_to_load_is_a_figure(model: Model, cli: Cli) -> None:
    out = cli("plan", model("llama3-70b"), "--target", "tensorrt", "--gpu", "h100")[1]
    assert "lacks 55.62 GiB" in out


def test_every_column_of_a_comparison_has_the_same_keys(written: Any, cli: Cli) -> None:
    file = written("llama3-70b", hardware={"gpu": "h100"}, parallel={"tp_size": 4})
    plan = planned(cli, file, "--set", "parallel.tp_size=3", "--set", "parallel.tp_size=8", code=3)
    keys = [list(column) for column in plan["what_if"]]
    assert keys[0] == keys[1] == keys[2]


def test_exact_bytes_are_printed_on_demand(written: Any, cli: Cli) -> None:
    file = written("mistral-7b")
    assert "13,959,176,192" in cli("plan", file, "--bytes")[1]
    assert "13.00 GiB" in cli("plan", file)[1]


def test_the_reference_target_has_no_gpu_to_plan(model: Model, cli: Cli) -> None:
    code, out, _ = cli("plan", model("tinyllama"), "--gpu", "h100")
    assert code == 0
    assert "reference runs on the CPU" in out
    assert planned(cli, model("tinyllama"))["memory"] is None
    assert cli("plan", model("tinyllama"), "--set", "parallel.tp_size=2")[0] == 2


def test_the_pytorch_backend_has_graphs_instead_of_a_decoder(model: Model, tmp_path: Path, cli: Cli) -> None:
    def lines(**llm_api: Any) -> dict[str, int]:
        file = write_deployment(tmp_path / "t.yaml", model("llama3-8b"), target="pytorch", llm_api=llm_api)
        return {line["name"]: line["bytes"] for line in planned(cli, file)["memory"]["ranks"][0]["lines"]}

    assert "CUDA graphs" in lines()
    assert "decoder buffers" not in lines()
    assert "CUDA graphs" not in lines(cuda_graphs=False)
    assert lines(cuda_graph_padding=False)["CUDA graphs"] > lines()["CUDA graphs"]


def test_the_cost_of_making_it_is_stated(written: Any, cli: Cli) -> None:
    host = planned(cli, written("llama3-8b", parallel={"tp_size": 2}, kv_cache={"host_cache_bytes": GIB}))["host"]
    assert host["build_memory_bytes"][0] * 3 == host["build_memory_bytes"][1] * 2
    assert host["disk_bytes"] > 2 * 16 * 10**9
    assert host["conversion_s"] == pytest.approx(16.06e9 / 0.279e9, rel=0.01)
    assert host["server_memory_bytes"] == GIB + 256 * 2**20
    assert host["host_kv_blocks"] == GIB // 2 // (65536 * 32)


def _with_ports(model: Path) -> Path:
    file = model / "ports.yaml"
    file.write_text(f"model: {{path: {model}}}\nserving: {{grpc_port: 8000}}\n")
    return file


def test_a_model_with_latent_attention_is_sized_for_a_gpu(tmp_path: Path, cli: Cli) -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_sparse(tmp_path / "model.safetensors", [("model.embed_tokens.weight", [129280, 7168])], "BF16")
    plan = planned(cli, tmp_path, "--target", "pytorch", "--kv-cache", "fp8", "--tp", 8, "--gpu", "h200")
    assert plan["memory"]["kv_bytes_per_token"] == 35_136
    assert plan["memory"]["weight_bytes_per_gpu"] == 2 * 129280 * 7168 // 8
    assert plan["fit"]["fits"] is True
    assert "35,136 bytes per token" in cli("plan", tmp_path, "--kv-cache", "fp8")[1]
    write_sparse(tmp_path / "model.safetensors", [("model.embed_tokens.weight", [50 * 129280, 7168])], "BF16")
    code, _, err = cli("plan", tmp_path, "--target", "pytorch", "--gpu", "h100")
    assert code == 3
    assert "what fits: parallel.tp_size=2" in err
    out = cli("plan", tmp_path, "--tp", 8, "--gpu", "h200", "--explain")[1]
    for part in (
        "fits a GPU with 139.81 GiB",
        "activations and buffers are not planned",
        "(kv_lora_rank + qk_rope_head_dim) x layers",
        "H200 Tensor Core GPU datasheet",
    ):
        assert part in out
    assert "serving.http_port and serving.grpc_port" in cli("plan", _with_ports(tmp_path))[2]


def test_planning_a_70b_model_stays_small(written: Any) -> None:
    """Peak memory of the whole process, 80 MB at most; nothing heavy is imported."""
    file = written("llama3-70b", parallel={"tp_size": 4}, hardware={"gpu": "h100"})
    script = (
        "import sys\nfrom trtbuild.cli.edge import run\ncode = run(['plan', sys.argv[1], '--json'])\n"
        "heavy = {'torch', 'transformers', 'tritonclient', 'aiconfigurator_core'} & set(sys.modules)\n"
        "status = open('/proc/self/status').read()\n"
        "print(code, ','.join(heavy) or '-', int(status.partition('VmHWM:')[2].split()[0]), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=True, capture_output=True, text=True)
    code, heavy, peak_kib = done.stderr.split()
    assert (code, heavy) == ("0", "-")
    assert int(peak_kib) * 1024 < 80 * 10**6


def test_equal_reasons_are_one_sentence_with_the_number_of_linears(written: Any, cli: Cli) -> None:
    file = written("mixtral-8x7b", quantization={"scheme": "int4_awq"}, parallel={"tp_size": 4}, target="pytorch")
    code, _, err = cli("plan", file)
    assert code == 2
    said = "TensorRT-LLM's PyTorch backend loads no int4_awq experts: model.layers.0.block_sparse_moe.experts.0.w3 (and 63 more)"
    assert f"int4_awq does not fit: {said}\n" in err
    file = written("llama2-7b", quantization={"scheme": "int4_awq"}, parallel={"tp_size": 16})
    code, _, err = cli("plan", file)
    assert code == 2
    assert (
        "model.layers.0.mlp.down_proj (and 31 more) has 11008 inputs, 688 per rank at tp=16, not a multiple of" in err
    )
    assert err.count("inputs") == 1


@pytest.mark.parametrize("options", [(), ("--instances", 3)])
def test_a_key_is_suggested_once(written: Any, cli: Cli, options: tuple[object, ...]) -> None:
    file = written("llama2-7b", limits={"max_seq_len": 4096, "max_batch_size": 1}, hardware={"memory_bytes": 48 * GIB},
                   kv_cache={"free_gpu_memory_fraction": 0.04})  # fmt: skip
    code, _, err = cli("plan", file, *options)
    assert (code, err.count("limits.max_seq_len")) == (3, 1), err


def test_sizes_need_no_tokenizer_and_come_before_the_error(model: Model, tmp_path: Path, cli: Cli) -> None:
    arguments = ("plan", model("llama3-8b"), "--target", "tensorrt", "--quantization", "int4_awq")
    code, out, err = cli(*arguments, "--set", "quantization.scheme=fp8")
    assert code == 1
    assert "before the KV cache" in out
    assert "is refused" not in out
    assert f"sized, but cannot be built yet: {model('llama3-8b')} has no tokenizer" in err
    assert "input_ids" in err
    plan = planned(cli, *arguments[1:], "--gpu", "h100", code=1)
    assert plan["fit"]["fits"] is True
    assert [each["message"].rpartition(" has ")[2] for each in plan["lacking"]] == [
        "no tokenizer, and calibration texts must be tokenized"
    ]
    large = ("plan", model("llama3-70b"), *arguments[2:], "--gpu", "l4")
    assert cli(*large)[0] == 3, "what does not fit is said first"
    assert cli("build", *arguments[1:], "-o", tmp_path / "out")[1:] == (
        "",
        err.replace("sized, but cannot be built yet: ", ""),
    )
    odd = tmp_path / "samples.odd"
    odd.write_text("")
    code, out, err = cli(*arguments, "--calibration", odd)
    assert (code, out, "unknown kind" in err) == (2, "", True)
