"""SmoothQuant's plugin modes: the reference target computes what the kernels would with the integers of the files, and stays near the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import read_safetensors
from transformers import AutoConfig, AutoModelForCausalLM

from trtbuild.checkpoint_kinds import open_checkpoint
from trtbuild.names import SMOOTHQUANT_MODES
from trtbuild.reference.model import load_model

Cli = Callable[..., tuple[int, str, str]]
PLUGINS = [mode for mode in SMOOTHQUANT_MODES if mode != "per_channel"]
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 131,
    "max_position_embeddings": 256, "initializer_range": 0.1,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "attention_bias": True},
    "qwen2": {"num_key_value_heads": 2},
    "gemma": {"num_key_value_heads": 2, "head_dim": 16},
    "gpt2": {"n_inner": 96},
}
#: Mode -> how far logits may be from the source's, root mean square over that of the source's; tiny random models lose much.
LOSS = {"per_tensor": 0.12, "per_channel_per_token": 0.05, "per_channel_per_tensor": 0.1, "per_tensor_per_token": 0.08}
IDS = torch.randint(0, 131, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny random model of each kind, with channels that stand out, and the model itself."""
    torch.manual_seed(0)
    dropped = ("intermediate_size",) if request.param == "gpt2" else ()
    sizes = {key: value for key, value in SMALL.items() if key not in dropped}
    config = AutoConfig.for_model(request.param, **sizes, **FAMILIES[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
                parameter[5] *= 8
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    rows = "\n".join(f'{{"input_ids": {row.tolist()}}}' for row in IDS)
    (folder / "ids.jsonl").write_text(rows)
    return folder, model


def convert(cli: Cli, source: Path, mode: str, out: Path, *options: object) -> None:
    given = ("--quantization", "int8_smoothquant", "--smoothquant-mode", mode, "--calibration", source / "ids.jsonl")
    code, _, err = cli("convert", source, "-o", out, "--target", "tensorrt", *given, *options)
    assert code == 0, err
    assert cli("verify", out)[0] == 0


@pytest.mark.parametrize("mode", PLUGINS)
def test_logits_stay_near_the_source_whatever_the_cut(
    mode: str, source: tuple[Path, Any], cli: Cli, tmp_path: Path
) -> None:
    folder, model = source
    convert(cli, folder, mode, tmp_path / "one", "--dtype", "bfloat16")
    convert(cli, folder, mode, tmp_path / "four", "--dtype", "bfloat16", "--tp", "2", "--pp", "2")
    with torch.inference_mode():
        expected = model(IDS).logits
        one, four = (load_model(open_checkpoint(tmp_path / name))(IDS).logits for name in ("one", "four"))
    assert torch.equal(one, four)
    assert (one - expected).square().mean().sqrt() / expected.square().mean().sqrt() < LOSS[mode]


def kernel(inputs: np.ndarray, tensors: Mapping[str, np.ndarray], module: str, to_int: np.ndarray | None) -> np.ndarray:
    """Return what smooth_quant_gemm makes of smoothed inputs [tokens, in]: integers times integers, then both scales, then the bias.

    Written from the kernels' description, without the code under test; `to_int` None: each token has its own scale.
    """
    if to_int is None:
        scale = np.abs(inputs).max(axis=1, keepdims=True) / np.float32(127)
        codes = np.rint(inputs / scale)
    else:
        scale = tensors[f"{module}.act_scale"]
        codes = np.clip(np.rint(inputs * to_int), -128, 127)
    accumulator = codes.astype(np.int32) @ tensors[f"{module}.weight"].astype(np.int32).T
    outputs = accumulator.astype(np.float64) * scale * tensors[f"{module}.per_channel_scale"]
    bias = tensors.get(f"{module}.bias")
    return outputs if bias is None else outputs + bias.astype(np.float64)


@pytest.mark.parametrize("mode", PLUGINS)
def test_linears_compute_what_the_kernels_would(mode: str, source: tuple[Path, Any], cli: Cli, tmp_path: Path) -> None:
    folder, original = source
    convert(cli, folder, mode, tmp_path / "out", "--dtype", "float32")
    tensors = read_safetensors(tmp_path / "out" / "rank0.safetensors")
    layer = {
        name.removeprefix("transformer.layers.0."): value for name, value in tensors.items() if ".layers.0." in name
    }
    model = load_model(open_checkpoint(tmp_path / "out"))
    seen: dict[str, list[np.ndarray]] = {}

    def note(name: str) -> Callable[..., None]:
        # Handed to the model after its own hooks, so what a linear is given is caught at the modules around it.
        return lambda _module, given, output: seen.setdefault(name, []).extend(
            value.detach().reshape(-1, value.shape[-1]).numpy() for value in (given[0], output)
        )

    is_gpt = original.config.model_type == "gpt2"
    prefix = "transformer.h.0." if is_gpt else "model.layers.0."
    names = {
        "norm": "ln_2" if is_gpt else "post_attention_layernorm",
        "up": "mlp.c_fc" if is_gpt else "mlp.gate_proj",
        "act": "mlp.act" if is_gpt else "mlp.act_fn",
        "down": "mlp.c_proj" if is_gpt else "mlp.down_proj",
    }
    for key, name in names.items():
        model.get_submodule(prefix + name).register_forward_hook(note(key))
    if not is_gpt:
        model.get_submodule(f"{prefix}mlp.up_proj").register_forward_hook(note("other"))
    with torch.inference_mode():
        model(IDS)
    is_static = not mode.endswith("per_token")
    normed = seen["norm"][1]
    up = kernel(normed, layer, "mlp.fc", layer["post_layernorm.scale_to_int"] if is_static else None)
    np.testing.assert_allclose(seen["up"][1], up, rtol=1e-3, atol=1e-3 * np.abs(up).max())
    inner = seen["act"][1] * (1 if is_gpt else seen["other"][1])
    divided = inner / layer["mlp.proj.smoother"]
    down = kernel(divided, layer, "mlp.proj", layer["mlp.quantization_scaling_factor"] if is_static else None)
    np.testing.assert_allclose(seen["down"][1], down, rtol=1e-3, atol=1e-3 * np.abs(down).max())


def test_evaluate_compares_it_with_its_source(source: tuple[Path, Any], cli: Cli, tmp_path: Path) -> None:
    folder, _ = source
    convert(cli, folder, "per_channel_per_token", tmp_path / "out")
    given = ("--texts", folder / "ids.jsonl", "--json")
    code, out, err = cli("evaluate", tmp_path / "out", *given)
    assert code == 0, err
    assert '"quant_algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"' in out
