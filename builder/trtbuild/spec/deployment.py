"""trtbuild.yaml as a whole.

Knows the sections and their order. Does not know models: whether tp_size fits the heads is the business of `parallel.py`,
whether a scheme exists that of `names.py`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

from msgspec import Meta

from trtbuild.errors import UsageError
from trtbuild.names import TARGETS
from trtbuild.spec.building import Engine, Hardware, Limits, ParallelSection, Speculative
from trtbuild.spec.model import Model
from trtbuild.spec.quantization import Accuracy, Quantization
from trtbuild.spec.running import KvCache, LlmApi, Lora, Scheduling
from trtbuild.spec.section import Section
from trtbuild.spec.serving import Serving


class Deployment(Section, frozen=True):
    """The whole of trtbuild.yaml."""

    model: Model
    target: Annotated[str, Meta(description=f"One of: {', '.join(TARGETS)}.")] = "reference"
    tensorrt_llm: Annotated[
        str | None,
        Meta(
            description='TensorRT-LLM release that will build and serve, e.g. 1.2.1, or "1.2" with quotes for the newest 1.2; empty: the newest stable one that can.'
        ),
    ] = None
    quantization: Quantization = Quantization()
    parallel: ParallelSection = ParallelSection()
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    scheduling: Scheduling = Scheduling()
    engine: Engine = Engine()
    llm_api: LlmApi = LlmApi()
    speculative: Speculative = Speculative()
    lora: Lora = Lora()
    serving: Serving = Serving()
    hardware: Hardware = Hardware()
    accuracy: Accuracy = Accuracy()

    def __post_init__(self) -> None:
        """Refuse a target that there is not."""
        require_target(self.target, ValueError)


def require_target(name: str, error: type[Exception] = UsageError) -> None:
    """Raise `error` unless there is such a target."""
    if name not in TARGETS:
        near = get_close_matches(name, TARGETS, n=1)
        raise error(
            f"unknown target '{name}'" + (f", did you mean '{near[0]}'?" if near else f"; known: {', '.join(TARGETS)}")
        )
