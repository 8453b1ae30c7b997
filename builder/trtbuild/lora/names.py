"""Hugging Face module names of adapters -> LoRA modules of TensorRT-LLM.

Source: TensorRT-LLM 0.11 to 1.2: `LoraManager.LORA_MODULE_IDS` (tensorrt_llm/lora_manager.py), the module table of
examples/hf_lora_convert.py, and ModuleType of cpp/include/tensorrt_llm/runtime/loraModule.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from trtbuild.errors import TrtbuildError
from trtbuild.lora.adapter import listed

#: LoRA module of TensorRT-LLM -> id, as far as `MODULES` leads to it.
IDS: dict[str, int] = {
    "attn_qkv": 0,
    "attn_q": 1,
    "attn_k": 2,
    "attn_v": 3,
    "attn_dense": 4,
    "mlp_h_to_4h": 5,
    "mlp_4h_to_h": 6,
    "mlp_gate": 7,
}
#: The last two parts of a module's name -> LoRA module. As everywhere in TensorRT-LLM, mlp_h_to_4h (fc) is Hugging Face's
#: gate_proj, which is activated, and mlp_gate is up_proj. A fused q, k, v must be stacked in this order.
MODULES: dict[str, str] = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "attn.c_attn": "attn_qkv",
    "self_attn.o_proj": "attn_dense",
    "self_attn.dense": "attn_dense",
    "attn.c_proj": "attn_dense",
    "mlp.gate_proj": "mlp_h_to_4h",
    "mlp.up_proj": "mlp_gate",
    "mlp.down_proj": "mlp_4h_to_h",
    "mlp.c_fc": "mlp_h_to_4h",
    "mlp.c_proj": "mlp_4h_to_h",
    "mlp.fc1": "mlp_h_to_4h",
    "mlp.fc2": "mlp_4h_to_h",
}
#: The prefetch code reads the name of a task's folder with std::stoi (batch_manager/peftCacheManager.cpp).
MAX_TASK_ID = 2**31 - 1
#: TensorRT-LLM enables the three of them together (`get_missing_qkv_modules`); an adapter may have fewer.
TOGETHER = ("attn_q", "attn_k", "attn_v")
_LAYER = re.compile(
    r"(?:model\.(?:language_model\.)?|language_model\.model\.|transformer\.)?(?:layers|h)\.([0-9]{1,6})\.(.+)"
)


def _part(*words: str) -> Callable[[str], bool]:
    return lambda name: not set(words).isdisjoint(name.split("."))


#: Why a module is refused; the first test that holds counts.
_REASONS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (_part("experts", "shared_expert", "shared_experts", "block_sparse_moe"), "modules of mixtures of experts"),
    (_part("gate_up_proj"), "gate and up in one module, whose order and id depend on the release of TensorRT-LLM"),
    (
        _part("query_key_value"),
        "q, k, v in one module, whose rows are interleaved in some models and stacked in others",
    ),
    (lambda name: _LAYER.fullmatch(name) is None, "modules outside of the decoder layers"),
    (lambda name: True, "modules without a LoRA id"),
)


def locate(modules: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return module name -> (layer, LoRA module of TensorRT-LLM).

    Raises:
        TrtbuildError: modules that have no id or whose layout is not certain; the message names them.
    """
    found: dict[str, tuple[int, str]] = {}
    refused: dict[str, list[str]] = {}
    for name in modules:
        match = _LAYER.fullmatch(name)
        if match is not None and match[2] in MODULES:
            found[name] = (int(match[1]), MODULES[match[2]])
        else:
            refused.setdefault(next(why for test, why in _REASONS if test(name)), []).append(name)
    for why, names in refused.items():
        raise TrtbuildError(
            f"the adapter changes {why}: {listed(names)}",
            hint=f"served are {', '.join(MODULES)} of decoder layers; an adapter of other modules can be merged into the model",
        )
    return found


def target_modules(names: Iterable[str]) -> list[str]:
    """Return what `trtllm-build --lora_target_modules` needs for these LoRA modules, in the order of `IDS`."""
    wanted = set(names)
    if not wanted.isdisjoint(TOGETHER):
        wanted.update(TOGETHER)
    return [name for name in IDS if name in wanted]
