"""What a rank takes beside weights and KV cache: activations, logits, buffers, workspaces, graphs, the server's own.

Formulas and their grounds (checkpoint specification 7.1; peers D2). What an engine really takes is decided by TensorRT when it builds: there
is no formula for it. These are fits to published logs, all of TensorRT-LLM 0.11 to 0.17 on one GPU:

* activations + logits are what a log calls execution context memory. Llama-2-7B FP8 with 8192 tokens: 1134.01 MiB (memory
  documentation) is met to -1 %, 1112.00 MiB (0.11) to +1 %, 928.77 MiB (trtllm-bench, batch 4096) to +46 %; Qwen2-1.5B with INT4 weights,
  8192 tokens and batch 2048, 921.51 MiB (0.17) to 0 %. Where a log names no tokens or batch its release's defaults are assumed.
* runtime and decoder buffers are fitted to batch 4096, 4098 tokens, vocabulary 32000: 1.14 GB and 4.35 GB (trtllm-bench). The 43.29 and
  180.30 MB of the memory documentation name no batch; they would be one of 162 and of 175 requests, which agree within 8 %.
* CUDA context: what the memory documentation's log leaves of 79.10 - 70.48 GiB when all lines it prints are taken off: 776 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.dims import ModelDims
from trtbuild.limits import ResolvedLimits
from trtbuild.memory.lines import Line, Origin
from trtbuild.parallel import Parallel
from trtbuild.spec import Deployment

_MIB = 2**20
#: Bytes of an activation: models run in 16 bits.
_WIDTH = 2
#: Tensors of the hidden size that are alive at once, and what quantized inputs add to them, in bytes of a hidden number.
_HIDDEN_TENSORS = 2
_QUANTIZED_INPUT_BYTES = 20
#: Bytes per request and beam: per number of the vocabulary, and per token of max_seq_len.
_RUNTIME = (8, 12)
_DECODER = (32, 28)
#: All-reduce buffers of a rank (checkpoint specification 7.1, from TensorRT-LLM's source): unit size for tp <= 2 and above, and their number.
_ALL_REDUCE_UNITS = (16 * _MIB, 8 * _MIB)
_ALL_REDUCE_BUFFERS = 5
CONTEXT_BYTES = 776 * _MIB
#: Triton's defaults: --cuda-memory-pool-byte-size and --pinned-memory-pool-byte-size.
TRITON_POOL_BYTES = 64 * _MIB
PINNED_BYTES = 256 * _MIB
#: A captured graph's nodes per layer; inferred from what servers' logs show (0.3 to 1 GiB for 35 sizes), to a factor of three.
_GRAPH_LAYER_BYTES = 256 * 1024
#: What should be left when everything is allocated: less is known to fail in Triton (field report EB11).
RESERVE_FLOOR_BYTES = 2**30
_MOST_GRAPH_BATCH = 128
_LOGIT_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True)
class Situation:
    """What buffers depend on.

    Attributes:
        quantizes_inputs: whether linears round their inputs to 8 or 4 bits.
        layers: decoder layers of the rank.
    """

    deployment: Deployment
    dims: ModelDims
    parallel: Parallel
    limits: ResolvedLimits
    quantizes_inputs: bool
    layers: int


def activation_bytes_per_token(dims: ModelDims, tp_size: int, *, quantizes_inputs: bool) -> int:
    """Return the activation memory of one token of max_num_tokens: 2 bytes x (2 x intermediate / tp + 2 x hidden), and 20 x hidden if
    linears quantize their inputs. A token of a mixture of experts is there once for each expert it visits.
    """
    inner = -(-dims.intermediate_size // tp_size)
    hidden = _HIDDEN_TENSORS * dims.hidden_size
    if dims.num_experts:
        visited = dims.experts_per_token * (2 * -(-dims.moe_intermediate_size // tp_size) + hidden)
        inner = -(-dims.shared_expert_intermediate_size // tp_size)
        hidden += visited
    numbers = 2 * inner + hidden
    return _WIDTH * numbers + (_QUANTIZED_INPUT_BYTES * dims.hidden_size if quantizes_inputs else 0)


def graph_sizes(largest: int, *, padding: bool) -> list[int]:
    """Return the batch sizes that the PyTorch backend captures (LLM API specification 1.6)."""
    sizes = [1, 2, 4, *range(8, 129, 8)] if padding else [*range(1, 32), 32, 64, 128]
    size = 256
    while size < largest:
        sizes.append(size)
        size *= 2
    return sorted({*(size for size in sizes if size <= largest), largest})


def buffer_lines(it: Situation) -> list[Line]:
    """Return the lines of one rank, weights and KV cache excluded."""
    is_engine = it.deployment.target == "tensorrt"
    lines = [_activations(it), *_unfused_attention(it), _logits(it), *_prompt_logits(it), _runtime(it)]
    lines += [_decoder(it)] if is_engine else _graphs(it)
    return [*lines, *_all_reduce(it), *_server()]


def _origin(it: Situation, limit: str) -> Origin:
    return it.limits.origins[limit].origin


def _activations(it: Situation) -> Line:
    per_token = activation_bytes_per_token(it.dims, it.parallel.tp_size, quantizes_inputs=it.quantizes_inputs)
    tokens = it.limits.max_num_tokens
    inner = "2 x intermediate / tp + 2 x hidden"
    if it.dims.num_experts:
        shared = "2 x shared intermediate / tp + " if it.dims.shared_expert_intermediate_size else ""
        inner = f"{shared}2 x hidden + {it.dims.experts_per_token} experts of a token x (2 x expert intermediate / tp + 2 x hidden)"
    words = f"max_num_tokens {tokens:,} x {per_token:,} bytes: 2 bytes x ({inner})"
    words += ", and 20 x hidden for quantized inputs" if it.quantizes_inputs else ""
    return Line("activations", tokens * per_token, _origin(it, "max_num_tokens"), words)


def _unfused_attention(it: Situation) -> list[Line]:
    """Without fused attention the scores of a prompt are kept: quadratic in its length."""
    if it.deployment.target != "tensorrt" or it.deployment.engine.context_fmha:
        return []
    length = min(it.limits.max_input_len, it.limits.max_num_tokens)
    heads = -(-it.dims.num_attention_heads // it.parallel.tp_size)
    nbytes = _WIDTH * heads * it.limits.max_num_tokens * length
    words = "engine.context_fmha is off: scores of heads / tp x max_num_tokens x prompt length, 2 bytes"
    return [Line("attention scores", nbytes, "user", words)]


def _logits(it: Situation) -> Line:
    tokens = it.limits.max_batch_size * it.limits.max_beam_width * (it.limits.draft_len + 1)
    words = (
        f"max_batch_size x beams x (draft tokens + 1) {tokens:,} x vocabulary / tp x 2 bytes, in the execution context"
    )
    return Line("logits", tokens * _local_vocab(it) * _WIDTH, _origin(it, "max_batch_size"), words)


def _local_vocab(it: Situation) -> int:
    return -(-it.dims.vocab_size // it.parallel.tp_size)


def _prompt_logits(it: Situation) -> list[Line]:
    """Logits of every token of a step, where an engine hands out those of prompts (NVIDIA/TensorRT-LLM#3636)."""
    engine = it.deployment.engine
    if it.deployment.target != "tensorrt" or not engine.gather_context_logits:
        return []
    width = _LOGIT_BYTES[engine.logits_dtype or "float32"]
    words = f"engine.gather_context_logits: max_num_tokens x vocabulary x {width} bytes"
    return [Line("prompt logits", it.limits.max_num_tokens * it.dims.vocab_size * width, "user", words)]


def _runtime(it: Situation) -> Line:
    words = "requests x beams x (8 bytes x vocabulary + 12 bytes x max_seq_len): logits in float32, indices of blocks and beams"
    return Line("runtime buffers", _per_request(it, _RUNTIME), _origin(it, "max_batch_size"), words)


def _decoder(it: Situation) -> Line:
    words = "requests x beams x (32 bytes x vocabulary + 28 bytes x max_seq_len): sampling, penalties, stop words"
    return Line("decoder buffers", _per_request(it, _DECODER), _origin(it, "max_batch_size"), words)


def _per_request(it: Situation, per: tuple[int, int]) -> int:
    requests = it.limits.max_batch_size * it.limits.max_beam_width
    return requests * (per[0] * it.dims.vocab_size + per[1] * it.limits.max_seq_len)


def _graphs(it: Situation) -> list[Line]:
    if not it.deployment.llm_api.cuda_graphs:
        return []
    largest = min(it.limits.max_batch_size, _MOST_GRAPH_BATCH)
    sizes = graph_sizes(largest, padding=it.deployment.llm_api.cuda_graph_padding)
    words = f"{len(sizes)} captured batch sizes up to {largest} x {it.layers} layers x 256 KiB (to a factor of three)"
    return [Line("CUDA graphs", len(sizes) * it.layers * _GRAPH_LAYER_BYTES, "rule", words)]


def all_reduce_bytes(tp_size: int) -> int:
    """Return the bytes of a rank's all-reduce buffers; none without tensor parallelism."""
    if tp_size == 1:
        return 0
    return _ALL_REDUCE_UNITS[tp_size > 2] * tp_size * _ALL_REDUCE_BUFFERS


def _all_reduce(it: Situation) -> list[Line]:
    nbytes = all_reduce_bytes(it.parallel.tp_size)
    words = "five buffers x tp x 16 MiB up to tp 2, 8 MiB above"
    return [Line("all-reduce workspace", nbytes, "engine limit", words, "exact")] if nbytes else []


def _server() -> list[Line]:
    return [
        Line("CUDA context", CONTEXT_BYTES, "engine limit", "CUDA, its libraries and what no log names", "measured"),
        Line("Triton CUDA pool", TRITON_POOL_BYTES, "default", "--cuda-memory-pool-byte-size of tritonserver", "exact"),
    ]
