"""Mistakes that were seeded after the rules were written: each is found, under these names and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.repo import lint_cases as cases
from tests.unit.repo.lint_cases import Case, Mutation, add, both, parameter, swap, swap_in, without, write

from trtbuild.repo.lint import check
from trtbuild.trtllm.versions import find_release

YAML = "repository/tensorrt_llm/1/model.yaml"
BUILT = ("build_config", "plugin_config")


def every(old: str, new: str) -> Mutation:
    """Return a mutation that replaces a text in every config.pbtxt that has it."""

    def mutate(case: Case) -> None:
        files = [file for file in case.repository.glob("*/config.pbtxt") if old in file.read_text()]
        assert files, old
        for file in files:
            file.write_text(file.read_text().replace(old, new))

    return mutate


def cut(name: str, share: float = 0.5) -> Mutation:
    """Return a mutation that keeps the first part of a file, as an interrupted copy does."""

    def mutate(case: Case) -> None:
        content = (case.root / name).read_bytes()
        (case.root / name).write_bytes(content[: int(len(content) * share)])

    return mutate


def move(old: str, new: str) -> Mutation:
    """Return a mutation that renames a file or a folder below the root."""

    def mutate(case: Case) -> None:
        (case.root / old).rename(case.root / new)

    return mutate


def folder(name: str) -> Mutation:
    """Return a mutation that makes a folder below the root."""

    def mutate(case: Case) -> None:
        (case.root / name).mkdir(parents=True)

    return mutate


def point(key: str, to: str, model: str = "tensorrt_llm") -> Mutation:
    """Return a mutation that sets a parameter to a place below the root."""

    def mutate(case: Case) -> None:
        parameter(key, str(case.root / to), model)(case)

    return mutate


def docker(options: str) -> Mutation:
    """Return a mutation that writes a script which starts a container with options."""
    return write(
        "run.sh",
        f"docker run --gpus all {options} \\\n  tritonserver tritonserver --model-repository=/models/repository\n",
    )


ENGINE: dict[str, tuple[Mutation, set[str]]] = {
    # text and files
    "a list that ends with a comma": (swap("ensemble", "dims: [ -1 ]", "dims: [ -1, ]"), {"syntax"}),
    "a comment of C": (add("// served since March", "postprocessing"), {"syntax"}),
    "a boolean in quotes": (swap("tensorrt_llm", "decoupled: true", 'decoupled: "true"'), {"syntax"}),
    "quotation marks of a word processor": (swap("ensemble", 'platform: "ensemble"', "platform: “ensemble”"), {"syntax"}),
    "a field twice": (add("max_batch_size: 16", "preprocessing"), {"syntax"}),
    "half a file": (cut("repository/tensorrt_llm/config.pbtxt"), {"syntax"}),
    "a number without quotes": (swap("preprocessing", 'string_value: "128"', "string_value: 128"), {"syntax"}),
    "a value of another kind": (swap("preprocessing", 'string_value: "128"', "int_value: 128"), {"syntax"}),
    "dynamic batching of an ensemble": (add("dynamic_batching { }", "ensemble"), {"syntax"}),
    "a negative queue": (swap("preprocessing", "max_queue_size: 0", "max_queue_size: -1"), {"syntax"}),
    "a name in capitals": (swap("postprocessing", 'name: "postprocessing"', 'name: "Postprocessing"'), {"name-differs"}),
    "a version with a leading zero": (move("repository/ensemble/1", "repository/ensemble/01"), {"no-version"}),
    "a policy for a version that is not there": (add("version_policy { specific { versions: [ 2 ] } }", "postprocessing"), {"no-version"}),
    "notes among the models": (folder("repository/docs"), {"stray-folder"}),
    "checkpoints of a notebook": (folder("repository/.ipynb_checkpoints"), {"stray-folder"}),
    "a misspelt backend": (swap("preprocessing", 'backend: "python"', 'backend: "pyhton"'), {"no-backend"}),
    "the library's name for the backend": (swap("tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "tensorrt_llm"'), {"no-backend"}),
    "a misspelt platform": (swap("ensemble", 'platform: "ensemble"', 'platform: "ensembles"'), {"no-backend"}),
    "an ensemble without its platform": (swap("ensemble", 'platform: "ensemble"', ""), {"no-backend"}),
    "an ensemble without steps": (
        write("repository/ensemble/config.pbtxt", 'platform: "ensemble"\nmax_batch_size: 16\n'), {"ensemble-steps"},
    ),
    # code
    "half a module": (cut("repository/preprocessing/1/words.py", 0.62), {"python-code"}),
    "an empty model.py": (cut("repository/postprocessing/1/model.py", 0), {"python-code"}),
    "a class of another name": (swap_in("repository/postprocessing/1/model.py", "class TritonPythonModel", "class Model"), {"python-code"}),
    "a module that was not copied": (cases.remove("repository/tensorrt_llm_bls/1/answer.py"), {"rendered-file"}),
    # what else lies there
    "a dead link among the models": (cases.dead_link("repository/dangling"), {"dead-link"}),
    "a link to itself": (cases.dead_link("repository/loop", "loop"), {"dead-link"}),
    "a dead link for a version": (cases.dead_link("repository/preprocessing/9"), {"dead-link"}),
    "a dead link in a version": (cases.dead_link("repository/preprocessing/1/data"), {"dead-link"}),
    "a cut manifest": (write("repository/manifest.json", "{"), {"manifest-damaged"}),
    "a manifest that is a list": (write("repository/manifest.json", "[]"), {"manifest-damaged"}),
    "a manifest of another schema": (swap_in("repository/manifest.json", '"schema_version": 1', '"schema_version": 9'), {"manifest-damaged"}),
    # parameters
    "a decimal comma": (parameter("kv_cache_free_gpu_mem_fraction", "0,9"), {"parameter-value"}),
    "a space behind a word": (parameter("batch_scheduler_policy", "guaranteed_no_evict "), {"parameter-value"}),
    "a key in capitals": (both(without("gpt_model_type"), parameter("GPT_MODEL_TYPE", "inflight_fused_batching")), {"unknown-parameter", "missing-parameter"}),
    "a window below nothing": (parameter("max_attention_window_size", "-1"), {"parameter-value"}),
    "a vocabulary in words": (parameter("vocab_size", "32k", "preprocessing"), {"parameter-value"}),
    "stop words that are no list": (parameter("stop_words", "END", "tensorrt_llm_bls"), {"parameter-value"}),
    "a longer prompt than the engine takes": (parameter("max_seq_len", "4096", "preprocessing"), {"engine-limits"}),
    "another vocabulary than the engine's": (cases.engine("pretrained_config", "vocab_size", value=512), {"engine-limits"}),
    "BLS that calls itself": (parameter("tensorrt_llm_model_name", "tensorrt_llm_bls", "tensorrt_llm_bls"), {"bls-member"}),
    "BLS that calls the ensemble": (parameter("tensorrt_llm_model_name", "ensemble", "tensorrt_llm_bls"), {"bls-member"}),
    "a decoupled preprocessing": (add("model_transaction_policy { decoupled: true }", "preprocessing"), {"decoupled-differs"}),
    # queues and tensors, as in the tests of NVIDIA's server
    "a priority that the queue does not have": (swap("preprocessing", "dynamic_batching {", "dynamic_batching { priority_levels: 3 default_priority_level: 4"), {"queue-policy"}),
    "a policy for a priority that is not there": (
        swap("preprocessing", "dynamic_batching {", "dynamic_batching { priority_levels: 3 default_priority_level: 2 priority_queue_policy { key: 0 value: { } }"), {"queue-policy"},
    ),
    "an order among priorities": (
        swap("preprocessing", "dynamic_batching {", "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1"), {"queue-policy"},
    ),
    "a control without values": (
        swap("postprocessing", "dynamic_batching { }", 'sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START } } }'), {"sequence-control"},
    ),
    "a control of two kinds": (
        swap(
            "postprocessing", "dynamic_batching { }",
            'sequence_batching { control_input { name: "X" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } } }',
        ),
        {"sequence-control"},
    ),
    "a batched input of nobody": (
        add('batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "QUESTION" }', "preprocessing"), {"batch-tensor"},
    ),
    "a batched output of nobody": (
        add('batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "n" source_input: "QUERY" }', "preprocessing"), {"batch-tensor"},
    ),
    "a reshape to more": (swap("tensorrt_llm_bls", 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ]', 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] reshape { shape: [ 2 ] }'), {"tensor-reshape"}),
    "a reshape to nothing": (swap("tensorrt_llm_bls", 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ]', 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] reshape { shape: [ 0 ] }'), {"tensor-reshape"}),
    "a GPU below zero": (swap("postprocessing", "count: 1 kind: KIND_CPU", "count: 1 kind: KIND_GPU gpus: [ -1 ]"), {"instance-kind"}),
    "an optimization of an ensemble": (add("optimization { priority: PRIORITY_MAX }", "ensemble"), {"ensemble-scheduling"}),
    "a wire to nowhere": (
        swap("ensemble", 'output_map { key: "INPUT_ID"', 'output_map { key: "PIXEL_VALUES" value: "_PIXELS" }\n    output_map { key: "INPUT_ID"'), {"ensemble-unused"},
    ),
    "a step that waits for itself": (
        swap("ensemble", 'key: "input_lengths" value: "_REQUEST_INPUT_LEN"', 'key: "input_lengths" value: "_SEQUENCE_LENGTH"'),
        {"ensemble-steps", "ensemble-unused", "ensemble-crossed"},
    ),
    # instances and GPUs
    "GPUs beside KIND_CPU": (swap("postprocessing", "count: 1 kind: KIND_CPU", "count: 1 kind: KIND_CPU gpus: [ 0 ]"), {"instance-kind"}),
    "ids of the machine where the server counts anew": (
        both(parameter("gpu_device_ids", "4,5"), write("start.sh", "CUDA_VISIBLE_DEVICES=4,5 mpirun -n 2 tritonserver --model-repository repository\n")),
        {"devices-missing"},
    ),
    "more ranks than GPUs of a container": (
        write("start.sh", "docker run --gpus '\"device=3\"' tritonserver --model-repository=/models/repository\n"), {"devices-missing"},
    ),
    # tensors
    "ids of the answer in 64 bits": (
        swap("tensorrt_llm", 'name: "output_ids" data_type: TYPE_INT32', 'name: "output_ids" data_type: TYPE_INT64'), {"tensor-differs", "ensemble-datatype"},
    ),
    "no ids of the answer": (
        swap("tensorrt_llm", 'output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }', ""), {"missing-tensor", "ensemble-tensor"},
    ),
    "a temperature that everybody must send": (
        swap("tensorrt_llm", 'name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [] } optional: true', 'name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [] }'),
        {"tensor-differs", "ensemble-optional"},
    ),
    "a seed that everybody must send to BLS": (
        swap("tensorrt_llm_bls", 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true', 'name: "seed" data_type: TYPE_UINT64 dims: [ 1 ]'), {"tensor-differs"},
    ),
    "lengths of BLS in 64 bits": (swap("tensorrt_llm_bls", 'name: "max_tokens" data_type: TYPE_INT32', 'name: "max_tokens" data_type: TYPE_INT64'), {"tensor-differs"}),
    "a BLS model without a prompt": (
        swap("tensorrt_llm_bls", 'input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }', ""), {"missing-tensor"},
    ),
    # wires
    "penalties crossed": (
        both(
            swap("ensemble", 'key: "presence_penalty" value: "presence_penalty"', 'key: "presence_penalty" value: "x"'),
            swap("ensemble", 'key: "frequency_penalty" value: "frequency_penalty"', 'key: "frequency_penalty" value: "presence_penalty"'),
            swap("ensemble", 'key: "presence_penalty" value: "x"', 'key: "presence_penalty" value: "frequency_penalty"'),
        ),
        {"ensemble-crossed"},
    ),
    "a temperature for a length penalty": (
        swap("ensemble", 'key: "len_penalty" value: "length_penalty"', 'key: "len_penalty" value: "temperature"'), {"ensemble-crossed"},
    ),
    "bad words for stop words": (
        both(swap("ensemble", 'value: "bad_words"', 'value: "x"'), swap("ensemble", 'value: "stop_words"', 'value: "bad_words"'), swap("ensemble", 'value: "x"', 'value: "stop_words"')),
        {"ensemble-crossed"},
    ),
    "ids of bad words for those of stop words": (
        both(
            swap("ensemble", 'key: "bad_words_list" value: "_BAD_WORDS_IDS"', 'key: "bad_words_list" value: "_STOP_WORDS_IDS"'),
            swap("ensemble", 'key: "stop_words_list" value: "_STOP_WORDS_IDS"', 'key: "stop_words_list" value: "_BAD_WORDS_IDS"'),
        ),
        {"ensemble-crossed"},
    ),
    "the end for padding": (
        both(swap("ensemble", 'key: "END_ID" value: "end_id"', 'key: "END_ID" value: "pad_id"'), swap("ensemble", 'key: "PAD_ID" value: "pad_id"', 'key: "PAD_ID" value: "end_id"')),
        {"ensemble-crossed"},
    ),
    "a rate for a sum": (
        both(
            swap("ensemble", 'key: "cum_log_probs" value: "cum_log_probs"', 'key: "cum_log_probs" value: "x"'),
            swap("ensemble", 'key: "acceptance_rate" value: "acceptance_rate"', 'key: "acceptance_rate" value: "cum_log_probs"'),
            swap("ensemble", 'key: "cum_log_probs" value: "x"', 'key: "cum_log_probs" value: "acceptance_rate"'),
        ),
        {"ensemble-crossed"},
    ),
    "a step of a version that is not there": (swap("ensemble", "model_version: -1", "model_version: 3"), {"ensemble-steps"}),
    "an ensemble in a circle": (
        write(
            "repository/ensemble/config.pbtxt",
            'platform: "ensemble" max_batch_size: 16 input { name: "a" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "b" data_type: TYPE_INT32 dims: [ 1 ] }'
            'ensemble_scheduling { step { model_name: "ensemble" model_version: -1 input_map { key: "a" value: "a" } output_map { key: "b" value: "b" } } }',
        ),
        {"ensemble-steps"},
    ),
    "a step that gives nothing": (swap("ensemble", 'output_map { key: "OUTPUT" value: "text_output" }', ""), {"ensemble-steps", "ensemble-unused"}),
    # engine and paths
    "a rank of zero bytes": (write("engine/rank1.engine", ""), {"engine-ranks"}),
    "a pointer for a rank": (write("engine/rank0.engine", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"), {"engine-ranks"}),
    "ranks in words": (cases.engine("pretrained_config", "mapping", value={"tp_size": "two"}), {"engine-folder"}),
    "a file of the engine for its folder": (point("gpt_model_path", "engine/config.json"), {"path-missing"}),
    "a file of the tokenizer for its folder": (
        both(*(point("tokenizer_dir", "checkpoint/tokenizer/tokenizer.json", model) for model in ("preprocessing", "postprocessing"))), {"path-missing"},
    ),
    "the checkpoint for the engine": (point("gpt_model_path", "checkpoint"), {"engine-folder"}),
    "half a tokenizer": (write("checkpoint/tokenizer/tokenizer.json", '{"model": {"vocab": {"a": 0,'), {"tokenizer"}),
    # launch files
    "ports for everybody": (docker("-p 8000:8000"), {"open-port"}),
    "ports on every address": (docker("--publish 0.0.0.0:8001:8001"), {"open-port"}),
    "ports of a compose file": (
        write("compose.yaml", 'services:\n  triton:\n    image: nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3\n    ports:\n      - "8000:8000"\n'), {"open-port"},
    ),
    "the machine's network": (docker("--network host"), {"open-port"}),
    "a repository that the container can write": (docker("-v ./repository:/models/repository"), {"writable-repository"}),
    "a mount that can be written": (docker("--mount type=bind,source=/srv,target=/models"), {"writable-repository"}),
    "the power over the machine": (docker("--cap-add SYS_ADMIN"), {"privileged"}),
    "Docker's socket": (docker("-v /var/run/docker.sock:/var/run/docker.sock:ro"), {"privileged"}),
    "one rank for an engine of two": (write("start.sh", "python3 launch_triton_server.py --world_size 1 --model_repo repository\n"), {"launch-ranks"}),
    "four ranks for an engine of two": (write("start.sh", "mpirun -n 4 \\\n  tritonserver --model-repository repository\n"), {"launch-ranks"}),
    "an image without TensorRT-LLM": (write("start.sh", "docker run nvcr.io/nvidia/tritonserver:26.07-py3 tritonserver\n"), {"launch-image"}),
    "an image of another release": (write("start.sh", "docker run nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3 tritonserver\n"), {"launch-image"}),
}  # fmt: skip

LLMAPI: dict[str, tuple[Mutation, set[str]]] = {
    "a key twice": (swap_in(YAML, "max_num_tokens:", "max_seq_len: 128\nmax_num_tokens:"), {"llmapi-differs"}),
    "a tab for spaces": (swap_in(YAML, "  decoupled: true", "\tdecoupled: true"), {"llmapi-differs"}),
    "a boolean that is a text": (swap_in(YAML, "decoupled: true", 'decoupled: "true"'), {"llmapi-differs"}),
    "ranks in words": (swap_in(YAML, "tensor_parallel_size: 2", "tensor_parallel_size: two"), {"llmapi-argument"}),
    "more than all memory": (swap_in(YAML, "free_gpu_memory_fraction: 0.9", "free_gpu_memory_fraction: 90"), {"llmapi-argument"}),
    "an unknown scheduler": (swap_in(YAML, "GUARANTEED_NO_EVICT", "NO_EVICT"), {"llmapi-argument"}),
    "settings that were not copied": (cases.remove(YAML), {"rendered-file"}),
    "an image without TensorRT-LLM": (write("start.sh", "docker run nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3 tritonserver\n"), {"launch-image"}),
    "a section for a value": (swap_in(YAML, "max_seq_len: 256", "max_seq_len: {}"), {"llmapi-argument"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a function that gives a good repository of a target, made once."""
    made: dict[str, Case] = {}
    sections = {"tensorrt": {"tensorrt_llm": "1.2.1"}, "pytorch": {"parallel": {"tp_size": 2}}}

    def get(target: str) -> Case:
        if target not in made:
            made[target] = cases.make(tmp_path_factory.mktemp("good"), target=target, **sections[target])
        return made[target]

    return get


