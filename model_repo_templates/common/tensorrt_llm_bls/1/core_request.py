"""Which tensor goes where: from a request of this model to preprocessing and to the core, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from serving import array

#: Inputs of this model -> inputs of preprocessing.
TO_PREPROCESSING = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "image_bytes_input": "IMAGE_BYTES",
    "image_url_input": "IMAGE_URL",
    "video_bytes_input": "VIDEO_BYTES",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}

#: Outputs of preprocessing -> inputs of the core.
FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}

#: Inputs of this model -> inputs of the core, handed on as they are. Both names are listed where a release changed one.
TO_CORE = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "temperature",
            "repetition_penalty",
            "min_tokens",
            "min_length",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "random_seed",
            "beam_width",
            "num_return_sequences",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "return_perf_metrics",
            "return_kv_cache_reuse_stats",
            "return_num_input_tokens",
            "return_num_output_tokens",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
        )
    },
}


def renamed_inputs(request: Any, names: dict[str, str]) -> list[Any]:
    """Return the inputs a request carries under the names of another model, with the shape they have on the wire."""
    given = ((target, array(request, name)) for name, target in names.items())
    return [pb_utils.Tensor(target, _on_the_wire(values)) for target, values in given if values is not None]


def renamed_outputs(response: Any, names: dict[str, str]) -> list[Any]:
    """Return the outputs a response carries under the names of another model."""
    given = ((target, output(response, name)) for name, target in names.items())
    return [pb_utils.Tensor(target, values) for target, values in given if values is not None]


def output(response: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Return an output tensor of a response, or None when it does not carry it."""
    tensor = pb_utils.get_output_tensor_by_name(response, name)
    return None if tensor is None else np.asarray(tensor.as_numpy())


def _on_the_wire(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Undo the reshape of config.pbtxt that makes [B] of a tensor of shape [B, 1]."""
    return values.reshape(-1, 1) if values.ndim == 1 else values
