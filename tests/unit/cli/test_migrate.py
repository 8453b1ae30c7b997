"""`trtbuild migrate`: every setting of a deployment with engines is taken over, dropped with a reason, or put up for decision."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import T0

from trtbuild import spec
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.hardware import SCHEMES as HARDWARE_SCHEMES
from trtbuild.migrate.engine_repository import read_repository
from trtbuild.migrate.row import Row
from trtbuild.migrate.run import Migration, migrate
from trtbuild.migrate.tables import CORE, DECIDE, DECODING_MODES, DROPPED, ENGINE_MODES, SCHEMES, TEXT
from trtbuild.spec.fields import fields
from trtbuild.trtllm.versions import RELEASES

MakeModel = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]

CORE_CONFIG = """name: "tensorrt_llm"
backend: "{backend}"
max_batch_size: {size}
model_transaction_policy {{ decoupled: {decoupled} }}
dynamic_batching {{
  preferred_batch_size: [ {size} ]
  max_queue_delay_microseconds: {delay}
  default_queue_policy: {{ max_queue_size: {queue} }}
}}
output [ {{ name: "context_logits" data_type: {logits} dims: [ -1, -1 ] }} ]
"""
FILLED = {
    "backend": "tensorrtllm",
    "size": "16",
    "decoupled": "true",
    "delay": "0",
    "queue": "7",
    "logits": "TYPE_FP32",
}
UNFILLED = {
    "backend": "${triton_backend}", "size": "${triton_max_batch_size}", "decoupled": "${decoupled_mode}",
    "delay": "${max_queue_delay_microseconds}", "queue": "${max_queue_size}", "logits": "${logits_datatype}",
}  # fmt: skip
#: What a user filled in, and what it becomes.
PARAMETERS = {
    "gpt_model_type": "inflight_fused_batching", "max_beam_width": "2", "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": "0.8", "max_tokens_in_paged_kv_cache": "4096", "kv_cache_host_memory_bytes": "1000",
    "max_attention_window_size": "128,256", "enable_kv_cache_reuse": "False", "enable_chunked_context": "true",
    "lora_cache_gpu_memory_fraction": "0.1", "lora_cache_host_memory_bytes": "5", "lora_cache_optimal_adapter_size": "16",
    "guided_decoding_backend": "xgrammar", "exclude_input_in_output": "true", "decoding_mode": "top_k_top_p", "medusa_choices": "",
    "gpu_device_ids": "0,1", "lora_prefetch_dir": "/adapters", "my_own": "x", "cuda_graph_mode": "maybe",
}  # fmt: skip
ENGINE = {
    "version": "1.1.0",
    "build_config": {
        "max_batch_size": 32, "max_input_len": 100, "max_seq_len": 200, "max_num_tokens": 512, "max_beam_width": 4,
        "plugin_config": {"tokens_per_block": 64}, "speculative_decoding_mode": 1,
        "lora_config": {"lora_target_modules": ["attn_q"], "max_lora_rank": 8},
    },
    "pretrained_config": {
        "dtype": "bfloat16", "mapping": {"tp_size": 2, "pp_size": 2, "world_size": 4},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    },
}  # fmt: skip


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a repository like the stock one."""

    def make(head: dict[str, str] | None = None, engine: dict[str, Any] | None = None, tokenizer: str = "", **parameters: str) -> Path:  # fmt: skip
        folder = tmp_path / "repository"
        core = folder / "tensorrt_llm"
        core.mkdir(parents=True)
        given = dict(parameters)
        if engine is not None:
            (tmp_path / "engine").mkdir()
            (tmp_path / "engine" / "config.json").write_text(json.dumps(engine))
            given["gpt_model_path"] = str(tmp_path / "engine")
        text = CORE_CONFIG.format(**{**FILLED, **(head or {})})
        (core / "config.pbtxt").write_text(text + "".join(parameter(key, value) for key, value in given.items()))
        for name in ("preprocessing", "postprocessing"):
            (folder / name).mkdir()
            own = {"tokenizer_dir": tokenizer or "${tokenizer_dir}", "add_special_tokens": "false", "skip_special_tokens": "${skip_special_tokens}"}  # fmt: skip
            (folder / name / "config.pbtxt").write_text(
                f'name: "{name}"\nmax_batch_size: 16\ninstance_group [ {{ count: ${{{name}_instance_count}} kind: KIND_CPU }} ]\n'
                + "".join(parameter(key, value) for key, value in own.items())
            )
        return folder

    return make


