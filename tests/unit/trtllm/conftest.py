"""A build folder with a checkpoint, and a stand-in for trtllm-build."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trtllm.engine_jobs import make_job

from trtbuild.targets.base import Job
from trtbuild.trtllm.build_environment import FURTHER
from trtbuild.trtllm.build_tool import VARIABLE

FAKE = Path(__file__).parents[2] / "fakes" / "trtllm_build.py"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that chooses how trtllm-build behaves and returns the file that will get its arguments."""

    def choose(mode: str = "", *, version: str = "1.2.1", text: str = "", **change: Any) -> Path:
        record = tmp_path / "arguments.json"
        tool = tmp_path / "tool" / "trtllm-build"
        if not tool.exists():
            tool.parent.mkdir()
            # This interpreter, and without its packages: whatever `python3` is here may take long to start.
            tool.write_text(f"#!{sys.executable} -IS\n{FAKE.read_text().partition(chr(10))[2]}")
            tool.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(tool))
        monkeypatch.setenv(FURTHER, "FAKE_TRTLLM_*")
        monkeypatch.setenv("FAKE_TRTLLM_BUILD", mode)
        monkeypatch.setenv("FAKE_TRTLLM_VERSION", version)
        monkeypatch.setenv("FAKE_TRTLLM_TEXT", text)
        monkeypatch.setenv("FAKE_TRTLLM_RECORD", str(record))
        monkeypatch.setenv("FAKE_TRTLLM_CHANGE", json.dumps(change))
        return record

    return choose


@pytest.fixture
def build_folder(tmp_path: Path) -> Callable[[Job], Path]:
    """Return a function that writes the checkpoint of a job into a build folder: config.json and empty-headed rank files."""

    def write(job: Job) -> Path:
        checkpoint = tmp_path / "build" / "checkpoint"
        checkpoint.mkdir(parents=True)
        config = {
            "architecture": job.dims.architecture,
            "dtype": job.dtype,
            "logits_dtype": "float32",
            "quantization": {"quant_algo": job.quant_algo, "kv_cache_quant_algo": job.kv_cache_quant_algo},
            "mapping": {
                "world_size": job.parallel.world_size,
                "tp_size": job.parallel.tp_size,
                "pp_size": job.parallel.pp_size,
            },
        }
        (checkpoint / "config.json").write_text(json.dumps(config))
        for rank in range(job.parallel.world_size):
            (checkpoint / f"rank{rank}.safetensors").write_bytes(b"weights")
        return tmp_path / "build"

    return write


@pytest.fixture
def job() -> Job:
    """Return the job of a plain model on two ranks."""
    return make_job(parallel={"tp_size": 2}, limits={"max_batch_size": 64, "max_seq_len": 4096})
