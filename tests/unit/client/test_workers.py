"""Work in threads: an interruption at any moment ends all of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trtbuild_client.workers import run_interruptibly


def test_all_workers_run_and_the_call_returns_when_they_are_done() -> None:
    together = threading.Barrier(3)
    run_interruptibly(lambda _: bool(together.wait(10)), 3, cancel=lambda: None)
    assert not together.broken


def test_a_workers_error_is_raised_after_all_have_ended() -> None:
    ended: list[int] = []
    numbers: Iterator[int] = iter(range(3))

    def work(_: threading.Event) -> None:
        number = next(numbers)
        ended.append(number)
        if number == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        run_interruptibly(work, 3, cancel=lambda: None)
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("moment", ["first start", "second start", "waiting"])
def test_an_interruption_at_any_moment_ends_all_workers(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    ended: list[bool] = []
    moments = iter(["first start", "second start", "waiting"])

    def work(is_interrupted: threading.Event) -> None:
        if not is_interrupted.is_set():
            assert released.wait(10)
        ended.append(is_interrupted.is_set())

    def interrupt() -> None:
        if next(moments) == moment:
            raise KeyboardInterrupt

    start = threading.Thread.start

    def interrupted_start(self: threading.Thread) -> None:
        start(self)
        interrupt()

    def interrupted_acquire(self: threading.Semaphore, timeout: float) -> bool:
        interrupt()
        return True

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    monkeypatch.setattr(threading.Semaphore, "acquire", interrupted_acquire)
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work, 2, cancel=released.set)
    assert len(ended) == (1 if moment == "first start" else 2)
    assert all(ended)
