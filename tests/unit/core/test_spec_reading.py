"""A trtbuild.yaml is read strictly, and every fault of it is named at once, with what is allowed."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from trtbuild.errors import UsageError
from trtbuild.spec import Deployment, Serving, parse, replaced
from trtbuild.spec.fields import fields

MODEL = {"model": {"path": "/models/m"}}


def faults(**sections: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse({**MODEL, **sections}, origin="file")
    return caught.value.message


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("limits", "max_batch_size", True, "whole number, 1 or more, or null"),
        ("limits", "max_batch_size", "8", "whole number, 1 or more, or null; YAML reads it as text, so write 8"),
        ("limits", "max_batch_size", 8.5, "whole number, 1 or more, or null"),
        ("limits", "max_batch_size", 0, "whole number, 1 or more, or null"),
        ("serving", "streaming", "yes", "true or false"),
        ("serving", "streaming", 1, "true or false"),
        ("serving", "http_port", 65536, "whole number, 0 to 65535"),
        ("serving", "stop_words", ["a", 3], "list of text"),
        ("serving", "stop_words", "a", "list of text"),
        ("serving", "chat_template", "message", "true or false or messages"),
        ("kv_cache", "free_gpu_memory_fraction", 1, "number, more than 0, less than 1"),
        ("kv_cache", "free_gpu_memory_fraction", math.nan, "number, more than 0, less than 1"),
        ("accuracy", "max_mean_kl", math.inf, "number, 0 or more, or null"),
        ("llm_api", "extra", {"a": [math.inf]}, "mapping of text to any value"),
        ("speculative", "lookahead", [1, 2], "list of 3 times whole number, 1 or more"),
        ("speculative", "choices", [[0], [-1]], "list of list of whole number, 0 or more"),
        ("quantization", "overrides", {"a": 1}, "mapping of text to text"),
        ("quantization", "group_size", 32, "64 or 128, or null"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_allowed(
    section: str, key: str, value: Any, allowed: str
) -> None:
    assert faults(**{section: {key: value}}) == f"file: {section}.{key} = {value!r}: expected {allowed}"


def test_all_faults_are_named_at_once() -> None:
    found = faults(
        limits={"max_batch_size": 0, "max_seq_length": 1},
        parallel={"cp_size": 2},
        serving=None,
        quantization={"calibration": {"seed": -1}},
        nonsense=1,
        hardware={"gpu": 7},
    )
    first, *others = found.split("; ")
    assert first == "file: unknown key 'nonsense'"
    assert others[0].startswith("known here: model, target, ")
    assert others[1:] == [
        "quantization.calibration.seed = -1: expected whole number, 0 or more, or null",
        "context parallelism (cp_size) is not supported",
        "use tp_size, pp_size or ep_size",
        "unknown key 'limits.max_seq_length', did you mean 'max_seq_len'?",
        "limits.max_batch_size = 0: expected whole number, 1 or more, or null",
        "serving = None: expected a mapping of keys to values",
        "hardware.gpu = 7: expected text, or null",
    ]


def test_keys_that_are_no_text_are_unknown_keys() -> None:
    assert "unknown key 'limits.3'" in faults(limits={3: 4})


def test_what_does_not_go_together_is_refused_by_the_parser_and_by_the_constructor() -> None:
    assert faults(serving={"default_priority_level": 3}).endswith(
        "serving: default_priority_level=3 exceeds priority_levels=0"
    )
    with pytest.raises(ValueError, match="needs chat_template"):
        Serving(system_prompt="Be brief.")
    with pytest.raises(ValueError, match="exceeds priority_levels"):
        replaced(Serving(), default_priority_level=1)


def test_sections_cannot_be_changed() -> None:
    deployment = parse(MODEL, origin="file")
    with pytest.raises(AttributeError):
        deployment.target = "tensorrt"  # type: ignore[misc]


def test_the_json_form_is_read_back_as_the_same() -> None:
    data = {
        **MODEL,
        "target": "tensorrt",
        "speculative": {"mode": "medusa", "choices": [[0], [0, 1]], "draft_model": "/m"},
        "serving": {"stop_words": ["a"], "chat_template": "messages"},
        "kv_cache": {"max_attention_window": [64, 128], "free_gpu_memory_fraction": 0.5},
        "llm_api": {"extra": {"kv_cache_config": {"a": [1, 2.5, None, "x"]}}},
    }
    deployment = parse(data, origin="file")
    assert parse(deployment.as_dict(), origin="again") == deployment
    assert deployment.serving.stop_words == ("a",)
    assert deployment.as_dict()["kv_cache"]["max_attention_window"] == [64, 128]


def test_every_default_passes_the_check_of_its_field() -> None:
    for field in fields():
        if field.section is None and not field.required:
            *sections, key = field.path
            data: dict[str, Any] = {"model": {"path": "m"}}
            node = data
            for section in sections:
                node = node.setdefault(section, {})
            node[key] = field.default
            assert isinstance(parse(data, origin="default"), Deployment), field.path


def test_reading_needs_no_yaml_for_a_dictionary() -> None:
    code = "import sys; from trtbuild.spec import parse; parse({'model': {'path': 'm'}}, origin='x'); sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("sections", "given", "message", "hint"),
    [
        ({"accuracy": {"max_mean_kl": -1.0}}, {("accuracy", "max_mean_kl"): "--max-mean-kl"},
         "--max-mean-kl = -1.0: expected number, 0 or more", "leave out --max-mean-kl, or give what is allowed"),
        ({"accuracy": {"max_mean_kl": -1.0}}, {}, "x: accuracy.max_mean_kl = -1.0: expected number, 0 or more, or null", "see `trtbuild schema`"),
        ({"accuracy": {"max_mean_kl": -1.0}, "parallel": {"tp_size": 0}}, {("accuracy", "max_mean_kl"): "--max-mean-kl"},
         "x: parallel.tp_size = 0: expected whole number, 1 or more; --max-mean-kl = -1.0: expected number, 0 or more",
         "leave out --max-mean-kl, or give what is allowed; see `trtbuild schema`"),
        ({"quantization": {"scheme": "fp8", "group_size": 64}}, {("quantization", "scheme"): "--quantization"},
         "--quantization: group_size: scheme 'fp8' has no groups", "leave out --quantization, or"),
    ],
)  # fmt: skip
def test_a_value_that_an_option_gave_is_called_by_the_option(
    sections: dict[str, Any], given: dict[tuple[str, ...], str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse({"model": {"path": "m"}, **sections}, origin="x", given=given)
    assert caught.value.message.startswith(message) and caught.value.hint.startswith(hint)
