"""What `plan` and `build` refuse, and remark on, before any model is looked at: sizes, addresses, files, keys without effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtbuild.checks import check_deployment, without_effect
from trtbuild.checks.effects import BY_TARGET
from trtbuild.checks.sizes import host_memory_bytes
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.limits import resolve_limits
from trtbuild.names import TARGETS
from trtbuild.spec import Deployment, parse
from trtbuild.spec.fields import fields
from trtbuild.trtllm.llm_settings import ROWS

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]


def deployment(target: str = "tensorrt", **sections: Any) -> Deployment:
    return parse({"model": {"path": "/m"}, "target": target, **sections}, origin="t.yaml")


REFUSED: list[Any] = [
    ({"serving": {"grpc_port": 8000}}, "serving.http_port and serving.grpc_port are both 8000", "another port, or 0"),
    ({"serving": {"http_port": 8002}}, "serving.http_port and serving.metrics_port are both 8002", "another port"),
    ({"serving": {"address": "not an address"}}, "serving.address='not an address'", "127.0.0.1"),
    ({"serving": {"address": "127.0.0.1:8000"}}, "neither an IPv4 address", "the port is a key of its own"),
    ({"serving": {"address": "999.1.1.1"}}, "neither an IPv4 address", "0.0.0.0"),
    ({"serving": {"address": "1.2.3"}}, "neither an IPv4 address", "0.0.0.0"),
    ({"serving": {"address": ""}}, "neither an IPv4 address", "0.0.0.0"),
    ({"serving": {"address": "-a.example"}}, "neither an IPv4 address", "0.0.0.0"),
    ({"hardware": {"memory_bytes": 10**26}}, "hardware.memory_bytes=100,000", "64 MiB to 1 TiB"),
    ({"hardware": {"memory_bytes": 80}}, "hardware.memory_bytes=80 bytes", "it is in bytes, e.g. 85899345920 for 80 GiB"),
    ({"kv_cache": {"host_cache_bytes": 10**20}}, "kv_cache.host_cache_bytes=100,000", "at most 64 TiB"),
    ({"lora": {"host_cache_bytes": 2**47}}, "lora.host_cache_bytes", "at most 64 TiB"),
    ({"limits": {"max_batch_size": 2**31}}, "limits.max_batch_size=2147483648 is too large", "at most 2147483647"),
    ({"kv_cache": {"max_attention_window": [1, 10**30]}}, "kv_cache.max_attention_window=1000", "at most 2147483647"),
    ({"serving": {"queue_timeout_us": 2**63}}, "serving.queue_timeout_us", "at most 9223372036854775807"),
    ({"target": "pytorch", "serving": {"mode": "orchestrator"}}, "serving.mode: only engines have that", "--target tensorrt"),
    ({"target": "reference", "serving": {"gpu_device_ids": "0"}}, "serving.gpu_device_ids: only engines", "--target tensorrt"),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "message", "hint"), REFUSED)
def test_what_nothing_can_have_is_refused(sections: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_deployment(deployment(**sections))
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "localhost", "gpu-7.example.org", "triton_server"])
def test_addresses_that_can_be_are_taken(address: str) -> None:
    assert check_deployment(deployment(serving={"address": address, "http_port": 0, "grpc_port": 0})) == []


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        check_deployment(deployment(serving={"address": "", "grpc_port": 8000}, hardware={"memory_bytes": 1}))
    for part in ("memory_bytes", "address", "both 8000"):
        assert part in caught.value.message


def test_more_host_memory_than_this_machine_has_is_remarked() -> None:
    here = host_memory_bytes()
    (note,) = check_deployment(deployment(kv_cache={"host_cache_bytes": here + 1}))
    assert f"kv_cache.host_cache_bytes={here + 1:,} is more than" in note
    assert check_deployment(deployment(kv_cache={"host_cache_bytes": here // 2})) == []


PATHS: list[Any] = [
    ({"accuracy": {"file": "FILE", "max_mean_kl": 0.1}}, "accuracy.file"),
    ({"quantization": {"calibration": {"file": "FILE"}}}, "quantization.calibration.file"),
    ({"serving": {"guided_decoding": "xgrammar", "xgrammar_tokenizer_info": "FILE"}}, "serving.xgrammar_tokenizer_info"),
    ({"speculative": {"mode": "draft_target", "max_draft_len": 4, "draft_model": "FILE"}}, "speculative.draft_model"),
    ({"lora": {"adapters": ["FILE"]}}, "lora.adapters"),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "key"), PATHS)
def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, sections: dict[str, Any], key: str) -> None:
    def placed(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(sections).replace("FILE", str(path)))
        return found

    with pytest.raises(TrtbuildError) as caught:
        check_deployment(deployment(**placed(tmp_path / "x.jsonl")))
    assert caught.value.exit_code == 1
    assert f"{key}: {tmp_path / 'x.jsonl'} does not exist" in caught.value.message
    is_folder = key in ("speculative.draft_model", "lora.adapters")
    with pytest.raises(TrtbuildError, match="has no|is not a file"):
        check_deployment(deployment(**placed(tmp_path)))
    (tmp_path / "config.json").touch()
    (tmp_path / "adapter_config.json").touch()
    (tmp_path / "y.jsonl").touch()
    assert check_deployment(deployment(**placed(tmp_path if is_folder else tmp_path / "y.jsonl"))) == []


def test_a_timing_cache_is_written_into_a_folder_that_is_there(tmp_path: Path) -> None:
    assert check_deployment(deployment(engine={"timing_cache": str(tmp_path / "new.cache")})) == []
    for place, problem in ((tmp_path, "is a folder"), (tmp_path / "no" / "new.cache", "folder that does not exist")):
        with pytest.raises(TrtbuildError, match=problem):
            check_deployment(deployment(engine={"timing_cache": str(place)}))


SILENT: list[Any] = [
    ("tensorrt", {"llm_api": {"stream_interval": 4, "extra": {"a": 1}}}, ["without effect (target tensorrt): llm_api.stream_interval, llm_api.extra"]),
    ("pytorch", {"engine": {"workers": 4}, "serving": {"bls_instances": 3}}, ["without effect (target pytorch): engine.workers, serving.bls_instances"]),
    ("reference", {"hardware": {"gpu": "h100"}, "speculative": {"mode": "ngram", "max_draft_len": 3}}, ["without effect (target reference): speculative.mode, speculative.max_draft_len, hardware.gpu"]),
    ("pytorch", {"speculative": {"max_draft_len": 3}}, ["without effect (speculative.mode is none): speculative.max_draft_len"]),
    ("tensorrt", {"speculative": {"mode": "draft_target", "lookahead": [1, 2, 3]}}, ["without effect (speculative.mode is not lookahead): speculative.lookahead"]),
    ("pytorch", {"speculative": {"mode": "ngram", "draft_model": "/d"}}, ["without effect (the mode of speculation needs no draft model): speculative.draft_model"]),
    ("tensorrt", {"lora": {"max_rank": 8}}, ["without effect (lora.adapters is empty): lora.max_rank"]),
    ("tensorrt", {"lora": {"max_rank": 8, "target_modules": ["attn_q"]}}, []),
    ("tensorrt", {"accuracy": {"max_samples": 4}}, ["without effect (accuracy has no limits): accuracy.max_samples"]),
    ("tensorrt", {"accuracy": {"max_samples": 4, "max_mean_kl": 0.1}}, []),
    ("pytorch", {"llm_api": {"cuda_graphs": False, "cuda_graph_padding": False}}, ["without effect (llm_api.cuda_graphs is off): llm_api.cuda_graph_padding"]),
    ("tensorrt", {"hardware": {"price_per_gpu_hour": 2.5}}, ["without effect (hardware.gpu is not said): hardware.price_per_gpu_hour"]),
    ("tensorrt", {"quantization": {"calibration": {"seed": 7}}}, ["without effect (nothing is calibrated): quantization.calibration.seed"]),
    ("tensorrt", {"engine": {"workers": 4}, "limits": {"max_batch_size": 8}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("target", "sections", "notes"), SILENT)
def test_keys_that_change_nothing_are_named_with_the_reason(
    target: str, sections: dict[str, Any], notes: list[str]
) -> None:
    assert without_effect(deployment(target, **sections), calibrates=False) == notes


def test_samples_are_of_use_where_something_is_calibrated() -> None:
    wanted = deployment(quantization={"scheme": "fp8", "calibration": {"seed": 7}})
    assert without_effect(wanted, calibrates=True) == []


def test_the_keys_without_effect_are_keys() -> None:
    names = {".".join(field.path) for field in fields()}
    assert set(BY_TARGET) == set(TARGETS)
    for listed in BY_TARGET.values():
        assert set(listed) <= names


def test_plan_and_build_say_the_same(make_model: Make, tmp_path: Path, cli: Cli) -> None:
    folder = make_model()
    file = tmp_path / "t.yaml"

    def write(**sections: Any) -> None:
        file.write_text(yaml.safe_dump({"model": {"path": str(folder)}, "target": "pytorch", **sections}))

    for sections, code in (
        ({"serving": {"grpc_port": 8000}}, 2),
        ({"lora": {"adapters": ["nowhere"]}}, 1),
        ({"limits": {"max_seq_len": 1}}, 2),
        ({"kv_cache": {"max_attention_window": [257]}}, 2),
        ({"kv_cache": {"max_attention_window": [8, 8, 8, 8]}}, 2),
    ):
        write(**sections)
        said = cli("plan", file)
        assert said == (code, "", said[2])
        assert cli("build", file, "-o", tmp_path / "out") == said
    write(engine={"workers": 4})
    note = "note: without effect (target pytorch): engine.workers"
    assert note in cli("plan", file)[1]
    assert note in cli("build", file, "-o", tmp_path / "out")[2]


LIMITS: list[Any] = [
    ({"limits": {"max_seq_len": 1}}, "limits.max_seq_len=1 leaves no room", "2 or more"),
    ({"kv_cache": {"max_attention_window": [16, 4097]}}, "max_attention_window: 4097 exceeds the 4096 positions", "at most 4096"),
    ({"limits": {"max_num_tokens": 16, "max_batch_size": 32}}, "max_num_tokens=16 is below the 32 tokens", "at least one token"),
    ({"limits": {"max_num_tokens": 3}, "speculative": {"mode": "ngram", "max_draft_len": 4}}, "max_num_tokens=3 is below the 5 tokens", "max_num_tokens >= 5"),
    ({"speculative": {"mode": "ngram", "max_draft_len": 4096}}, "max_draft_len=4096 leaves no room within max_seq_len=4096", "at most 4095"),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "message", "hint"), LIMITS)
def test_limits_that_contradict_each_other_are_refused(sections: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_limits(deployment("pytorch", **sections), 4096)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_batch_is_no_larger_than_the_tokens_of_a_step() -> None:
    found = resolve_limits(deployment("pytorch", limits={"max_num_tokens": 16}), 4096)
    assert (found.max_batch_size, found.origins["max_batch_size"].origin) == (16, "rule")
    drafts = {"mode": "ngram", "max_draft_len": 3}
    assert (
        resolve_limits(deployment("pytorch", limits={"max_num_tokens": 16}, speculative=drafts), 4096).max_batch_size
        == 4
    )
    assert resolve_limits(deployment("pytorch", limits={"max_num_tokens": 9000}), 4096).max_batch_size == 256


@pytest.mark.parametrize(
    ("cache", "note"),
    [
        ({"max_attention_window": [256]}, r"max_attention_window=[256] is no window"),
        ({"max_attention_window": [16, 256]}, None),
        ({"tokens_per_block": 256}, "tokens_per_block=256 is more than a sequence has"),
        ({"tokens_per_block": 128}, None),
    ],
)
def test_windows_and_blocks_beyond_a_sequence_are_remarked(cache: dict[str, Any], note: str | None) -> None:
    notes = resolve_limits(deployment("pytorch", limits={"max_seq_len": 128}, kv_cache=cache), 4096).notes
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_what_the_llm_api_is_given_is_not_without_effect() -> None:
    listed = BY_TARGET["pytorch"]
    for row in ROWS:
        assert not any(row.field == name or row.field.startswith(f"{name}.") for name in listed), row.field


def test_a_gate_that_could_not_judge_is_an_error_of_plan(make_model: Make, tmp_path: Path, cli: Cli) -> None:
    """Samples of a model without a tokenizer must be token ids."""
    folder, file = make_model(), tmp_path / "t.yaml"
    limits = {"max_mean_kl": 0.1}
    for accuracy, code in ((limits, 1), ({}, 0)):
        file.write_text(yaml.safe_dump({"model": {"path": str(folder)}, "accuracy": accuracy}))
        found, _, err = cli("plan", file)
        assert found == code, err
        assert ("no tokenizer" in err) == (code == 1)
