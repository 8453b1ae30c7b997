"""Mistakes of every kind are found under their name in repositories for engines and for the LLM API; good ones are clean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.repo import lint_cases as cases
from tests.unit.repo.lint_cases import Case, Mutation, add, both, line_with, parameter, swap, swap_in, without, write
from tests.unit.repo.test_lint_more_mutations import ENGINE as MORE
from tests.unit.repo.test_lint_more_mutations import LLMAPI as MORE_LLMAPI
from tests.unit.repo.test_repo_lint import MUTATIONS as REFERENCE_MUTATIONS

from trtbuild.repo.lint import check
from trtbuild.repo.lint.rules import RULES
from trtbuild.trtllm.versions import find_release

BUILT = ("build_config", "plugin_config")
_SEED = 'input { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] reshape { shape: [] } optional: true }'

#: What goes wrong in a repository for an engine -> (the mutation, every rule it must break).
ENGINE_MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    # values that the C++ backend drops without more than a line in its log (Triton specification 1.8)
    "yes is no boolean": (parameter("enable_chunked_context", "yes"), {"parameter-value"}),
    "a boolean in mixed case": (parameter("enable_kv_cache_reuse", "tRue"), {"parameter-value"}),
    "a number with a unit": (parameter("max_tokens_in_paged_kv_cache", "4096tokens"), {"parameter-value"}),
    "a number in powers of ten": (parameter("kv_cache_host_memory_bytes", "1e9"), {"parameter-value"}),
    "a text for a number": (parameter("cancellation_check_period_ms", "often"), {"parameter-value"}),
    "a share of all memory": (parameter("kv_cache_free_gpu_mem_fraction", "1.0"), {"parameter-value"}),
    "a share in percent": (parameter("kv_cache_free_gpu_mem_fraction", "90"), {"parameter-value"}),
    "a share with a percent sign": (parameter("kv_cache_free_gpu_mem_fraction", "0.9%"), {"parameter-value"}),
    "no beam at all": (parameter("max_beam_width", "0"), {"parameter-value"}),
    "an unknown scheduler": (parameter("batch_scheduler_policy", "max_utilisation"), {"parameter-value"}),
    "a scheduler in capitals": (parameter("batch_scheduler_policy", "MAX_UTILIZATION"), {"parameter-value"}),
    "an unknown decoding mode": (parameter("decoding_mode", "greedy"), {"parameter-value"}),
    "an unknown kind of batching": (parameter("gpt_model_type", "Inflight_Fused_Batching"), {"parameter-value"}),
    "windows that are no numbers": (parameter("max_attention_window_size", "128,all"), {"parameter-value"}),
    "choices that are no lists": (parameter("medusa_choices", "0,0;0,1"), {"parameter-value"}),
    "another grammar backend": (
        both(parameter("guided_decoding_backend", "outlines"), parameter("xgrammar_tokenizer_info_path", "PATH")),
        {"parameter-value", "path-relative"},
    ),
    "a list of devices with a gap": (parameter("gpu_device_ids", "0,1;2,x"), {"parameter-value"}),
    # keys
    "a misspelt key": (parameter("max_beam_widht", "1"), {"unknown-parameter"}),
    "the name of another program": (parameter("kv_cache_free_gpu_memory_fraction", "0.8"), {"unknown-parameter"}),
    "a key of nobody": (parameter("prometheus", "on"), {"unknown-parameter"}),
    "a misspelt key of a Python model": (
        both(without("add_special_tokens", "preprocessing"), parameter("add_special_token", "false", "preprocessing")),
        {"unknown-parameter"},
    ),
    "the worker by its old name": (parameter("worker_path", "/opt/worker"), {"renamed-parameter"}),
    "the vision model by its old name": (
        parameter("visual_model_path", "/tmp", "preprocessing"),
        {"renamed-parameter"},
    ),
    "no guided decoding keys": (without("guided_decoding_backend"), {"missing-parameter"}),
    "no tokenizer key": (without("tokenizer_dir"), {"missing-parameter"}),
    "no kind of batching": (without("gpt_model_type"), {"missing-parameter"}),
    "no engine": (without("gpt_model_path"), {"missing-parameter"}),
    "no tokenizer for preprocessing": (without("tokenizer_dir", "preprocessing"), {"missing-parameter", "tokenizer-differs"}),
    "lookahead without sizes": (
        both(parameter("decoding_mode", "lookahead"), cases.engine("build_config", "max_draft_len", value=9)),
        {"missing-parameter"},
    ),
    "a key without effect": (parameter("enable_trt_overlap", "true"), {"unread-parameter"}),
    "a key that has gone": (parameter("max_num_sequences", "64"), {"unread-parameter"}),
    "an empty key": (parameter("max_beam_width", ""), {"empty-parameter"}),
    "a placeholder in quotes": (parameter("max_beam_width", "${max_beam_width}"), {"unfilled"}),
    "a flag that is read as true": (parameter("skip_special_tokens", "never", "postprocessing"), {"parameter-value"}),
    # batching
    "static batching": (parameter("gpt_model_type", "V1"), {"static-batching"}),
    "a delay in front of in-flight batching": (
        swap("tensorrt_llm", "max_queue_delay_microseconds: 0", "max_queue_delay_microseconds: 5000"),
        {"queue-delay"},
    ),
    "answers in the order of requests": (
        swap("tensorrt_llm", "dynamic_batching {", "dynamic_batching { preserve_ordering: true"),
        {"queue-delay"},
    ),
    "GPUs where the backend does not look": (swap("tensorrt_llm", "kind: KIND_CPU", "kind: KIND_GPU"), {"instance-kind"}),
    "two cores on the same GPUs": (swap("tensorrt_llm", "count: 1", "count: 2"), {"device-ids"}),
    "too few lists of devices": (
        both(swap("tensorrt_llm", "count: 1", "count: 2"), parameter("gpu_device_ids", "0,1")),
        {"device-ids"},
    ),
    "fewer devices than ranks": (parameter("gpu_device_ids", "3"), {"device-ids"}),
    "a device twice": (parameter("gpu_device_ids", "3,3"), {"device-ids"}),
    "instances that share a device": (
        both(swap("tensorrt_llm", "count: 1", "count: 2"), parameter("gpu_device_ids", "0,1;1,2")),
        {"devices-overlap"},
    ),
    "a cache for streams": (add("response_cache { enable: true }"), {"response-cache"}),
    # tensors
    "the seed by its old name": (
        line_with('name: "seed"', _SEED.replace("seed", "random_seed") + "\n"),
        {"renamed-tensor", "ensemble-tensor"},
    ),
    "a required input missing": (
        both(line_with('name: "request_output_len"'), swap("ensemble", 'input_map { key: "request_output_len" value: "_REQUEST_OUTPUT_LEN" }', "")),
        {"missing-tensor", "ensemble-unused"},
    ),
    "an input nobody reads": (
        add('input { name: "temprature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }'),
        {"unknown-tensor"},
    ),
    "a sum of another type": (
        swap("tensorrt_llm", 'name: "early_stopping" data_type: TYPE_BOOL', 'name: "early_stopping" data_type: TYPE_INT32'),
        {"tensor-differs"},
    ),
    "no reshape": (
        swap("tensorrt_llm", 'name: "stop" data_type: TYPE_BOOL dims: [ 1 ] reshape { shape: [] }', 'name: "stop" data_type: TYPE_BOOL dims: [ 1 ]'),
        {"tensor-differs"},
    ),
    "logits in BF16": (
        both(*(swap(model, 'name: "context_logits" data_type: TYPE_FP16', 'name: "context_logits" data_type: TYPE_BF16')
               for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls"))),
        {"tensor-differs"},
    ),
    "other logits than the engine's": (
        both(*(swap(model, 'name: "context_logits" data_type: TYPE_FP16', 'name: "context_logits" data_type: TYPE_FP32')
               for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls"))),
        {"engine-logits"},
    ),
    "other logits in BLS": (
        swap("tensorrt_llm_bls", 'name: "context_logits" data_type: TYPE_FP16', 'name: "context_logits" data_type: TYPE_FP32'),
        {"bls-datatype"},
    ),
    # the engine
    "a larger batch than built": (cases.engine("build_config", "max_batch_size", value=4), {"engine-batch-size"}),
    "more beams than built": (
        both(parameter("max_beam_width", "4"), parameter("decoding_mode", "beam_search")),
        {"engine-beam-width"},
    ),
    "no paged context": (
        both(cases.engine(*BUILT, "use_paged_context_fmha", value=False), parameter("enable_chunked_context", "false")),
        {"engine-paged-context"},
    ),
    "no paged context and reuse by default": (
        both(
            cases.engine(*BUILT, "use_paged_context_fmha", value=False),
            without("enable_chunked_context"),
            without("enable_kv_cache_reuse"),
        ),
        {"engine-paged-context"},
    ),
    "another release": (cases.engine("version", value="1.1.0"), {"engine-release"}),
    "an engine that states no release": (cases.engine("version", value=""), {"engine-release"}),
    "an engine of the old schema": (
        write("engine/config.json", '{"builder_config": {"tensor_parallel": 2, "pipeline_parallel": 1}, "plugin_config": {}}'),
        {"engine-generation", "engine-release"},
    ),
    "a rank that was not copied": (cases.remove("engine/rank1.engine"), {"engine-ranks"}),
    "a rank that was cut": (cases.cut_engine, {"engine-files"}),
    "an engine of no ranks": (cases.lose_engine, {"engine-files"}),
    "a rank too many": (write("engine/rank2.engine", "x"), {"engine-ranks"}),
    "ranks that do not multiply": (
        cases.engine("pretrained_config", "mapping", value={"tp_size": 2, "pp_size": 2, "world_size": 2}),
        {"engine-ranks"},
    ),
    "a checkpoint for an engine": (
        write("engine/config.json", '{"architecture": "LlamaForCausalLM", "mapping": {"world_size": 2}}'),
        {"engine-folder"},
    ),
    "an engine that is no JSON": (write("engine/config.json", "{"), {"engine-folder"}),
    "LoRA without the plugin": (parameter("lora_cache_max_adapter_size", "16"), {"engine-lora"}),
    "medusa without heads": (parameter("decoding_mode", "medusa"), {"engine-decoding"}),
    "weight streaming that was not built": (parameter("gpu_weights_percent", "0.5"), {"engine-decoding"}),
    "an encoder's cache without an encoder": (parameter("cross_kv_cache_fraction", "0.5"), {"cross-attention"}),
    "a pool below one sequence": (parameter("max_tokens_in_paged_kv_cache", "128"), {"kv-pool"}),
    "a pool of part of a block": (parameter("max_tokens_in_paged_kv_cache", "1000"), {"kv-pool"}),
    "more windows than layers": (parameter("max_attention_window_size", "1,2,3,4"), {"attention-window"}),
    "guided decoding without a tokenizer": (parameter("guided_decoding_backend", "xgrammar"), {"guided-decoding"}),
    # paths and tokenizers
    "a relative tokenizer": (
        both(*(parameter("tokenizer_dir", "tok", model) for model in ("preprocessing", "postprocessing"))),
        {"path-relative"},
    ),
    "a tokenizer on the hub": (
        both(*(parameter("tokenizer_dir", "org/model", model) for model in ("preprocessing", "postprocessing"))),
        {"path-relative"},
    ),
    "an engine that is nowhere": (parameter("gpt_model_path", "/does/not/exist"), {"path-missing"}),
    "a folder without a tokenizer": (cases.remove("checkpoint/tokenizer/tokenizer.json"), {"tokenizer"}),
    "a pointer for a tokenizer": (
        write("checkpoint/tokenizer/tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"),
        {"tokenizer"},
    ),
    "no end of an answer": (write("checkpoint/tokenizer/tokenizer_config.json", "{}"), {"tokenizer"}),
    "no chat template where one is used": (parameter("chat_template", "true", "preprocessing"), {"tokenizer"}),
    "no chat template for messages": (parameter("chat_template", "messages", "preprocessing"), {"tokenizer"}),
    "a tokenizer with code": (
        write("checkpoint/tokenizer/tokenizer_config.json", '{"eos_token": "e", "auto_map": {"AutoTokenizer": "t.T"}}'),
        {"remote-code"},
    ),
    # security
    "a template that reaches Python": (
        write("checkpoint/tokenizer/chat_template.jinja", "{{ ''.__class__.__mro__ }}"),
        {"chat-template"},
    ),
    "a template that changes the messages": (
        write("checkpoint/tokenizer/tokenizer_config.json", '{"eos_token": "e", "chat_template": "{{ messages.append(1) }}"}'),
        {"chat-template"},
    ),
    "a template without an end": (
        write("checkpoint/tokenizer/tokenizer_config.json", '{"eos_token": "e", "chat_template": [{"name": "x", "template": "{% for x in range(10**9) %}"}]}'),
        {"chat-template"},
    ),
    "remote code by a dictionary": (
        swap_in("repository/preprocessing/1/tokenizer.py", "annotations\n", 'annotations\nOPTIONS = {"trust_remote_code": True}\n'),
        {"remote-code"},
    ),
    "remote code in the Python models": (
        swap_in("repository/preprocessing/1/tokenizer.py", "trust_remote_code=False", "trust_remote_code=True"),
        {"remote-code"},
    ),
    "an open repository": (swap_in("serve.sh", "none", "explicit"), {"model-control"}),
    "an open repository in a compose file": (
        write("compose.yaml", 'services: {triton: {command: ["tritonserver", "--model-control-mode", "poll"]}}\n'),
        {"model-control"},
    ),
    "a privileged container": (write("run.sh", "docker run --privileged tritonserver\n"), {"privileged"}),
    "a member outside of the repository": (
        parameter("tensorrt_llm_model_name", "../../secret", "tensorrt_llm_bls"),
        {"model-name"},
    ),
    "a member that does not exist": (parameter("tensorrt_llm_model_name", "llama", "tensorrt_llm_bls"), {"bls-member"}),
    "code outside of the model": (
        add('default_model_filename: "../../evil.py"', "preprocessing"),
        {"file-name", "no-model-file"},
    ),
    "a label file outside of the model": (
        swap("postprocessing", 'output { name: "OUTPUT"', 'output { label_filename: "/etc/passwd" name: "OUTPUT"'),
        {"file-name"},
    ),
    "a link out of the repository": (
        cases.link("repository/preprocessing/1/words.py", "serve.sh"),
        {"link-leads-out", "python-code"},
    ),
    "no backend": (swap("tensorrt_llm", 'backend: "tensorrtllm"', ""), {"no-backend"}),
}  # fmt: skip

#: The same for a repository of the LLM API.
LLMAPI_MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    "the trap of the stock file": (swap("tensorrt_llm", "model_transaction_policy { decoupled: true }", ""), {"llmapi-differs"}),
    "batches of Triton's": (
        both(swap("tensorrt_llm", "max_batch_size: 0", "max_batch_size: 4"), swap_in("repository/tensorrt_llm/1/model.yaml", "max_batch_size: 0", "max_batch_size: 4")),
        {"llmapi-batch-size"},
    ),
    "an argument of early releases": (swap_in("repository/tensorrt_llm/1/model.yaml", "triton_config:", "pytorch_backend_config: {use_cuda_graph: true}\ntriton_config:"), {"llmapi-argument"}),
    "a misspelt argument": (swap_in("repository/tensorrt_llm/1/model.yaml", "triton_config:", "max_num_token: 5\ntriton_config:"), {"llmapi-argument"}),
    "code of the model's author": (swap_in("repository/tensorrt_llm/1/model.yaml", "triton_config:", "trust_remote_code: true\ntriton_config:"), {"remote-code"}),
    "fewer devices than ranks": (parameter("gpu_device_ids", "0"), {"llmapi-devices"}),
    "a model that is nowhere": (swap_in("repository/tensorrt_llm/1/model.yaml", "/checkpoint\n", "/nothing\n"), {"path-missing"}),
    "a model without a path": (swap_in("repository/tensorrt_llm/1/model.yaml", "tokenizer: /", "tokenizer: ./"), {"path-relative"}),
}  # fmt: skip

#: The same for a repository with a draft model.
DRAFT_MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    "the target drafts for itself": (
        both(parameter("tensorrt_llm_draft_model_name", "tensorrt_llm", "tensorrt_llm_bls"), cases.remove("repository/tensorrt_llm_draft")),
        {"draft-model"},
    ),
    "a draft model that answers otherwise": (
        swap("tensorrt_llm_draft", "decoupled: true", "decoupled: false"),
        {"draft-model"},
    ),
    "more draft tokens than the engine takes": (parameter("max_draft_len", "5", "tensorrt_llm_bls"), {"draft-model"}),
    "logits that nobody gives": (
        cases.engine("build_config", "gather_generation_logits", value=False, of="draft/engine"),
        {"draft-model"},
    ),
    "a draft model that is not there": (cases.remove("repository/tensorrt_llm_draft"), {"bls-member"}),
    "a draft model that nobody calls": (without("tensorrt_llm_draft_model_name", "tensorrt_llm_bls"), {"draft-unused", "devices-overlap"}),
    "another vocabulary": (
        both(
            cases.engine("pretrained_config", "vocab_size", value=128),
            cases.engine("pretrained_config", "vocab_size", value=96, of="draft/engine"),
        ),
        {"draft-engines"},
    ),
    "a target without draft tokens": (
        both(cases.engine("build_config", "max_draft_len", value=0), cases.engine("build_config", "speculative_decoding_mode", value=1)),
        {"draft-engines"},
    ),
    "a draft model that speculates": (
        cases.engine("build_config", "speculative_decoding_mode", value=32, of="draft/engine"),
        {"draft-engines"},
    ),
    "no reuse in the draft model": (
        parameter("enable_kv_cache_reuse", "false", "tensorrt_llm_draft"),
        {"draft-reuse"},
    ),
}  # fmt: skip

#: Sections of trtbuild.yaml for every kind of repository that is rendered.
GOOD: dict[str, dict[str, Any]] = {
    "reference": {},
    "reference, not streamed": {"serving": {"streaming": False}},
    "reference, chat and texts": {"serving": {"stop_words": ["{%", 'a"b', "${x}"]}},
    "reference, instances": {"serving": {"preprocessing_instances": 3, "bls_instances": 5}},
    "engine": {"target": "tensorrt", "tensorrt_llm": "1.2.1"},
    "engine, release from the engine": {"target": "tensorrt"},
    "engine, not streamed": {"target": "tensorrt", "serving": {"streaming": False}},
    "engine, smaller batch": {"target": "tensorrt", "limits": {"max_batch_size": 4}},
    "engine, no reuse": {"target": "tensorrt", "kv_cache": {"enable_block_reuse": False}, "scheduling": {"chunked_context": False}},
    "engine, cache on the host": {"target": "tensorrt", "kv_cache": {"host_cache_bytes": 1 << 30, "max_attention_window": [64, 128]}},
    "engine, max_utilization": {"target": "tensorrt", "scheduling": {"policy": "max_utilization"}},
    "engine, draft model": {
        "draft": {}, "target": "tensorrt", "tensorrt_llm": "1.2.1", "speculative": {"mode": "draft_target"}, "serving": {"mode": "orchestrator"},
    },
    "llmapi": {"target": "pytorch"},
    "llmapi, not streamed": {"target": "pytorch", "serving": {"streaming": False}},
    "llmapi 1.0": {"target": "pytorch", "tensorrt_llm": "1.0.0"},
    "llmapi, two ranks": {"target": "pytorch", "parallel": {"tp_size": 2}},
}  # fmt: skip
#: Good repository -> mistakes that are made in it.
MUTATIONS = {"engine": ENGINE_MUTATIONS, "llmapi, two ranks": LLMAPI_MUTATIONS, "engine, draft model": DRAFT_MUTATIONS}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a function that gives a good repository, made once."""
    made: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in made:
            made[name] = cases.make(tmp_path_factory.mktemp("good"), **GOOD[name])
        return made[name]

    return get


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_a_good_repository(good: Callable[[str], Case], name: str) -> None:
    report = check(good(name).repository)
    assert report.findings == ()
    assert report.notes == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, table in MUTATIONS.items() for name in table],
)
def test_a_mistake_is_found_under_its_name(good: Callable[[str], Case], tmp_path: Path, kind: str, name: str) -> None:
    mutate, rules = MUTATIONS[kind][name]
    case = cases.copy(good(kind), tmp_path)
    mutate(case)
    report = check(case.repository, release=find_release("1.2.1"))
    assert {finding.rule for finding in report.findings} == rules, report.findings
    assert all(finding.message and finding.fix and finding.file for finding in report.findings)