def row(migration: Migration, old: str) -> Row:
    [found] = [each for each in migration.rows if each.old == old]
    return found


def test_a_filled_repository_and_its_engine_become_a_deployment(
    repository: Callable[..., Path], make_model: MakeModel
) -> None:
    model = make_model()
    found = migrate(repository(engine=ENGINE, tokenizer=str(model), **PARAMETERS))
    deployment = found.deployment
    assert (deployment.target, deployment.tensorrt_llm, deployment.model.path) == ("pytorch", "1.1.0", str(model))
    assert (deployment.model.dtype, deployment.quantization.scheme, deployment.quantization.kv_cache) == (
        "bfloat16",
        "fp8",
        "fp8",
    )
    assert (deployment.parallel.tp_size, deployment.parallel.pp_size) == (2, 2)
    limits = deployment.limits
    assert (limits.max_batch_size, limits.max_seq_len, limits.max_num_tokens, limits.max_beam_width) == (
        16,
        200,
        512,
        2,
    )
    cache = deployment.kv_cache
    assert (cache.free_gpu_memory_fraction, cache.max_tokens, cache.host_cache_bytes) == (0.8, 4096, 1000)
    assert (cache.max_attention_window, cache.enable_block_reuse, cache.tokens_per_block) == ((128, 256), False, 64)
    assert (deployment.scheduling.policy, deployment.scheduling.chunked_context) == ("max_utilization", True)
    assert (deployment.lora.target_modules, deployment.lora.max_rank, deployment.lora.device_cache_fraction) == (
        ("attn_q",),
        8,
        0.1,
    )
    assert deployment.llm_api.extra == {"peft_cache_config": {"optimal_adapter_size": 16}}
    assert (deployment.llm_api.guided_decoding, deployment.serving.streaming) == ("xgrammar", True)
    assert deployment.serving.add_special_tokens is False


def test_every_parameter_is_accounted_for(repository: Callable[..., Path], make_model: MakeModel) -> None:
    found = migrate(repository(engine=ENGINE, **PARAMETERS), model=make_model())
    verdicts = {each.old.removeprefix("tensorrt_llm: "): each.verdict for each in found.rows}
    assert set(PARAMETERS) - {"medusa_choices"} <= set(verdicts)
    assert {key for key in PARAMETERS if verdicts.get(key) == "dropped"} == {
        "gpt_model_type", "exclude_input_in_output", "decoding_mode", "gpu_device_ids", "cuda_graph_mode",
    }  # fmt: skip
    assert {key for key in PARAMETERS if verdicts.get(key) == "decide"} == {"lora_prefetch_dir", "my_own"}
    assert "which counts" in row(found, "engine: max_batch_size").note
    assert "which counts" in row(found, "engine: max_beam_width").note
    assert all(each.note for each in found.rows if each.verdict == "decide")


