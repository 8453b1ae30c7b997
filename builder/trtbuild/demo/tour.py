"""The tour itself: which commands the demo runs, what it checks, and what it says at the end.

Everything between the import of the model and the answer is done by trtbuild commands in processes of their own.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtbuild.demo import folder as demo_folder
from trtbuild.demo.fetch import model_file
from trtbuild.demo.runner import Background, Runner
from trtbuild.demo.smollm import import_model
from trtbuild.errors import CheckFailed
from trtbuild.serve.signals import stop_signals_interrupt

logger = logging.getLogger(__name__)

PROMPT = "The capital of France is"
EXPECTED = "Paris"
MAX_TOKENS = 32
#: The model ends its sentence and then goes on about something else; the first line is the answer.
STOP = "\n"
#: Settings of the demo: SmolLM2-135M has 9 heads and 3 KV heads, so 3 is the only split of it, and 576 = 9 x 64 inputs, so that groups
#: hold 64; calibration and evaluation are kept short, since they run on a laptop's CPU.
SETTINGS = (
    "--target", "reference", "--quantization", "int4_awq", "--kv-cache", "fp8", "--tp", "3",
    "--set", "quantization.group_size=64", "--set", "parallel.embedding=vocab",
    "--set", "limits.max_batch_size=8", "--set", "limits.max_seq_len=1024",
    "--set", "quantization.calibration.max_length_tokens=256",
)  # fmt: skip
EVALUATION = ("--max-samples", "8", "--max-length", "256")
FREE_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
#: Seconds; generous, since importing torch three times at once takes long on a busy machine.
READY_TIMEOUT = ("--ready-timeout", "600")
LOAD = ("--requests", "8", "--concurrency", "2", "--max-tokens", str(MAX_TOKENS))
#: One, two and four requests in flight, a few seconds each. Client and model share the machine, so the client may call the runs invalid: the report says so.
SWEEP = (
    "--concurrency", "1,2,4", "--duration", "6s", "--warmup", "1", "--drain", "20s",
    "--input-tokens", "32", "--output-tokens", "12", "--allow-invalid",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What quantization saved and cost.

    Attributes:
        source_bytes: of the model's weights.
        checkpoint_bytes: of all rank files together.
        source_perplexity: on the built-in held-out texts.
        perplexity: of the checkpoint as it was written.
        report: HTML page with the error of every layer.
    """

    source_bytes: int
    checkpoint_bytes: int
    source_perplexity: float
    perplexity: float
    report: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found.

    Attributes:
        output: folder with all artifacts.
        answer: the model's answer to `PROMPT`.
        accuracy: see `Accuracy`.
        probe: what the probe printed: a table, or JSON.
        load: HTML page of the load test.
        steps: (name, command, seconds) of every step.
        seconds: of the whole demo.
        server: the server when it was left running.
    """

    output: Path
    answer: str
    accuracy: Accuracy
    probe: str
    load: str
    steps: list[tuple[str, str, float]]
    seconds: float
    server: Background | None

    def to_json(self) -> dict[str, Any]:
        """Return the result for --json; the probe's must be JSON then."""
        return {
            "output": str(self.output.absolute()),
            "prompt": PROMPT,
            "answer": self.answer,
            "accuracy": asdict(self.accuracy),
            "steps": [{"name": name, "command": command, "seconds": s} for name, command, s in self.steps],
            "seconds": self.seconds,
            "probe": json.loads(self.probe),
            "load": self.load,
            "server": self.server.addresses() if self.server else None,
        }