@pytest.mark.parametrize(
    ("target", "name"), [("tensorrt", name) for name in ENGINE] + [("pytorch", name) for name in LLMAPI]
)
def test_a_mistake_is_found_under_its_name(good: Callable[[str], Case], tmp_path: Path, target: str, name: str) -> None:
    mutate, rules = (ENGINE if target == "tensorrt" else LLMAPI)[name]
    case = cases.copy(good(target), tmp_path)
    mutate(case)
    report = check(case.repository, release=find_release("1.2.1"))
    assert {finding.rule for finding in report.findings} == rules, report.findings
    assert all(finding.message and finding.fix and finding.file for finding in report.findings)


def test_a_dead_link_stops_triton_where_triton_itself_looks(tmp_path: Path) -> None:
    case = cases.make(tmp_path)
    for name in ("a", "preprocessing/a", "preprocessing/1/a"):
        cases.dead_link(f"repository/{name}")(case)
    cases.dead_link("repository/b", ".")(case)
    found = {each.file: each.severity for each in check(case.repository).findings if each.rule == "dead-link"}
    assert found == {"a": "error", "preprocessing/a": "error", "preprocessing/1/a": "warning"}


def test_a_link_is_looked_up_where_the_server_sees_it(tmp_path: Path) -> None:
    case = cases.make(tmp_path / "here")
    cases.dead_link("repository/ensemble/checkpoint", "/models/checkpoint")(case)
    cases.dead_link("repository/ensemble/gone", "/models/gone")(case)
    cases.dead_link("repository/ensemble/elsewhere", "/other/of/the/image")(case)
    report = check(case.repository, path_map=(str(case.root), "/models"), rules=["dead-link"])
    assert [each.file for each in report.findings] == ["ensemble/gone"]


def test_a_manifest_of_somebody_else_is_none_of_ours(tmp_path: Path) -> None:
    case = cases.make(tmp_path)
    write("repository/manifest.json", '{"name": "my models"}')(case)
    assert check(case.repository).findings == ()
