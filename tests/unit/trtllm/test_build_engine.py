"""Building an engine with a stand-in for trtllm-build: what is left, what is recorded, and what every kind of failure says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trtllm.engine_jobs import make_job, q_adapter

from trtbuild.errors import ToolFailed, UsageError
from trtbuild.output import staged_folder
from trtbuild.targets.base import Job, load_target
from trtbuild.trtllm.build_engine import FAILED_LOG, REFUSED, rank_seconds
from trtbuild.trtllm.build_environment import FURTHER
from trtbuild.trtllm.build_options import arguments
from trtbuild.trtllm.build_tool import VARIABLE
from trtbuild.trtllm.engine import Engine

Builder = Callable[..., Path]
Folder = Callable[[Job], Path]


def finish(job: Job, folder: Path) -> dict[str, Any]:
    """Build quietly."""
    return load_target("tensorrt").finish(job, folder, quiet=True)


def left(folder: Path) -> set[str]:
    """Return the names in a build folder."""
    return {entry.name for entry in folder.iterdir()}


def running_with(text: str) -> list[str]:
    """Return the processes that have a text in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended while it was looked at, or of somebody else
            if text.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


class TestSuccess:
    def test_an_engine_of_all_ranks_is_there_with_its_log_and_timing_cache(
        self, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder()
        folder = build_folder(job)
        finish(job, folder)
        assert left(folder) == {"checkpoint", "engine"}
        assert left(folder / "engine") == {
            "rank0.engine", "rank1.engine", "config.json", "build.log", "timing.cache", "manifest.json"
        }  # fmt: skip
        assert Engine.open(folder / "engine").mapping["world_size"] == 2
        assert "Total time of building Unnamed Network 0: 00:01:02" in (folder / "engine" / "build.log").read_text()

    def test_the_tool_gets_the_arguments_of_the_release(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        record, folder = builder(), build_folder(job)
        finish(job, folder)
        stage = folder / ".engine.partial"
        assert json.loads(record.read_text()) == arguments(job, folder / "checkpoint", stage)

    def test_the_record_says_what_it_was_built_from_and_what_it_took(
        self, job: Job, builder: Builder, build_folder: Folder, nvidia_smi: Callable[..., None]
    ) -> None:
        builder()
        nvidia_smi("0, NVIDIA H100 80GB HBM3, 81559, 81000, 590.44, GPU-a, Disabled, 9.0")
        folder = build_folder(job)
        record = finish(job, folder)
        assert {key: record[key] for key in ("tensorrt_llm", "tensorrt", "sm", "driver", "tp_size", "pp_size", "gpu")} == {
            "tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48", "sm": 90, "driver": "590.44", "tp_size": 2, "pp_size": 1,
            "gpu": "NVIDIA H100 80GB HBM3",
        }  # fmt: skip
        assert [(rank["rank"], rank["bytes"]) for rank in record["ranks"]] == [(0, 16), (1, 16)]
        assert record["engine_bytes"] == 32
        assert (record["peak_host_bytes"], record["peak_gpu_bytes"]) == (int(1024.5 * 2**20), 2048 * 2**20)
        assert record["warnings"] == 1
        assert str(folder / "engine") in record["arguments"]
        assert not [word for word in record["arguments"] if ".partial" in word]
        written = json.loads((folder / "engine" / "manifest.json").read_text())
        files = written.pop("files")
        assert {name: entry["bytes"] for name, entry in files.items()} == {
            name: (folder / "engine" / name).stat().st_size for name in ("config.json", "rank0.engine", "rank1.engine")
        }
        assert files["rank1.engine"]["sha256"] == hashlib.sha256(b"engine of rank 1").hexdigest()
        assert written == {
            "schema_version": 1, "kind": "engine", "trtbuild": written["trtbuild"], **json.loads(json.dumps(record))
        }  # fmt: skip

    def test_a_stage_of_a_larger_build_is_called_by_its_final_name(
        self, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder()
        folder = build_folder(job)
        stage = folder.rename(folder.with_name(".mine.partial"))
        record = finish(job, stage)
        assert str(folder.with_name("mine") / "engine") in record["arguments"]

    def test_another_engine_in_its_place_is_replaced(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        builder()
        folder = build_folder(job)
        (folder / "engine").mkdir()
        (folder / "engine" / "rank7.engine").write_text("old")
        finish(job, folder)
        assert "rank7.engine" not in left(folder / "engine")

    def test_quantized_engines_with_adapters_and_drafts_are_what_was_asked_for(
        self, builder: Builder, build_folder: Folder, tmp_path: Path
    ) -> None:
        builder()
        job = make_job(
            quant_algo="FP8", kv="FP8", lora={"adapters": [str(q_adapter(tmp_path / "a"))]}, speculative={"mode": "lookahead"},
            engine={"gemm_plugin": "fp8", "weight_sparsity": True, "gather_generation_logits": True},
        )  # fmt: skip
        assert finish(job, build_folder(job))["notes"] == []

    def test_steps_are_logged_with_the_rank(
        self, job: Job, builder: Builder, build_folder: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        builder()
        with caplog.at_level(logging.INFO, logger="trtbuild"):
            finish(job, build_folder(job))
        assert "network 1 built in 62 s" in caplog.text
        assert "rank 1: writing the engine" in caplog.text

    def test_a_timing_cache_is_read_where_it_exists_and_written_back(
        self, builder: Builder, build_folder: Folder, tmp_path: Path
    ) -> None:
        record, cache = builder(), tmp_path / "caches" / "h100.cache"
        job = make_job(engine={"timing_cache": str(cache)})
        folder = build_folder(job)
        finish(job, folder)
        assert "--input_timing_cache" not in json.loads(record.read_text())
        assert cache.read_bytes() == b"cache of this build"
        finish(job, folder)
        given = json.loads(record.read_text())
        assert given[given.index("--input_timing_cache") + 1] == str(cache)
        assert left(cache.parent) == {"h100.cache"}

    def test_a_timing_cache_that_cannot_be_written_costs_no_engine(
        self, builder: Builder, build_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        builder()
        (tmp_path / "file").write_text("")
        job = make_job(engine={"timing_cache": str(tmp_path / "file" / "h100.cache")})
        folder = build_folder(job)
        with caplog.at_level(logging.WARNING, logger="trtbuild"):
            finish(job, folder)
        assert "was not written" in caplog.text
        assert "rank0.engine" in left(folder / "engine")

    def test_ranks_are_timed_by_when_their_worker_was_free(self) -> None:
        assert rank_seconds([10.0, 25.0, 45.0], 0.0, 1) == [10.0, 15.0, 20.0]
        assert rank_seconds([10.0, 12.0, 30.0, 31.0], 0.0, 2) == [10.0, 12.0, 20.0, 19.0]


class TestFailure:
    def failed(self, job: Job, folder: Path) -> ToolFailed:
        """Build, and check that nothing that looks finished is left."""
        with pytest.raises(ToolFailed) as error:
            finish(job, folder)
        kept = {REFUSED} if "is kept in" in error.value.hint else set()
        assert left(folder) - {FAILED_LOG} == {"checkpoint"} | kept
        return error.value

    def test_the_three_ways_to_fail_have_three_errors(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        folder = build_folder(job)
        messages = []
        for mode in ("crash", "empty", "partial"):
            builder(mode)
            messages.append(self.failed(job, folder).message)
        crash, empty, partial = messages
        assert crash.startswith("trtllm-build failed with exit code 1")
        assert empty.startswith("trtllm-build ended without an error, but wrote no engine")
        assert partial.startswith(
            "trtllm-build ended without an error, but wrote 1 of 2 ranks: rank1.engine is missing or empty"
        )

    def test_the_last_20_lines_of_stderr_are_shown(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        builder("crash")
        error = self.failed(job, build_folder(job))
        shown = error.message.partition("the last 20 lines of its stderr:\n")[2].splitlines()
        assert len(shown) == 20
        assert shown[0].strip() == "frame 21"
        assert shown[-1].strip() == "RuntimeError: something nobody has seen"
        assert "not known" in error.hint

    def test_the_whole_log_of_a_failed_build_is_kept(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        folder = build_folder(job)
        builder("crash")
        assert str(folder / FAILED_LOG) in self.failed(job, folder).hint
        assert "frame 0" in (folder / FAILED_LOG).read_text()
        builder()
        finish(job, folder)
        assert left(folder) == {"checkpoint", "engine"}

    def test_an_empty_rank_file_is_a_missing_one(self, job: Job, builder: Builder, build_folder: Folder) -> None:
        builder("hollow")
        assert "rank1.engine is missing or empty" in self.failed(job, build_folder(job)).message

    def test_an_engine_of_before_stays_when_a_new_build_fails(
        self, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder()
        folder = build_folder(job)
        finish(job, folder)
        before = (folder / "engine" / "rank0.engine").stat().st_mtime_ns
        builder("crash")
        with pytest.raises(ToolFailed):
            finish(job, folder)
        assert (folder / "engine" / "rank0.engine").stat().st_mtime_ns == before

    @pytest.mark.parametrize(
        ("mode", "cause", "remedy"),
        [
            ("gpu_oom", "the GPU ran out of memory", "limits.max_num_tokens"),
            ("killed", r"killed by signal 9 \(SIGKILL\): it was killed from outside, as the kernel does", "engine.workers: 1"),
            ("unknown_argument", "does not know an option of this release", "set tensorrt_llm to the release"),
        ],
    )  # fmt: skip
    def test_what_went_wrong_is_said(
        self, mode: str, cause: str, remedy: str, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder(mode)
        error = self.failed(job, build_folder(job))
        assert re.search(cause, error.message)
        assert remedy in error.hint

    @pytest.mark.parametrize("version", ["1.2.0", "0.20.0"])
    def test_a_tool_that_says_it_is_of_another_release_is_stopped_before_it_builds(
        self, version: str, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        record, folder = builder("hang", version=version), build_folder(job)
        error = self.failed(job, folder)
        assert f"trtllm-build is of TensorRT-LLM {version}, and trtbuild.yaml asks for 1.2.1" in error.message
        assert "tritonserver:26.07-trtllm-python-py3" in error.hint
        assert f"TensorRT-LLM version: {version}" in (folder / FAILED_LOG).read_text()
        assert running_with(str(record)) == []

    @pytest.mark.parametrize("version", ["1.2.0", "0.20.0"])
    def test_another_release_than_was_asked_for_is_refused(
        self, version: str, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder("no_version", version=version)
        error = self.failed(job, build_folder(job))
        assert f"the engine is of TensorRT-LLM {version}, and trtbuild.yaml asks for 1.2.1" in error.message
        assert "tritonserver:26.07-trtllm-python-py3" in error.hint

    @pytest.mark.parametrize("version", ["1.2.1.post1", "1.2.1rc3", "unheard of"])
    def test_another_candidate_of_the_release_is_a_note(
        self, version: str, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        builder(version=version)
        assert version in finish(job, build_folder(job))["notes"][0]

    def test_an_engine_that_is_not_what_was_asked_for_is_not_left(
        self, job: Job, builder: Builder, build_folder: Folder
    ) -> None:
        folder = build_folder(job)
        builder(max_batch_size=32)
        error = self.failed(job, folder)
        assert "max_batch_size was to be 64, and is 32" in error.message
        assert str(folder / REFUSED) in error.hint
        assert "rank1.engine" in left(folder / REFUSED)
        builder()
        finish(job, folder)
        assert left(folder) == {"checkpoint", "engine"}

    def test_a_builder_that_falls_silent_is_stopped_with_its_workers(
        self, builder: Builder, build_folder: Folder
    ) -> None:
        builder("hang")
        job = make_job(engine={"stall_timeout_s": 1})
        folder = build_folder(job)
        error = self.failed(job, folder)
        assert "printed nothing for 1 s (engine.stall_timeout_s) and was stopped" in error.message
        pids = re.search(r"worker (\d+) of (\d+)", (folder / FAILED_LOG).read_text())
        assert pids is not None
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids.groups())

    def test_only_listed_variables_are_in_its_log_and_secrets_that_were_asked_for_are_not(
        self, job: Job, builder: Builder, build_folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builder("environment")
        monkeypatch.setenv(FURTHER, "FAKE_TRTLLM_*, MY_MIRROR_PWD")
        for name in ("HF_TOKEN", "MYSQL_PWD", "GITHUB_PAT", "INNOCENT", "MY_MIRROR_PWD"):
            monkeypatch.setenv(name, f"do_not_print_{name}")
        monkeypatch.setenv("NCCL_DEBUG", "INFO")
        folder = build_folder(job)
        record = finish(job, folder)
        log = (folder / "engine" / "build.log").read_text()
        assert {"PATH", "NCCL_DEBUG", "MY_MIRROR_PWD"} <= {line.partition("=")[0] for line in log.splitlines()}
        for text in (log, json.dumps(record)):
            assert "do_not_print" not in text
        assert "PATH=" not in (folder / "engine" / "manifest.json").read_text()


class TestMachine:
    def test_more_workers_than_the_memory_holds_are_warned_about(
        self, builder: Builder, build_folder: Folder, nvidia_smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        builder()
        nvidia_smi(H100.format(0, 0), H100.format(1, 1))
        monkeypatch.setattr("trtbuild.trtllm.build_engine.available_memory_bytes", lambda: 41)
        job = make_job(parallel={"tp_size": 2})
        with caplog.at_level(logging.WARNING, logger="trtbuild"):
            finish(job, build_folder(job))
        assert "2 ranks at a time may need 42 bytes of host memory" in caplog.text

    @pytest.mark.parametrize(
        ("driver", "is_old"), [("570.86.10", True), ("590.44", False), ("590.44.01", False), ("600.1", False)]
    )
    def test_a_driver_older_than_the_release_needs_is_a_note(
        self, driver: str, is_old: bool, builder: Builder, build_folder: Folder, nvidia_smi: Callable[..., None]
    ) -> None:
        builder(version="1.2.0")
        nvidia_smi(f"0, NVIDIA H100, 81559, 81000, {driver}, GPU-a, Disabled, 9.0")
        job = make_job(release="1.2.0")
        notes = finish(job, build_folder(job))["notes"]
        assert [note for note in notes if "is older than 590.44" in note] == (notes if is_old else [])
        assert bool(notes) is is_old

    def test_a_tool_whose_interpreter_is_missing_cannot_be_run(
        self, job: Job, build_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tool = tmp_path / "trtllm-build"
        tool.write_text("#!/nonexistent/python3\n")
        tool.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(tool))
        folder = build_folder(job)
        with pytest.raises(ToolFailed, match="cannot run .*trtllm-build: No such file"):
            finish(job, folder)
        assert left(folder) <= {"checkpoint", FAILED_LOG}

    def test_a_gpu_that_does_not_say_what_it_is_passes(
        self, builder: Builder, build_folder: Folder, nvidia_smi: Callable[..., None]
    ) -> None:
        builder()
        nvidia_smi("0, Graphics Device, [N/A], [N/A], 590.44, GPU-a, [N/A], [N/A]")
        job = make_job()
        assert finish(job, build_folder(job))["sm"] is None

    def test_a_failed_engine_leaves_the_checkpoint_for_the_same_build(
        self, job: Job, builder: Builder, build_folder: Folder, tmp_path: Path
    ) -> None:
        made, output = build_folder(job), tmp_path / "output"
        builder("crash")
        with pytest.raises(ToolFailed), staged_folder(output, work="the same") as stage:
            (made / "checkpoint").rename(stage / "checkpoint")
            finish(job, stage)
        builder()
        with staged_folder(output, work="the same") as stage:
            assert (stage / "checkpoint" / "rank1.safetensors").is_file()
            finish(job, stage)
        assert left(output) == {"checkpoint", "engine"}


class TestInterruption:
    def start(self, folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
        """Start a build that hangs in a process of its own; return it and the tool's processes."""
        code = (
            "from pathlib import Path; from tests.unit.trtllm.engine_jobs import make_job\n"
            "from trtbuild.targets.base import load_target\n"
            f"load_target('tensorrt').finish(make_job(), Path({str(folder)!r}), quiet=True)"
        )
        root = Path(__file__).parents[3]
        path = os.pathsep.join(map(str, (root / "builder", root / "client", root)))
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
        )
        log = folder / ".engine.partial" / "build.log"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(r"worker (\d+) of (\d+)", log.read_text()) if log.exists() else None
            if found:
                return process, [int(found[1]), int(found[2])]
            time.sleep(0.05)
        process.kill()
        raise AssertionError("the build did not begin")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_the_tool_and_its_workers_die_with_us(
        self, number: signal.Signals, builder: Builder, build_folder: Folder
    ) -> None:
        builder("hang")
        folder = build_folder(make_job())
        process, pids = self.start(folder)
        process.send_signal(number)
        process.wait(timeout=30)
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert "engine" not in left(folder)
        if number != signal.SIGKILL:
            assert left(folder) == {"checkpoint"}


class TestMissingTool:
    def test_the_message_has_the_container_and_the_very_command(
        self, job: Job, build_folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setenv("PATH", "/nonexistent")
        folder = build_folder(job)
        with pytest.raises(ToolFailed, match="not on PATH, and TRTBUILD_TRTLLM_BUILD names none") as error:
            finish(job, folder)
        assert "trtbuild build --until checkpoint" in error.value.hint
        command = error.value.hint.splitlines()[-1].split()
        image = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
        assert command[:5] == ["docker", "run", "--rm", "--gpus", "all"]
        assert f"{folder}:{folder}" in command
        after = command[command.index(image) + 1 :]
        assert after == ["trtllm-build", *arguments(job, folder / "checkpoint", folder / "engine", workers=2)]

    def test_preflight_says_so_before_anything_is_converted(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(ToolFailed, match="not on PATH"):
            load_target("tensorrt").preflight(job, tmp_path)  # type: ignore[attr-defined]  # of this target alone

    def test_a_variable_that_names_nothing_is_an_error(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VARIABLE, "/nonexistent/trtllm-build")
        with pytest.raises(UsageError, match="is no program that can be run"):
            load_target("tensorrt").preflight(job, tmp_path)  # type: ignore[attr-defined]  # of this target alone

    @pytest.mark.parametrize("first", ["#!{folder}/python3", "#!/usr/bin/env python3", "#!/usr/bin/env -S python3 -u"])
    def test_a_tool_of_another_release_is_refused_before_it_runs(
        self, first: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python = tmp_path / "python3"
        python.write_text('#!/bin/sh\necho \'{"tensorrt_llm": "1.1.0", "tensorrt": "10.13.3.9"}\'\n')
        python.chmod(0o755)
        tool = tmp_path / "trtllm-build"
        tool.write_text(first.format(folder=tmp_path) + "\n")
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        tool.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(tool))
        with pytest.raises(
            ToolFailed, match=r"trtllm-build is of TensorRT-LLM 1.1.0, and trtbuild.yaml asks for 1.2.1"
        ):
            load_target("tensorrt").preflight(job, tmp_path)  # type: ignore[attr-defined]  # of this target alone


H100 = "{}, NVIDIA H100 80GB HBM3, 81559, 81000, 590.44, GPU-{}, Disabled, 9.0"
A100 = "{}, NVIDIA A100-SXM4-80GB, 81920, 81000, 590.44, GPU-{}, Disabled, 8.0"
L40S = "{}, NVIDIA L40S, 46068, 45000, 590.44, GPU-{}, Disabled, 8.9"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that decides which GPUs nvidia-smi lists."""

    def choose(*rows: str) -> None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text("#!/bin/sh\ncat <<'END'\n" + "".join(f"{row}\n" for row in rows) + "END\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return choose


class TestGpus:
    @pytest.mark.parametrize(
        ("gpus", "visible", "given", "workers"),
        [(1, None, None, 1), (4, None, None, 2), (4, "2", None, 1), (4, None, 1, 1), (1, None, 8, 1), (4, "GPU-1,GPU-3", None, 2), (4, "2,9", None, 1)],
    )  # fmt: skip
    def test_there_are_as_many_workers_as_visible_gpus_and_ranks(
        self, gpus: int, visible: str | None, given: int | None, workers: int, builder: Builder, build_folder: Folder,
        nvidia_smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        record = builder()
        nvidia_smi(*(H100.format(number, number) for number in range(gpus)))
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        job = make_job(parallel={"tp_size": 2}, engine={"workers": given})
        finish(job, build_folder(job))
        written = json.loads(record.read_text())
        assert written[written.index("--workers") + 1] == str(workers)

    @pytest.mark.parametrize(
        ("rows", "visible", "sections", "message"),
        [
            ([], None, {}, "no GPU is visible"),
            ([H100.format(0, 0)], "", {}, "no GPU is visible"),
            ([H100.format(0, 0), L40S.format(1, 1)], None, {}, "GPUs of different architectures: NVIDIA H100 80GB HBM3 .SM90., NVIDIA L40S"),
            ([A100.format(0, 0)], None, {"quant_algo": "FP8"}, "on this machine's NVIDIA A100-SXM4-80GB: FP8 does not run on sm80"),
            ([L40S.format(0, 0)], None, {"gpu": "h100"}, r"hardware.gpu is h100 .SM90., and this machine has NVIDIA L40S .SM89."),
        ],
    )  # fmt: skip
    def test_gpus_that_would_make_another_engine_are_refused(
        self, rows: list[str], visible: str | None, sections: dict[str, Any], message: str, builder: Builder, tmp_path: Path,
        nvidia_smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        builder()
        nvidia_smi(*rows)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(ToolFailed, match=message):
            load_target("tensorrt").preflight(make_job(parallel={"tp_size": 2}, **sections), tmp_path)  # type: ignore[attr-defined]  # of this target alone


@pytest.mark.parametrize(
    ("quantization", "release"),
    [({}, "1.2.1"), ({"scheme": "int8_weight_only"}, "0.17.0"), ({"scheme": "int4_rtn", "group_size": 64}, "1.0.0"),
     ({"scheme": "fp8_per_channel_per_token", "overrides": {"*.down_proj": "none"}}, "1.2.1")],
)  # fmt: skip
def test_a_converted_checkpoint_is_built_and_rendered(
    quantization: dict[str, Any], release: str, make_model: Callable[..., Path], builder: Builder, tmp_path: Path
) -> None:
    from trtbuild.convert.run import convert_into, plan_deployment
    from trtbuild.repo.context import build_context
    from trtbuild.spec import parse

    model = make_model(hidden_size=128, intermediate_size=256)
    deployment = parse(
        {
            "model": {"path": str(model)}, "target": "tensorrt", "tensorrt_llm": release, "quantization": quantization,
            "parallel": {"tp_size": 2}, "limits": {"max_batch_size": 8},
        },
        origin="test",
    )  # fmt: skip
    builder(version=release)
    plan = plan_deployment(deployment)
    job = Job.of(deployment, plan)
    target = load_target("tensorrt")
    target.check(job)
    checkpoint = tmp_path / "build" / "checkpoint"
    checkpoint.mkdir(parents=True)
    convert_into(plan, deployment, checkpoint, key="k", memory_bytes=2**30, quiet=True)
    record = finish(job, tmp_path / "build")
    assert (record["tp_size"], record["tensorrt_llm"]) == (2, release)
    context = build_context(
        deployment,
        json.loads((checkpoint / "config.json").read_text()),
        checkpoint_dir=checkpoint,
        tokenizer_dir=checkpoint,
        engine_dir=tmp_path / "build" / "engine",
    )
    assert context.max_batch_size == 8
    assert context.engine_parameters["enable_chunked_context"] is True
