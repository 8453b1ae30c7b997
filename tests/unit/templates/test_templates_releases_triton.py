"""The repositories of older releases, and queues with priorities, load and answer in a real tritonserver around a scripted core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.templates.test_templates_triton import Deployed, render_scripted

from trtbuild.serve.supervisor import Server

pytestmark = pytest.mark.triton

#: One of each set of tensors but the newest, which the other tests serve -> what its requests call two settings.
OLDER = {
    "0.17": ("min_length", "return_kv_cache_reuse_stats"),
    "0.19": ("min_length", "return_perf_metrics"),
    "0.20": ("min_tokens", "return_perf_metrics"),
}
QUEUE: dict[str, Any] = {
    "max_queue_size": 50, "queue_timeout_us": 60_000_000, "allow_timeout_override": True, "priority_levels": 3,
    "default_priority_level": 2,
}  # fmt: skip


@pytest.mark.parametrize("line", OLDER)
def test_every_set_of_tensors_loads_and_answers(tmp_path: Path, line: str) -> None:
    length, statistics = OLDER[line]
    repository, log = render_scripted(tmp_path, tensorrt_llm=line, serving=QUEUE)
    with Server(repository) as server:
        deployed = Deployed(server.grpc_url, log)
        for model in ("ensemble", "tensorrt_llm_bls"):
            answer = deployed.ask(model, "é家", 5, **{length: [[1]], statistics: [[True]]})
            assert ("".join(answer.texts), answer.error, answer.was_final) == ("é家", "", True), model
            unknown = deployed.ask(model, "x", 1, return_num_input_tokens=[[True]])
            assert "return_num_input_tokens" in unknown.error