def test_placeholders_that_nobody_filled_are_reported_and_become_defaults(
    repository: Callable[..., Path], make_model: MakeModel
) -> None:
    source = repository(head=UNFILLED, max_beam_width="${max_beam_width}", batch_scheduler_policy="guaranteed_no_evict")
    found = migrate(source, model=make_model())
    assert found.deployment.limits.max_batch_size is None
    assert found.deployment.limits.max_beam_width == 1
    unfilled = {each.old for each in found.rows if "not filled" in each.note}
    assert {
        "tensorrt_llm: ${triton_max_batch_size}", "tensorrt_llm: ${decoupled_mode}", "tensorrt_llm: ${logits_datatype}",
        "tensorrt_llm: max_beam_width", "preprocessing: ${preprocessing_instance_count}", "preprocessing: tokenizer_dir",
    } <= unfilled  # fmt: skip
    assert row(found, "engine").verdict == "decide"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_cache_free_gpu_mem_fraction", "1.0"),
        ("kv_cache_free_gpu_mem_fraction", "lots"),
        ("max_beam_width", "4abc"),
        ("enable_kv_cache_reuse", "yes"),
        ("batch_scheduler_policy", "greedy"),
        ("max_attention_window_size", "128,,256"),
    ],
)
def test_a_value_that_the_backend_silently_replaced_is_named(
    repository: Callable[..., Path], make_model: MakeModel, key: str, value: str
) -> None:
    found = migrate(repository(**{key: value}), model=make_model())
    assert row(found, f"tensorrt_llm: {key}").verdict == "decide"
    assert "took its default" in row(found, f"tensorrt_llm: {key}").note


@pytest.mark.parametrize(
    ("algo", "kv", "gpu", "scheme", "kv_cache"),
    [
        ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "INT8", None, "fp8", "fp8"),
        ("W8A8_SQ_PER_CHANNEL", "INT8", "a100", "int4_awq", "fp8"),
        ("W4A16_GPTQ", None, None, "int4_gptq", "auto"),
        ("W8A16", None, "l40s", "fp8", "auto"),
        ("W8A16", None, "h100", "fp8_per_channel_per_token", "auto"),
        ("W4A16", None, None, "int4_awq", "auto"),
    ],
)
def test_formats_that_the_llm_api_does_not_load_become_the_nearest_and_need_a_decision(
    repository: Callable[..., Path], make_model: MakeModel, algo: str, kv: str | None, gpu: str | None, scheme: str, kv_cache: str
) -> None:  # fmt: skip
    quantization = {"quant_algo": algo, "kv_cache_quant_algo": kv}
    engine = {**ENGINE, "pretrained_config": {"quantization": quantization}}
    found = migrate(repository(engine=engine), model=make_model(), gpu=gpu)
    assert (found.deployment.quantization.scheme, found.deployment.quantization.kv_cache) == (scheme, kv_cache)
    assert row(found, "engine: quantization.quant_algo").verdict == "decide"
    assert "original model" in row(found, "engine: quantization.quant_algo").note
    assert [each.verdict for each in found.rows if each.new == "quantization.kv_cache"] == (["decide"] if kv else [])


@pytest.mark.parametrize("algo", ["FP8", "W4A16_AWQ", "W4A8_AWQ", "NVFP4", "FP8_PER_CHANNEL_PER_TOKEN"])
def test_formats_that_it_loads_are_taken_over(repository: Callable[..., Path], make_model: MakeModel, algo: str) -> None:  # fmt: skip
    engine = {**ENGINE, "pretrained_config": {"quantization": {"quant_algo": algo}}}
    found = migrate(repository(engine=engine), model=make_model())
    assert row(found, "engine: quantization.quant_algo").verdict == "taken"
    assert found.deployment.quantization.scheme == SCHEMES[algo]


def test_an_engine_of_another_generation_is_named_and_the_rest_goes_on(
    repository: Callable[..., Path], make_model: MakeModel
) -> None:
    found = migrate(repository(engine={"builder_config": {}}, max_beam_width="2"), model=make_model())
    assert "before 0.8" in row(found, "engine").note
    assert found.deployment.limits.max_beam_width == 2


