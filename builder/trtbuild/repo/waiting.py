"""How requests wait for a model, in the form that templates print."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trtbuild.spec import Section, Serving

NotNegative = Annotated[int, Meta(ge=0)]


class Queue(Section, frozen=True):
    """How requests wait for a model (Triton's ModelDynamicBatching and ModelQueuePolicy)."""

    max_size: NotNegative
    max_delay_us: NotNegative
    timeout_us: NotNegative
    timeout_action: Literal["REJECT", "DELAY"]
    allow_timeout_override: bool
    priority_levels: NotNegative
    default_priority_level: NotNegative

    @classmethod
    def of(cls, serving: Serving) -> Queue:
        """Return the queue that a deployment asks for."""
        levels = serving.priority_levels
        return cls(
            max_size=serving.max_queue_size,
            max_delay_us=serving.max_queue_delay_us,
            timeout_us=serving.queue_timeout_us,
            timeout_action="REJECT" if serving.queue_timeout_action == "reject" else "DELAY",
            allow_timeout_override=serving.allow_timeout_override,
            priority_levels=levels,
            default_priority_level=serving.default_priority_level or levels,
        )
