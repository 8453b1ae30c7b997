"""Calibration data and what is observed with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import read_safetensors, write_safetensors

from trtbuild.convert.opening import OpenedSource
from trtbuild.convert.plan import ConversionOptions, plan_conversion
from trtbuild.errors import TrtbuildError
from trtbuild.parallel import Parallel
from trtbuild.quant.calibrate.forward import calibrate
from trtbuild.quant.calibrate.samples import Samples, load_samples
from trtbuild.quant.calibrate.texts import TEXTS
from trtbuild.quant.stats import CalibrationStats
from trtbuild.source import SourceCheckpoint

Make = Callable[..., Path]


def load(source: SourceCheckpoint, file: Path | None, **changes: int) -> Samples:
    return load_samples(source, file, **{"vocab_size": 256, "max_samples": 64, "max_length": 512, **changes})


def test_built_in_texts_are_used_without_a_file(source: SourceCheckpoint) -> None:
    samples = load(source, None)
    assert len(samples.rows) == len(TEXTS)
    assert samples.tokens == sum(min(len(text.encode()), 512) for text in TEXTS)


def test_jsonl_lines_are_samples_empty_ones_skipped_and_long_ones_cut(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "calib.jsonl"
    records: list[dict[str, Any]] = [{"text": "one"}, {"text": ""}, {"text": "x" * 10_000}, {"input_ids": [1, 2, 3]}]
    file.write_text("\n".join(map(json.dumps, records)) + "\n")
    assert [len(row) for row in load(source, file).rows] == [3, 512, 3]


def test_paragraphs_of_a_text_file_are_samples(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "calib.txt"
    file.write_text("first\nline\r\n\r\nsecond é\n\n\n\n", encoding="utf-8")
    assert [len(row) for row in load(source, file).rows] == [10, 9]
    assert len(load(source, file, max_samples=1).rows) == 1


def test_rows_of_token_ids_are_fed_in_order(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "ids.safetensors"
    write_safetensors(file, {"input_ids": np.arange(6, dtype=np.int64).reshape(2, 3)})
    assert load(source, file).rows == ((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "no calibration sample is left"),
        ("a.jsonl", '{"text": ""}\n\n', "no calibration sample is left"),
        ("a.txt", " \n\n ", "no calibration sample is left"),
        ("a.jsonl", '{"text": 3}', r"a.jsonl:1: field 'text' is int"),
        ("a.jsonl", '{"input_ids": [true]}', r"a.jsonl:1: field 'input_ids' is \[true\], not a list of token ids"),
        ("a.jsonl", "[" * 100_000, r"a.jsonl:1 is not valid JSON: maximum recursion depth"),
        ("a.jsonl", "[1]", r"a.jsonl:1 is list, not an object"),
        ("a.jsonl", '{"prompt": "a"}', r"a.jsonl:1 has neither text nor messages nor input_ids; it has prompt"),
        ("a.jsonl", '{"text": "a"}\nnope', r"a.jsonl:2 is not valid JSON"),
        ("a.jsonl", '{"input_ids": [1, 256]}', r"a.jsonl:1: token id 256 is outside the vocabulary of 256"),
        ("a.jsonl", '{"input_ids": [1]}\n\n{"input_ids": [2, -1]}', r"a.jsonl:3: token id -1 is outside"),
        ("a.jsonl", '{"input_ids": [-1, 2]}', "token id -1 is outside"),
        ("a.pkl", "x", "unknown kind"),
        ("a.npz", "x", "unknown kind"),
    ],
)
def test_unusable_calibration_files_are_refused(
    source: SourceCheckpoint, tmp_path: Path, name: str, content: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(TrtbuildError, match=message):
        load(source, file)


def test_ids_of_the_wrong_shape_or_missing_files_are_refused(source: SourceCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "ids.safetensors"
    write_safetensors(file, {"input_ids": np.zeros(3, np.int64)})
    with pytest.raises(TrtbuildError, match=r"input_ids is I64 \[3\]"):
        load(source, file)
    write_safetensors(file, {"other": np.zeros(3, np.int64)})
    with pytest.raises(TrtbuildError, match="input_ids is missing"):
        load(source, file)
    with pytest.raises(TrtbuildError, match="does not exist"):
        load(source, tmp_path / "nowhere.txt")


def test_texts_without_a_tokenizer_are_refused(make_model: Make) -> None:
    with pytest.raises(TrtbuildError, match="has no tokenizer"):
        load(SourceCheckpoint.open(make_model()), None)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_ranges_equal_those_of_an_independent_forward(make_model: Make, family: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    extra: dict[str, Any] = (
        {}
        if family == "llama"
        else {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "qk_norm": True, "head_dim": 16}
    )
    folder = make_model(torch_dtype="float32", **extra)
    source = SourceCheckpoint.open(folder)
    plan = plan_conversion(
        OpenedSource(source), ConversionOptions(quantization="fp8", kv_cache="int8", parallel=Parallel())
    )
    rows = ((5, 6, 7, 8), (9, 1))
    tokens: list[int] = []
    work = tmp_path / "work"
    stats = calibrate(
        plan, Samples(rows, "test"), dtype="float32", folder=work, memory_bytes=1 << 20, advance=tokens.append
    )
    assert tokens == [0, *[4, 2] * 3]
    assert [file.name for file in work.iterdir()] == ["state.json"]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs: dict[str, float] = {}
    for name, linear in model.named_modules():
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            linear.register_forward_hook(
                lambda _m, args, _o, name=name: inputs.__setitem__(
                    name, max(inputs.get(name, 0.0), args[0].abs().max().item())
                )
            )
    k_amax, v_amax = np.zeros(3), np.zeros(3)
    for row in rows:
        with torch.no_grad():
            cache = model(torch.tensor([row]), use_cache=True).past_key_values
        for layer in range(3):
            k_amax[layer] = max(k_amax[layer], cache.layers[layer].keys.abs().max().item())
            v_amax[layer] = max(v_amax[layer], cache.layers[layer].values.abs().max().item())
    assert stats.input_amax == pytest.approx(inputs, rel=1e-5)
    assert stats.k_amax == pytest.approx(k_amax, rel=1e-5)
    assert stats.v_amax == pytest.approx(v_amax, rel=1e-5)


def test_linears_that_share_a_scale_share_the_largest_input_range() -> None:
    stats = CalibrationStats({"q": 1.0, "k": 3.0}, (), (), 1, 1, "")
    assert stats.group_input_amax(["q", "k"]) == 3.0
    with pytest.raises(TrtbuildError, match="never reached v"):
        stats.group_input_amax(["q", "v"])


def test_lines_of_token_ids_need_no_tokenizer(make_model: Make, tmp_path: Path) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"input_ids": [1, 2]}\n')
    source = SourceCheckpoint.open(make_model())
    assert load(source, file).rows == ((1, 2),)
    file.write_text('{"text": "a"}\n')
    with pytest.raises(TrtbuildError, match="has no tokenizer"):
        load(source, file)


def searched_plan(folder: Path, scheme: str = "int4_gptq") -> Any:
    return plan_conversion(
        OpenedSource(SourceCheckpoint.open(folder)),
        ConversionOptions(quantization=scheme, group_size=64, parallel=Parallel()),
    )


class _KilledError(Exception):
    pass


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("feed", ["original", "quantized"])
def test_a_killed_calibration_ends_as_one_that_ran_through(make_model: Make, tmp_path: Path, feed: Any) -> None:
    plan = searched_plan(make_model())
    samples = Samples(((5, 6, 7, 8), (9, 1), (3, 4, 4)), "test")

    def run(folder: Path, killed_after: int | None = None) -> tuple[CalibrationStats, list[int]]:
        seen: list[int] = []

        def advance(tokens: int) -> None:
            seen.append(tokens)
            if killed_after is not None and len(seen) > killed_after:
                raise _KilledError

        settings: Any = {"dtype": "float32", "memory_bytes": 1 << 20, "advance": advance, "feed": feed}
        return calibrate(plan, samples, folder=folder, **settings), seen

    expected, seen = run(tmp_path / "whole")
    assert sum(seen) == 9 * 3
    for killed_after in (1, 3, 5, 9):
        work = tmp_path / str(killed_after)
        with pytest.raises(_KilledError):
            run(work, killed_after)
        found, seen = run(work)
        assert found == expected
        assert sum(seen) == 9 * 3
        assert seen[0] == 9 * ((killed_after - 1) // 3)
        assert files_of(work) == files_of(tmp_path / "whole")
    again, seen = run(tmp_path / "whole")
    assert (again, seen) == (expected, [27])


def test_other_work_in_the_folder_is_not_used(make_model: Make, tmp_path: Path) -> None:
    plan = searched_plan(make_model())

    def run(*rows: tuple[int, ...], folder: str) -> CalibrationStats:
        return calibrate(
            plan,
            Samples(rows, "test"),
            dtype="float32",
            folder=tmp_path / folder,
            memory_bytes=1 << 20,
            advance=lambda _: None,
        )

    first, expected = run((1, 2, 3), folder="a"), run((4, 5), folder="b")
    assert first != expected
    assert run((4, 5), folder="a") == expected
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_results_do_not_depend_on_the_memory(make_model: Make, tmp_path: Path) -> None:
    plan = searched_plan(make_model(), "int4_awq")
    samples = Samples(((5, 6, 7, 8), (9, 1)), "test")
    for memory_bytes in (1, 1 << 30):
        calibrate(
            plan,
            samples,
            dtype="float32",
            folder=tmp_path / str(memory_bytes),
            memory_bytes=memory_bytes,
            advance=lambda _: None,
        )
    assert files_of(tmp_path / "1") == files_of(tmp_path / str(1 << 30))


def test_the_range_of_a_smoothed_input_is_that_of_what_is_multiplied(make_model: Make, tmp_path: Path) -> None:
    folder = make_model(torch_dtype="float32")
    plan = searched_plan(folder, "int8_smoothquant")
    stats = calibrate(
        plan,
        Samples(((5, 6, 7, 8),), "test"),
        dtype="float32",
        folder=tmp_path / "work",
        memory_bytes=1 << 20,
        advance=lambda _: None,
    )
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen: dict[str, Any] = {}
    name = "model.layers.1.mlp.down_proj"
    model.get_submodule(name).register_forward_pre_hook(lambda _m, args: seen.__setitem__("x", args[0][0].detach()))
    with torch.no_grad():
        model(torch.tensor([[5, 6, 7, 8]]))
    factor = read_safetensors(next((tmp_path / "work").glob(f"recipes-layer-00001-{name}.*")))[
        f"{name}.pre_quant_scale"
    ]
    # Multiplier and range are values of float16, the dtype that is written.
    assert stats.input_amax[name] == pytest.approx(float((seen["x"].numpy() * factor).__abs__().max()), rel=2**-10)


def test_an_activation_that_is_not_finite_is_named(make_model: Make, tmp_path: Path) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"] *= 1e30
        tensors["model.layers.1.mlp.gate_proj.weight"] *= 1e30

    plan = searched_plan(make_model(torch_dtype="float32", edit=edit))
    with pytest.raises(TrtbuildError, match=r"calibration in float32: the input of model\.layers\.1\.mlp\.down_proj"):
        calibrate(
            plan,
            Samples(((5, 6, 7, 8),), "test"),
            dtype="float32",
            folder=tmp_path / "work",
            memory_bytes=1 << 20,
            advance=lambda _: None,
        )


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) << 10


def test_peak_memory_is_that_of_a_few_layers_at_any_depth(make_model: Make, tmp_path: Path) -> None:
    def growth(name: str, **config: Any) -> int:
        plan = searched_plan(make_model(name=name, torch_dtype="float32", **config), "int8_smoothquant")
        Path("/proc/self/clear_refs").write_text("5")  # start a new peak
        before = _memory("VmRSS")
        calibrate(
            plan,
            Samples((tuple(range(30)),), "test"),
            dtype="float32",
            folder=tmp_path / f"{name}-work",
            memory_bytes=1 << 24,
            advance=lambda _: None,
        )
        return _memory("VmHWM") - before

    growth("small")  # imports take memory too
    # A layer has 9 MB, the model 90 MB.
    assert growth("deep", hidden_size=512, intermediate_size=1024, num_hidden_layers=10) < 45 << 20