def test_an_engine_of_a_release_without_the_llm_api_gets_one_that_has_it(
    repository: Callable[..., Path], make_model: MakeModel
) -> None:
    found = migrate(repository(engine={**ENGINE, "version": "0.20.0"}), model=make_model())
    assert (found.release.name, row(found, "tensorrt_llm").verdict) == ("1.2.1", "decide")
    assert found.deployment.tensorrt_llm == "1.2.1"


@pytest.mark.parametrize(("release", "verdict"), [("1.2.1", "taken"), ("1.4", "dropped")])
def test_an_argument_that_the_release_lacks_is_dropped(
    repository: Callable[..., Path], make_model: MakeModel, release: str, verdict: str
) -> None:
    found = migrate(repository(kv_cache_onboard_blocks="true"), model=make_model(), release=release)
    assert row(found, "tensorrt_llm: kv_cache_onboard_blocks").verdict == verdict
    assert ("kv_cache_config" in found.deployment.llm_api.extra) is (verdict == "taken")


@pytest.mark.parametrize("mode", [2, "2", "DRAFT_TOKENS_EXTERNAL", "SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"])
def test_a_draft_model_is_recognized_by_its_engine_and_by_its_name(
    repository: Callable[..., Path], make_model: MakeModel, mode: Any
) -> None:
    engine = json.loads(json.dumps(ENGINE))
    engine["build_config"]["speculative_decoding_mode"] = mode
    folder = repository(engine=engine, gpt_model_type="inflight_fused_batching")
    for name in ("tensorrt_llm_draft", "other"):
        (folder / name).mkdir()
        (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nmax_batch_size: 16\n')
    (folder / "tensorrt_llm_bls").mkdir()
    (folder / "tensorrt_llm_bls" / "config.pbtxt").write_text(
        'name: "tensorrt_llm_bls"\n'
        + parameter("tensorrt_llm_draft_model_name", "tensorrt_llm_draft")
        + parameter("max_draft_len", "4")
    )
    found = migrate(folder, model=make_model())
    assert "speculative.mode draft_target" in row(found, "engine: speculative_decoding_mode").note
    assert "speculative.draft_model" in row(found, "tensorrt_llm_draft").note
    assert "in front of the one model" in row(found, "other").note
    assert row(found, "tensorrt_llm_bls: max_draft_len").verdict == "dropped"


@pytest.mark.parametrize(("key", "value"), [("decoding_mode", "medusa"), ("decoding_mode", "lookahead"), ("decoding_mode", "redrafter")])  # fmt: skip
def test_speculation_of_engines_is_put_up_for_decision_with_the_nearest(
    repository: Callable[..., Path], make_model: MakeModel, key: str, value: str
) -> None:
    found = migrate(repository(**{key: value}), model=make_model())
    assert "ngram" in row(found, f"tensorrt_llm: {key}").note
    assert found.deployment.speculative.mode == "none"


def test_a_trtbuild_yaml_keeps_its_fields_but_those_of_engines(make_model: MakeModel, tmp_path: Path, cli: Cli) -> None:
    source = tmp_path / "old.yaml"
    source.write_text(
        yaml.safe_dump(
            {
                "model": {"path": str(make_model())},
                "target": "tensorrt",
                "tensorrt_llm": "0.21.0",
                "quantization": {"scheme": "int8_smoothquant", "kv_cache": "int8"},
                "parallel": {"tp_size": 2, "embedding": "vocab"},
                "limits": {"max_batch_size": 4, "max_input_len": 8, "opt_num_tokens": 4},
                "engine": {"reduce_fusion": True, "workers": 2},
                "speculative": {"mode": "medusa", "draft_model": "heads", "max_draft_len": 3},
                "serving": {"bls_instances": 4, "stop_words": ["END"]},
            }
        )
    )
    out, llm_api = tmp_path / "new.yaml", tmp_path / "llm_api.yaml"
    code, text, err = cli("migrate", source, "-o", out, "--llm-api", llm_api, "--json")
    assert code == 0, err
    new = spec.load(out)
    assert (new.target, new.tensorrt_llm, new.parallel.tp_size, new.parallel.embedding) == (
        "pytorch",
        "1.2.1",
        2,
        "replicated",
    )
    assert (new.quantization.scheme, new.quantization.kv_cache, new.speculative.mode) == ("fp8", "fp8", "none")
    assert (new.limits.max_batch_size, new.limits.max_input_len, new.serving.stop_words) == (4, None, ("END",))
    rows = {each["old"]: each for each in json.loads(text)["rows"]}
    assert {key for key, each in rows.items() if each["verdict"] == "dropped"} == {
        "parallel.embedding", "limits.max_input_len", "limits.opt_num_tokens", "engine.reduce_fusion", "engine.workers",
        "speculative.draft_model", "speculative.max_draft_len", "serving.bls_instances",
    }  # fmt: skip
    assert {key for key, each in rows.items() if each["verdict"] == "decide"} == {
        "tensorrt_llm", "quantization.scheme", "quantization.kv_cache", "speculative.mode",
    }  # fmt: skip
    written = yaml.safe_load(llm_api.read_text())
    assert (written["max_seq_len"], written["max_batch_size"], written["kv_cache_config"]["dtype"]) == (
        T0["max_position_embeddings"],
        4,
        "fp8",
    )
    code, _, err = cli("plan", out, "--quantization", "none", "--kv-cache", "auto")
    assert code == 0, err


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_positions_that_a_scaling_adds_are_counted_in_both_spellings(
    key: str, make_model: MakeModel, tmp_path: Path, cli: Cli
) -> None:
    model = make_model(**{key: {"rope_type": "linear", "factor": 4.0}})
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"model": {"path": str(model)}, "target": "tensorrt"}))
    code, _, err = cli(
        "migrate", tmp_path / "old.yaml", "-o", tmp_path / "new.yaml", "--llm-api", tmp_path / "args.yaml"
    )
    assert code == 0, err
    written = yaml.safe_load((tmp_path / "args.yaml").read_text())
    assert written["max_seq_len"] == 4 * T0["max_position_embeddings"]