def run_demo(output: Path, *, gguf: Path | None, keep: bool, as_json: bool, force: bool) -> Outcome:
    """Run the whole path; on return or on any error the server is stopped unless `keep` and all went well.

    Args:
        output: folder for everything that is made.
        gguf: the model file; None fetches it.
        keep: leave the server running.
        as_json: have the probe print JSON.
        force: use a folder that a demo did not make, and import the model again.

    Raises:
        TrtbuildError: a step failed; the message has the end of its log.
        CheckFailed: the model's answer is wrong, or a step found something.
    """
    started = time.perf_counter()
    demo_folder.prepare(output, force=force)
    model, yaml, build = (str(output / name) for name in ("model", "trtbuild.yaml", "build"))
    imported = _import(gguf, output / "model")
    runner = Runner(output / "logs")
    with stop_signals_interrupt():
        runner.run("init", model, "-o", yaml, *SETTINGS)
        runner.run("plan", yaml)
        runner.run("build", yaml, "-o", build)
        accuracy = _evaluate(runner, output)
        runner.run("render", build)
        runner.run("lint", str(output / "build" / "repository"))
        server = runner.start("serve", build, *FREE_PORTS, *READY_TIMEOUT, "--json")
        try:
            address = str(server.ready["grpc_url"])
            asked = ("generate", PROMPT, "--url", address, "--max-tokens", str(MAX_TOKENS), "--stop", STOP)
            answer = runner.run(*asked).stdout.strip()
            if EXPECTED not in answer:
                raise CheckFailed(f"the answer to {PROMPT!r} is {answer!r}", hint=f"it should contain {EXPECTED}")
            probe = runner.run("probe", "--url", address, *LOAD, *(["--json"] if as_json else [])).stdout
            load, tokenizer = str(output / "load.html"), str(output / "build" / "checkpoint" / "tokenizer")
            runner.run("bench", "--url", address, *SWEEP, "--tokenizer", tokenizer, "--html", load)
            outcome = Outcome(
                output=output,
                answer=answer,
                accuracy=accuracy,
                probe=probe,
                load=load,
                steps=[imported, *((step.name, step.command, round(step.seconds, 3)) for step in runner.steps)],
                seconds=round(time.perf_counter() - started, 3),
                server=server if keep else None,
            )
            demo_folder.record(output, _summary(outcome))
        except BaseException:
            server.stop()
            raise
        if not keep:
            server.stop()
    return outcome


def closing_words(outcome: Outcome) -> list[str]:
    """Return what to tell a person at the end: the answer, the latency table, and what to do next."""
    lines = [f"{PROMPT} ... {outcome.answer}", "", *_accuracy_words(outcome.accuracy), "", outcome.probe.rstrip(), ""]
    lines.append(f"latency against load, one to four requests at a time: {outcome.load}")
    lines.append(f"done in {outcome.seconds:.0f} s; everything made is in {outcome.output}")
    if outcome.server is None:
        return [*lines, f"serve it again: trtbuild serve {shlex.quote(str(outcome.output / 'build'))}"]
    server = outcome.server.addresses()
    body = shlex.quote(json.dumps({"text_input": PROMPT, "max_tokens": 16}))
    stream = shlex.quote(json.dumps({"text_input": PROMPT, "max_tokens": 16, "stream": True}))
    return [
        *lines,
        f"the server is running (process {server['pid']}); talk to it:",
        f"  trtbuild generate 'Once upon a time' --url {server['grpc_url']} --max-tokens 64",
        f"  curl -s {server['http_url']}/v2/models/ensemble/generate -d {body}",
        f"  curl -sN {server['http_url']}/v2/models/tensorrt_llm_bls/generate_stream -d {stream}",
        f"  curl -s {server['metrics_url']} | grep nv_trt_llm",
        "stop it:",
        f"  kill {server['pid']}",
    ]


def _evaluate(runner: Runner, output: Path) -> Accuracy:
    """Compare the checkpoint with the model it was made from."""
    report = output / "accuracy.html"
    found = json.loads(
        runner.run("evaluate", str(output / "build"), *EVALUATION, "--html", str(report), "--json").stdout
    )
    return Accuracy(
        source_bytes=_weight_bytes(output / "model"),
        checkpoint_bytes=_weight_bytes(Path(found["folder"])),
        source_perplexity=found["quality"]["source_perplexity"],
        perplexity=found["quality"]["quantized_perplexity"],
        report=str(report),
    )


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _accuracy_words(accuracy: Accuracy) -> list[str]:
    before, after = (f"{size / 1e6:.0f} MB" for size in (accuracy.source_bytes, accuracy.checkpoint_bytes))
    return [
        f"weights     {before} -> {after} (INT4 AWQ, groups of 64, 3 ranks)",
        f"perplexity  {accuracy.source_perplexity:.2f} -> {accuracy.perplexity:.2f} on held-out texts; every layer: {accuracy.report}",
    ]


def _import(gguf: Path | None, folder: Path) -> tuple[str, str, float]:
    """Import the model; returns the step as (name, what was done, seconds)."""
    started = time.perf_counter()
    file = gguf or model_file()
    logger.info("# SmolLM2-135M-Instruct from %s", file)
    is_new = import_model(file, folder)
    seconds = time.perf_counter() - started
    logger.info("  %-10s %6.1f s%s", "import", seconds, "" if is_new else "  (kept from an earlier demo)")
    return "import", f"# {file} to {folder}", round(seconds, 3)


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "complete": True,
        "prompt": PROMPT,
        "answer": outcome.answer,
        "accuracy": asdict(outcome.accuracy),
        "seconds": outcome.seconds,
        "steps": [{"name": name, "command": command, "seconds": s} for name, command, s in outcome.steps],
        "server_pid": outcome.server.process.pid if outcome.server else None,
    }
