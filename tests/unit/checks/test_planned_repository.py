"""What `render` would refuse of a deployment is refused by `plan` and by `build`, before anything is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Make = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]

DRAFT_TARGET = {"mode": "draft_target", "max_draft_len": 4}
ORCHESTRATOR = {"mode": "orchestrator"}


@pytest.fixture
def model(make_model: Make) -> Path:
    """Return a model with a tokenizer whose files are just enough."""
    folder = make_model(eos_token_id=2)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


@pytest.fixture
def write(model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a trtbuild.yaml of the model and returns its path."""

    def made(target: str = "tensorrt", **sections: Any) -> Path:
        file = tmp_path / "trtbuild.yaml"
        file.write_text(yaml.safe_dump({"model": {"path": str(model)}, "target": target, **sections}))
        return file

    return made


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"serving": {"gpu_device_ids": "x"}}, "serving.gpu_device_ids = 'x' is no list of numbers"),
        ({"serving": {"gpu_device_ids": "0,0"}}, "gives an instance 2 GPUs (0,0), and tp_size * pp_size is 1"),
        ({"serving": {"gpu_device_ids": "0;1"}}, "serving.mode=leader has one engine per server"),
        ({"serving": {**ORCHESTRATOR, "gpu_device_ids": "0;0"}}, "names GPU 0 more than once"),
        ({"serving": {"gpu_device_ids": "2"}, "hardware": {"count": 2}}, "names GPU 2, and hardware.count is 2"),
        ({"serving": {"participant_ids": "1"}}, "serving.participant_ids needs serving.mode: orchestrator"),
        ({"serving": {**ORCHESTRATOR, "participant_ids": "0"}}, "names rank 0, which is the orchestrator"),
        ({"serving": {**ORCHESTRATOR, "participant_ids": "1;2"}}, "is for 2 instances, serving.gpu_device_ids for 1"),
        ({"serving": {"chat_template": True}}, "serving.chat_template is on, and"),
        ({"target": "reference", "serving": {"chat_template": True}}, "serving.chat_template is on, and"),
        ({"target": "pytorch", "serving": {"chat_template": True}}, "the model of target pytorch takes prompts as they are"),
        ({"tensorrt_llm": "0.18.0", "speculative": {"mode": "lookahead"}}, "the backend of TensorRT-LLM 0.18.0 has no lookahead_window_size"),
        ({"speculative": DRAFT_TARGET}, "serving.mode=leader has one engine per server, and with a draft model there are two"),
        ({"speculative": DRAFT_TARGET, "serving": ORCHESTRATOR, "kv_cache": {"enable_block_reuse": False}}, "enable_block_reuse is false for the target"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["plan", "build"])
def test_what_could_not_be_rendered_is_refused_first(
    write: Callable[..., Path], cli: Cli, tmp_path: Path, verb: str, sections: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    options = ("-o", out, "--until", "checkpoint") if verb == "build" else ()
    code, _, err = cli(verb, write(**sections), *options)
    assert message in err
    assert code == (1 if "enable_block_reuse" in message else 2)
    assert "hint: " in err
    assert not out.exists()


@pytest.mark.parametrize("content", [None, "{}"])
def test_guided_decoding_needs_a_file_that_holds_the_tokenizer(
    write: Callable[..., Path], cli: Cli, tmp_path: Path, content: str | None
) -> None:
    info = tmp_path / "info.json"
    if content is not None:
        info.write_text(content)
    code, _, err = cli("plan", write(serving={"guided_decoding": "xgrammar", "xgrammar_tokenizer_info": str(info)}))
    assert code == 1
    assert "info.json" in err
    assert ("has no encoded_vocab, tokenizer_str, stop_token_ids" in err) is (content is not None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab_size": 64}, "vocab_size is 64 in"),
        ({"max_position_embeddings": 16}, "the draft model has 16 positions, and max_seq_len is 256"),
        ({}, None),
    ],
)
def test_a_draft_model_that_is_named_is_held_against_its_target(
    write: Callable[..., Path], cli: Cli, make_model: Make, config: dict[str, Any], message: str | None
) -> None:
    draft = make_model(name="draft", **config)
    speculative = {**DRAFT_TARGET, "draft_model": str(draft)}
    code, _, err = cli("plan", write(speculative=speculative, serving=ORCHESTRATOR))
    assert code == (0 if message is None else 1), err
    assert message is None or f"the draft model cannot draft for the target: {message}" in err


@pytest.mark.parametrize("target", ["tensorrt", "pytorch", "reference"])
@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["x.X", None]}}, "needs code of its author"),
        ("tokenizer_config.json", {}, "no end-of-sequence token is named"),
        ("config.json", None, "no end-of-sequence token is named"),
    ],
)
def test_a_tokenizer_that_no_server_loads_is_noted(
    write: Callable[..., Path], model: Path, cli: Cli, target: str, name: str, config: dict[str, Any] | None, message: str
) -> None:  # fmt: skip
    """The end may be named in config.json, which a Hugging Face folder keeps and a folder of rank files does not."""
    if config is not None:
        (model / name).write_text(json.dumps(config))
        whole = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**whole, "eos_token_id": None}))
    else:
        (model / "tokenizer_config.json").write_text("{}")
    code, out, _ = cli("plan", write(target=target), "--json")
    assert code == 0
    is_fine = config is None and target == "pytorch"
    said = [note for note in json.loads(out)["notes"] if message in note]
    assert len(said) == (0 if is_fine else 1)


def test_an_engine_that_comes_later_is_rendered_with_the_logits_it_will_have(
    write: Callable[..., Path], cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    file = write(engine={"logits_dtype": "float16"})
    assert cli("build", file, "-o", out, "--until", "checkpoint")[0] == 0
    code, _, err = cli("render", out, "--engine-later")
    assert code == 0, err
    assert "TYPE_FP16" in (out / "repository" / "tensorrt_llm" / "config.pbtxt").read_text()
