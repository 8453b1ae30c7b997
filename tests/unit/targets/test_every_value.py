"""What `plan` lets through can be rendered and is sound: every key of trtbuild.yaml with odd values of its own type, for every target.

The values come from the fields' types and bounds, so a new field is tried without a line here. The repository is rendered of a
checkpoint that was converted once for each target; rendering lints it. What leads to a repository that was rendered before is not rendered again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from msgspec import Meta
from msgspec.structs import fields as struct_fields
from tests.conftest import T0, llama_tensors, write_safetensors

from trtbuild.building import build
from trtbuild.errors import TrtbuildError
from trtbuild.names import TARGETS
from trtbuild.planning import plan
from trtbuild.repo.deployment import context_of
from trtbuild.repo.render import render
from trtbuild.spec import Deployment, parse
from trtbuild.spec.section import Section

Outcome = Callable[[str, dict[str, Any]], tuple[bool, str]]
#: Text for keys that take any: lists of GPUs, paths, releases, names, and what templates must quote.
TEXTS = ("", " ", "x", "0", "0,0", "0;1", "-1", "h100", "/nonexistent", 'ünïcödé "q" \\ \n\t $x {{ y }} #')
#: Values that no type tells, by key.
MORE: dict[str, tuple[Any, ...]] = {
    "tensorrt_llm": ("0.17.0", "0.18.2", "0.19", "0.20.0", "0.21.0", "1.0.0", "1.1", "1.2.1", "1.3.0rc20", "1.3.0rc21", "1.4.0rc4"),
    "hardware.gpu": ("a100", "l4", "b200", "rtx5090", "t4"),
    "quantization.scheme": ("fp8_per_channel_per_token", "int4_rtn", "int8_weight_only", "fp8_block", "nvfp4"),
    "llm_api.moe_backend": ("CUTLASS", "TRTLLM"),
    "llm_api.extra": ({"a": 1}, {"max_batch_size": 3}, {"kv_cache_config": {"max_tokens": 5}}, {"cuda_graph_config": {"batch_sizes": [1, 2]}}),
    "lora.target_modules": (["attn_qkv"], ["attn_q", "mlp_4h_to_h"]),
}  # fmt: skip
#: Keys that do not go without another, or that are worth a second look together.
TOGETHER: tuple[dict[str, Any], ...] = (
    {"serving": {"mode": "orchestrator", "gpu_device_ids": "0;1"}},
    {"serving": {"mode": "orchestrator", "gpu_device_ids": "0;0"}},
    {"serving": {"mode": "orchestrator", "gpu_device_ids": "0;1", "participant_ids": "1;2"}},
    {"serving": {"mode": "orchestrator", "participant_ids": "0"}},
    {"serving": {"gpu_device_ids": "1,0"}, "parallel": {"tp_size": 2}},
    {"serving": {"gpu_device_ids": "3"}, "hardware": {"count": 2}},
    {"serving": {"priority_levels": 3, "default_priority_level": 2, "queue_timeout_us": 5, "queue_timeout_action": "delay"}},
    {"serving": {"allow_timeout_override": True, "max_queue_size": 1}},
    {"serving": {"chat_template": True, "system_prompt": 'a "b" \\ \n c'}},
    {"serving": {"chat_template": "messages", "streaming": False}},
    {"serving": {"http_port": 0, "grpc_port": 0, "metrics_port": 0}},
    {"speculative": {"mode": "draft_target", "max_draft_len": 4}},
    {"speculative": {"mode": "draft_target", "max_draft_len": 4}, "serving": {"mode": "orchestrator"}},
    {"speculative": {"mode": "ngram", "max_draft_len": 4}},
    {"speculative": {"mode": "lookahead"}, "tensorrt_llm": "0.18.2"},
    {"speculative": {"mode": "lookahead"}, "limits": {"max_beam_width": 2}},
    {"limits": {"max_beam_width": 4, "max_batch_size": 1}},
    {"limits": {"max_seq_len": 2, "max_batch_size": 1}},
    {"limits": {"max_num_tokens": 32, "max_batch_size": 32}, "scheduling": {"chunked_context": False}},
    {"limits": {"max_num_tokens": 32}, "kv_cache": {"tokens_per_block": 64}},
    {"kv_cache": {"max_tokens": 256, "max_attention_window": [16, 256]}},
    {"engine": {"weight_streaming": True, "gpu_weights_percent": 0.0}},
    {"engine": {"use_paged_context_fmha": False}, "kv_cache": {"enable_block_reuse": False}, "scheduling": {"chunked_context": False}},
    {"parallel": {"pp_size": 2}, "tensorrt_llm": "0.20.0"},
    {"parallel": {"tp_size": 2, "pp_size": 3}, "serving": {"mode": "orchestrator"}},
)  # fmt: skip


def values(annotation: Any, metas: tuple[Meta, ...] = ()) -> Iterator[Any]:
    """Yield values of a type, at its bounds and far inside and outside of what makes sense."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from values(members[0], (*metas, *annotation.__metadata__))
    elif origin is Literal:
        yield from members
    elif origin is tuple:
        is_open = members[-1] is Ellipsis
        yield from ([[]] if is_open else [])
        yield from ([each] * (1 if is_open else len(members)) for each in values(members[0]))
    elif origin is dict:
        yield {}
    elif origin is Union or type(annotation).__name__ == "UnionType":
        yield from (each for member in members for each in values(member, metas))
    elif annotation is bool:
        yield from (True, False)
    elif annotation in (int, float):
        low, high = (next((each for meta in metas if (each := getattr(meta, name)) is not None), None) for name in ("ge", "le"))  # fmt: skip
        if annotation is int:
            yield from (low or 0, 7, 64, 2**31 - 1, high or 2**62)
        else:
            yield from (low or 1e-9, 0.5, high or 0.999999)
    elif annotation is str:
        yield from TEXTS
    else:
        assert annotation is type(None), annotation
        yield None


