"""What the driver drives: an endpoint that makes connections and requests, and conversations that go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from trtbuild_client.load.connections import Connection
from trtbuild_client.load.exchange import Exchange, Job
from trtbuild_client.load.outcomes import Mark
from trtbuild_client.load.workload import Session

if TYPE_CHECKING:
    from trtbuild_client.load.connections import Watcher


class Endpoint(Protocol):
    """A server and a way to talk to it."""

    def connect(self, watcher: Watcher, deadline_ns: int) -> Connection:
        """Open a connection."""

    def exchange(
        self, job: Job, due_ns: int, on_end: Callable[[Exchange], None], on_late: Callable[[Exchange, Mark], None]
    ) -> Exchange:
        """Return a request that has not been sent."""

    def can_take(self, connection: Connection) -> bool:
        """Say whether another request may be sent on a connection."""

    def descriptors(self, requests: int) -> int:
        """Return how many file descriptors so many requests at the same time take."""


class Conversation:
    """A session that goes on."""

    __slots__ = ("index", "messages", "session", "turn")

    def __init__(self, index: int, session: Session) -> None:
        self.index = index
        self.session = session
        self.turn = 0
        self.messages: tuple[str, ...] = ()
