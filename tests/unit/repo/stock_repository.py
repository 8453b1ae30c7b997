"""NVIDIA's inflight_batcher_llm as it lies in the container, written from the specification: every value is a placeholder (Triton specification 1.1 to 1.8)."""

from __future__ import annotations

from pathlib import Path

from trtbuild.trtllm.backend_parameters import WITHOUT_PLACEHOLDER, parameters_of
from trtbuild.trtllm.tensors import ENGINE_MODELS, LLMAPI, Signature, Tensor
from trtbuild.trtllm.versions import Release

BATCHES = "max_batch_size: ${triton_max_batch_size}"
QUEUE = """dynamic_batching {
    preferred_batch_size: [ ${triton_max_batch_size} ]
    max_queue_delay_microseconds: ${max_queue_delay_microseconds}
    default_queue_policy: { max_queue_size: ${max_queue_size} }
}"""
DECOUPLED = "model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}"
CHOSEN = {"LOGITS": "${logits_datatype}", "FEATURES": "${encoder_input_features_data_type}", "PROMPT": "${prompt_embedding_table_data_type}"}  # fmt: skip
_BEHIND = {"gpt_model_path": "${engine_dir}"}
_PREPROCESSING = ("tokenizer_dir", "add_special_tokens", "multimodal_model_path", "gpt_model_path", "max_num_images")
_BLS = ("accumulate_tokens", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name")
#: What the README tells a user to fill (Triton specification 1.7, "documented as mandatory").
MANDATORY = {
    "triton_max_batch_size": "16", "max_queue_delay_microseconds": "0", "max_queue_size": "0", "preprocessing_instance_count": "1",
    "postprocessing_instance_count": "1", "bls_instance_count": "1", "decoupled_mode": "True", "logits_datatype": "TYPE_FP32",
    "encoder_input_features_data_type": "TYPE_FP16", "prompt_embedding_table_data_type": "TYPE_FP16", "triton_backend": "tensorrtllm",
    "batching_strategy": "inflight_fused_batching",
}  # fmt: skip


def tensor(side: str, each: Tensor) -> str:
    """Return a declaration in the style of the stock files."""
    dtype = CHOSEN.get(each.dtype, f"TYPE_{each.dtype}")
    flags = "    reshape: { shape: [ ] }\n" if each.scalar else ""
    flags += "    optional: true\n" if each.optional else ""
    flags += "    allow_ragged_batch: true\n" if each.ragged else ""
    dims = ", ".join(map(str, each.dims))
    return f'{side} [\n  {{\n    name: "{each.name}"\n    data_type: {dtype}\n    dims: [ {dims} ]\n{flags}  }}\n]\n'


def parameter(key: str, value: str) -> str:
    """Return a parameter in the style of the stock files."""
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'


def write_stock(folder: Path, release: Release) -> Path:
    """Write the five models as a release has them."""
    instances = "instance_group [\n    {{\n        count: {count}\n        kind : KIND_CPU\n    }}\n]"
    heads = {
        "preprocessing": ['backend: "python"', BATCHES, QUEUE],
        "tensorrt_llm": ['backend: "${triton_backend}"', BATCHES, DECOUPLED, QUEUE],
        "postprocessing": ['backend: "python"', BATCHES, "dynamic_batching {}"],
        "ensemble": ['platform: "ensemble"', BATCHES],
        "tensorrt_llm_bls": ['backend: "python"', BATCHES, DECOUPLED],
    }
    counts = {
        "preprocessing": "${preprocessing_instance_count}",
        "tensorrt_llm": "1",
        "postprocessing": "${postprocessing_instance_count}",
        "tensorrt_llm_bls": "${bls_instance_count}",
    }
    tails = {
        "preprocessing": [parameter(key, _BEHIND.get(key, f"${{{key}}}")) for key in _PREPROCESSING],
        "tensorrt_llm": _core(release),
        "postprocessing": [parameter(key, f"${{{key}}}") for key in ("tokenizer_dir", "skip_special_tokens")],
        "ensemble": [_steps(release)],
        "tensorrt_llm_bls": [parameter(key, f"${{{key}}}") for key in _BLS],
    }
    for model, signature in ENGINE_MODELS.items():
        (folder / model / "1").mkdir(parents=True)
        group = [instances.format(count=counts[model])] if model in counts else []
        tensors = _tensors(signature, release)
        if model == "ensemble":  # the stock file lists it twice
            tensors += tensor("output", signature.of(release, "output")["kv_cache_alloc_total_blocks"])
        text = "\n".join([f'name: "{model}"', *heads[model], tensors, *tails[model], *group])
        (folder / model / "config.pbtxt").write_text(f"# Copyright of somebody\n\n{text}\n")
        if model != "ensemble":
            trust = "tokenizer = load(trust_remote_code=True)\n" if model in ("preprocessing", "postprocessing") else ""
            (folder / model / "1" / "model.py").write_text(f"{trust}\nclass TritonPythonModel: ...\n")
    return folder


def write_llmapi(folder: Path, release: Release, *, decoupled: bool) -> Path:
    """Write the stock model of the LLM API, which says in model.yaml alone how it is served (Triton specification 2.1, 2.2)."""
    (folder / "tensorrt_llm" / "1").mkdir(parents=True)
    group = "instance_group [\n  {\n    count: 1\n    kind: KIND_CPU\n  }\n]\n"
    head = 'name: "tensorrt_llm"\nbackend: "python"\n'
    (folder / "tensorrt_llm" / "config.pbtxt").write_text(head + _tensors(LLMAPI, release) + group)
    (folder / "tensorrt_llm" / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (folder / "tensorrt_llm" / "1" / "model.yaml").write_text(
        "model: TinyLlama/TinyLlama-1.1B-Chat-v1.0\nbackend: pytorch\ntensor_parallel_size: 1\n"
        f"triton_config:\n  max_batch_size: 0\n  decoupled: {decoupled}\n"
    )
    return folder


def fill(folder: Path, values: dict[str, str]) -> None:
    """Fill placeholders as NVIDIA's fill_template.py does: the others stay."""
    for file in folder.glob("*/config.pbtxt"):
        text = file.read_text()
        for name, value in values.items():
            text = text.replace(f"${{{name}}}", value)
        file.write_text(text)


def _core(release: Release) -> list[str]:
    worker = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    written = [parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no"), parameter("executor_worker_path", worker)]
    return written + [
        parameter(each.name, f"${{{each.placeholder or each.name}}}")
        for each in parameters_of(release)
        if each.name not in WITHOUT_PLACEHOLDER
    ]


def _tensors(signature: Signature, release: Release) -> str:
    inputs = [tensor("input", each) for each in signature.of(release, "input").values()]
    return "".join(inputs + [tensor("output", each) for each in signature.of(release, "output").values()])


def _steps(release: Release) -> str:
    """Return the wiring of Triton specification 1.4."""
    outer = ENGINE_MODELS["ensemble"]
    core = ENGINE_MODELS["tensorrt_llm"]
    into = {
        "QUERY": "text_input", "DECODER_QUERY": "decoder_text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "BAD_WORDS_DICT": "bad_words",
        "STOP_WORDS_DICT": "stop_words", "EMBEDDING_BIAS_WORDS": "embedding_bias_words", "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
        "END_ID": "end_id", "PAD_ID": "pad_id", "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
    }  # fmt: skip
    made = {
        "INPUT_ID": "_INPUT_ID", "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN", "DECODER_INPUT_ID": "_DECODER_INPUT_ID",
        "REQUEST_DECODER_INPUT_LEN": "_REQUEST_DECODER_INPUT_LEN", "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
        "BAD_WORDS_IDS": "_BAD_WORDS_IDS", "STOP_WORDS_IDS": "_STOP_WORDS_IDS", "EMBEDDING_BIAS": "_EMBEDDING_BIAS",
        "OUT_END_ID": "_PREPROCESSOR_END_ID", "OUT_PAD_ID": "_PREPROCESSOR_PAD_ID", "OUT_PROMPT_TABLE_EXTRA_IDS": "_OUT_PROMPT_TABLE_EXTRA_IDS",
    }  # fmt: skip
    taken = {
        "input_ids": "_INPUT_ID", "input_lengths": "_REQUEST_INPUT_LEN", "decoder_input_ids": "_DECODER_INPUT_ID",
        "decoder_input_lengths": "_REQUEST_DECODER_INPUT_LEN", "request_output_len": "_REQUEST_OUTPUT_LEN",
        "bad_words_list": "_BAD_WORDS_IDS", "stop_words_list": "_STOP_WORDS_IDS", "embedding_bias": "_EMBEDDING_BIAS",
        "end_id": "_PREPROCESSOR_END_ID", "pad_id": "_PREPROCESSOR_PAD_ID", "prompt_table_extra_ids": "_OUT_PROMPT_TABLE_EXTRA_IDS",
        "runtime_top_k": "top_k", "runtime_top_p": "top_p", "len_penalty": "length_penalty", "streaming": "stream",
    }  # fmt: skip
    inputs, outputs = outer.of(release, "input"), outer.of(release, "output")
    taken |= {name: name for name in core.of(release, "input") if name in inputs and name not in taken}
    given = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    given |= {name: name for name in core.of(release, "output") if name in outputs}
    steps = [
        _step("preprocessing", into, made),
        _step("tensorrt_llm", taken, given),
        _step("postprocessing", {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"}, {"OUTPUT": "text_output"}),
    ]  # fmt: skip
    return "ensemble_scheduling {\n  step [\n" + ",\n".join(steps) + "\n  ]\n}"


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [
        f'      input_map {{\n        key: "{key}"\n        value: "{name}"\n      }}' for key, name in inputs.items()
    ]
    maps += [
        f'      output_map {{\n        key: "{key}"\n        value: "{name}"\n      }}' for key, name in outputs.items()
    ]
    return f'    {{\n      model_name: "{model}"\n      model_version: -1\n' + "\n".join(maps) + "\n    }"