def every_key(section: type[Section] = Deployment, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the type of every key but those that say what the test is about."""
    for info in struct_fields(section):
        inner = (*path, info.name)
        if isinstance(info.type, type) and issubclass(info.type, Section):
            yield from every_key(info.type, inner)
        elif inner not in (("target",), ("model", "path")):
            yield ".".join(inner), info.type


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with a tokenizer's files and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({**T0, "eos_token_id": 2}))
    write_safetensors(folder / "model.safetensors", llama_tensors(T0))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "chat_template": "{{ messages }}"}')
    return folder


@pytest.fixture(scope="module")
def outcome(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return a function from target and sections to (whether plan lets them through, why rendering does not).

    That a draft model is still to be named with --draft is no fault: it is a build of its own.
    """
    builds: dict[str, Path] = {}
    rendered: set[str] = set()
    work = tmp_path_factory.mktemp("work")

    def built(target: str) -> Path:
        if target not in builds:
            deployment = parse({"model": {"path": str(model)}, "target": target}, origin="test")
            until = "checkpoint" if target == "tensorrt" else "engine"
            build(deployment, work / target, force=False, memory_bytes=2**28, quiet=True, until=until)
            builds[target] = work / target
        return builds[target]

    def found(target: str, sections: dict[str, Any]) -> tuple[bool, str]:
        whole = {**sections, "model": {**sections.get("model", {}), "path": str(model)}, "target": target}
        try:
            deployment = parse(whole, origin="test")
            plan(deployment)
        except TrtbuildError:
            return False, ""
        folder = built(target)
        try:
            context = context_of(
                deployment,
                checkpoint_dir=folder / "checkpoint",
                engine_dir=folder / "engine" if target == "tensorrt" else None,
                engine_later=target == "tensorrt",
            )
            if (printed := json.dumps(context.as_dict(), sort_keys=True)) not in rendered:
                render(context, work / "repository", force=True)
            rendered.add(printed)
        except TrtbuildError as error:
            return True, "" if "no draft model is named" in error.message else error.message
        return True, ""

    return found


SECTIONS = sorted({key.partition(".")[0] for key, _ in every_key()})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("section", SECTIONS)
def test_what_plan_lets_through_renders(outcome: Outcome, target: str, section: str) -> None:
    tried = [
        (key, value)
        for key, kind in every_key()
        if key.partition(".")[0] == section
        for value in (*values(kind), *MORE.get(key, ()))
    ]
    found = {f"{key} = {value!r}": outcome(target, nested(key, value)) for key, value in tried if value != {}}
    assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
    assert any(is_taken for is_taken, _ in found.values()), "nothing was rendered"


@pytest.mark.parametrize("target", TARGETS)
def test_what_plan_lets_through_together_renders(outcome: Outcome, target: str) -> None:
    found = {json.dumps(sections): outcome(target, sections) for sections in TOGETHER}
    assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
    assert {is_taken for is_taken, _ in found.values()} == {True, False}