def test_every_rule_is_tried() -> None:
    tables: tuple[dict[str, Any], ...] = (REFERENCE_MUTATIONS, *MUTATIONS.values(), MORE, MORE_LLMAPI)
    assert {rule for table in tables for _, rules in table.values() for rule in rules} == set(RULES)


def test_a_system_prompt_may_hold_anything(good: Callable[[str], Case], tmp_path: Path) -> None:
    case = cases.copy(good("reference"), tmp_path)
    parameter("system_prompt", "Fill ${this} and {{ that }}", "preprocessing")(case)
    assert check(case.repository).findings == ()


def test_a_rank_that_opens_no_port_may_be_told_what_to_load(good: Callable[[str], Case], tmp_path: Path) -> None:
    case = cases.copy(good("engine"), tmp_path)
    write("serve.sh", "mpirun -n 1 tritonserver : -n 1 tritonserver --model-control-mode=explicit --load-model=a\n")(
        case
    )
    assert [(each.rule, each.severity) for each in check(case.repository).findings] == [("model-control", "warning")]
    closed = "--allow-http=false --allow-grpc=false"
    write("serve.sh", f"mpirun -n 1 tritonserver : -n 1 tritonserver --model-control-mode=explicit {closed}\n")(case)
    assert check(case.repository).findings == ()
    write("serve.sh", f"mpirun -n 1 tritonserver --model-control-mode=poll : -n 1 tritonserver {closed}\n")(case)
    assert [each.rule for each in check(case.repository).findings] == ["model-control"]
    write("serve.sh", "# never: tritonserver --model-control-mode=explicit\ntritonserver\n")(case)
    assert check(case.repository).findings == ()


def test_a_model_that_triton_completes_by_itself_needs_no_configuration(tmp_path: Path) -> None:
    for name, file in (("onnx", "model.onnx"), ("script", "model.py")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / file).write_text("")
    (tmp_path / "script" / "config.pbtxt").write_text('input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }')
    assert check(tmp_path).findings == ()


def test_the_launch_files_that_come_with_trtbuild_are_clean(good: Callable[[str], Case], tmp_path: Path) -> None:
    case, docker = cases.copy(good("engine"), tmp_path), Path(__file__).parents[3] / "docker"
    copied = [
        file for file in docker.rglob("*") if file.is_file() and ("compose" in file.name or "ockerfile" in file.name)
    ]
    assert len(copied) > 1
    for file in copied:
        (case.root / file.name).write_bytes(file.read_bytes())
    assert check(case.repository).findings == ()