def test_our_own_repository_leads_back_to_its_model(make_model: MakeModel, tmp_path: Path, cli: Cli) -> None:
    model = make_model()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert cli("convert", model, "-o", tmp_path / "ckpt", "--target", "tensorrt", "-q")[0] == 0
    data = {
        "model": {"path": str(model)},
        "target": "tensorrt",
        "limits": {"max_batch_size": 3},
        "serving": {"stop_words": ["E"]},
    }
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(data))
    options = (
        "--checkpoint",
        tmp_path / "ckpt",
        "--engine",
        tmp_path / "engine",
        "--engine-later",
        "-o",
        tmp_path / "repository",
        "-q",
    )
    code, _, err = cli("render", tmp_path / "old.yaml", *options)
    assert code == 0, err
    found = migrate(tmp_path / "repository")
    assert found.deployment.model.path == str(model)
    assert (found.deployment.limits.max_batch_size, found.deployment.serving.stop_words) == (3, ("E",))
    assert not [each.old for each in found.rows if "no parameter of the stock" in each.note]


def test_the_tables_name_fields_that_there_are() -> None:
    places = {".".join(field.path) for field in fields()}
    for each in (*CORE.values(), *TEXT.values()):
        assert each.new in places or each.new.startswith("llm_api.extra.")
    assert set(SCHEMES.values()) <= set(HARDWARE_SCHEMES)
    assert not (set(CORE) | set(TEXT)) & (set(DROPPED) | set(DECIDE))
    modes = {*DECODING_MODES.values(), *ENGINE_MODES.values()}
    assert modes <= {"medusa", "redrafter", "lookahead", "eagle", "draft_target"}


@pytest.mark.parametrize(
    ("prepare", "options", "error", "message"),
    [
        (lambda path: None, {}, UsageError, "no trtbuild.yaml, build folder or model repository"),
        (lambda path: _write(path / "trtbuild.yaml", "model: {path: x}\ntarget: pytorch\n"), {}, UsageError, "already"),
        (lambda path: _write(path / "other" / "config.pbtxt", 'name: "other"'), {}, UsageError, "no model 'tensorrt_llm'"),
        (lambda path: _write(path / "tensorrt_llm" / "config.pbtxt", "name: {"), {}, TrtbuildError, "cannot be read"),
        (lambda path: _write(path / "tensorrt_llm" / "config.pbtxt", 'name: "tensorrt_llm"'), {}, UsageError, "--model"),
        (lambda path: _write(path / "trtbuild.yaml", "model: {path: x}\ntarget: tensorrt\n"), {"release": "0.21"}, UsageError, "use one of 1.0.0"),
        (lambda path: _write(path / "tensorrt_llm" / "1" / "model.yaml", "model: x") or _write(path / "tensorrt_llm" / "config.pbtxt", 'name: "x"'), {}, UsageError, "of the LLM API already"),
    ],
)  # fmt: skip
def test_what_cannot_be_migrated_is_refused(
    tmp_path: Path, prepare: Callable[[Path], Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    prepare(tmp_path)
    with pytest.raises(error) as found:
        migrate(tmp_path, **options)
    assert message in str(found.value)


def test_models_are_told_by_what_they_are_where_names_do_not_tell(
    repository: Callable[..., Path], make_model: MakeModel
) -> None:
    folder = repository()
    (folder / "tensorrt_llm").rename(folder / "llama-core")
    # As the Triton CLI names the BLS model: after the language model.
    _write(
        folder / "llama" / "config.pbtxt", 'backend: "python"\n' + parameter("tensorrt_llm_model_name", "llama-core")
    )
    _write(folder / "chain" / "config.pbtxt", 'platform: "ensemble"')
    _write(folder / "guard" / "config.pbtxt", 'backend: "python"')
    migration = migrate(folder, model=make_model())
    assert row(migration, "llama-core: decoupled").verdict == "taken"
    assert [each.old for each in migration.rows if each.note.startswith("no model of the stock repository")] == [
        "guard"
    ]


def test_several_models_of_the_engine_backend_are_refused(tmp_path: Path) -> None:
    for number in range(12):
        _write(tmp_path / f"m{number:02}" / "config.pbtxt", 'backend: "tensorrtllm"')
    with pytest.raises(UsageError, match="several models of the backend tensorrtllm .*; it has m00, .* and 2 others"):
        migrate(tmp_path)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [({"tp_size": "2"}, "mapping.tp_size = '2' is no number of ranks"), ({"pp_size": 0}, "mapping.pp_size = 0"), ("x", "mapping is a str, not an object")],
)  # fmt: skip
def test_an_engine_whose_sizes_are_junk_is_named_and_the_rest_goes_on(
    mapping: Any, message: str, repository: Callable[..., Path], make_model: MakeModel
) -> None:
    engine = {**ENGINE, "pretrained_config": {**ENGINE["pretrained_config"], "mapping": mapping}}
    migration = migrate(repository(engine=engine), model=make_model())
    [found] = [each for each in migration.rows if each.old == "engine" and each.verdict == "decide"]
    assert message in found.note


def test_a_pipe_is_no_configuration_and_long_words_take_no_time(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "tensorrt_llm" / "1").mkdir(parents=True)
    file = tmp_path / "tensorrt_llm" / "config.pbtxt"
    os.mkfifo(file)
    code, _, err = cli("migrate", tmp_path)
    assert (code, "config.pbtxt cannot be read: it is no regular file" in err) == (1, True)
    assert "it is no regular file" in cli("lint", tmp_path)[1]
    file.unlink()
    file.write_text(f'name: "tensorrt_llm"\n{parameter("mine", "x" * 10**6)}')
    assert read_repository(tmp_path).parameters("tensorrt_llm")["mine"] == "x" * 10**6


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_command_prints_what_became_of_everything_and_overwrites_nothing(
    repository: Callable[..., Path], make_model: MakeModel, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    source, out = repository(engine=ENGINE, **PARAMETERS), tmp_path / "new.yaml"
    arguments = ("migrate", source, "--model", make_model(), "-o", out)
    code, text, err = cli(*arguments)
    assert code == 0, err
    assert all(title in text for title in ("taken over (", "no equivalent (", "to decide ("))
    assert "max_utilization" in text
    assert text.splitlines()[-1] == f"{out}: target pytorch, TensorRT-LLM 1.1.0; next: trtbuild plan {out}"
    before = out.read_bytes()
    assert cli(*arguments)[0] != 0
    assert out.read_bytes() == before
    assert cli(*arguments, "--force", "-q")[0] == 0


@pytest.mark.parametrize("release", [release.name for release in RELEASES if release.name.startswith(("1.", "1.4"))])
def test_the_result_has_arguments_in_every_release(
    repository: Callable[..., Path], make_model: MakeModel, tmp_path: Path, cli: Cli, release: str
) -> None:
    options = ("--tensorrt-llm", release, "-o", tmp_path / "new.yaml", "--llm-api", tmp_path / "llm_api.yaml", "-q")
    code, _, err = cli("migrate", repository(engine=ENGINE, **PARAMETERS), "--model", make_model(), *options)
    assert code == 0, err
    assert yaml.safe_load((tmp_path / "llm_api.yaml").read_text())["tensor_parallel_size"] == 2


def write_deployment(folder: Path, hardware: str, target: str = "tensorrt") -> Path:
    file = folder / "engines.yaml"
    file.write_text(f"model: {{path: {folder}}}\ntarget: {target}\ntensorrt_llm: 0.17.0\nhardware: {hardware}\n")
    return file


def test_what_options_say_is_what_a_setting_becomes(tmp_path: Path) -> None:
    file = write_deployment(tmp_path, "{gpu: h100, memory_bytes: 70000000000, count: 2}")
    found = migrate(file, gpu="NVIDIA B200", release="1.1", model=tmp_path / "model")
    settings = {each.new: each.new_value for each in found.rows if each.verdict == "taken"}
    assert settings["hardware.gpu"] == found.deployment.hardware.gpu == "b200"
    assert settings["tensorrt_llm"] == found.deployment.tensorrt_llm == "1.1.0"
    assert settings["model.path"] == found.deployment.model.path == str(tmp_path / "model")
    assert found.deployment.hardware.memory_bytes is None
    assert "it was that of h100" in row(found, "hardware.memory_bytes").note


def test_the_same_gpu_keeps_its_memory(tmp_path: Path) -> None:
    found = migrate(write_deployment(tmp_path, "{gpu: h100, memory_bytes: 70000000000}"), gpu="H100")
    assert found.deployment.hardware.memory_bytes == 70_000_000_000


@pytest.mark.parametrize("gpu", ["t4", "v100", "sm75"])
def test_a_gpu_that_tensorrt_llm_does_not_run_on_is_refused(tmp_path: Path, cli: Cli, gpu: str) -> None:
    file = write_deployment(tmp_path, "{gpu: h100}")
    code, _, err = cli("migrate", file, "--gpu", gpu, "-o", tmp_path / "new.yaml")
    assert (code, f"TensorRT-LLM does not run on {gpu}" in err) == (2, True), err
    assert not (tmp_path / "new.yaml").exists()
    old = write_deployment(tmp_path, f"{{gpu: {gpu}}}", target="reference")
    with pytest.raises(UsageError, match="does not run on") as failure:
        migrate(old)
    assert "--gpu" in failure.value.hint
    assert migrate(old, gpu="l40s").deployment.hardware.gpu == "l40s"
