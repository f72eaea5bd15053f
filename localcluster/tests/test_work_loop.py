"""An added key is handled once for all adds before, and again after the returned time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpushare.errors import ApiUnavailable
from gpushare_localcluster.informer import WorkLoop

SOON = 60.0


@contextmanager
def running(step: Callable[[str], float | None]) -> Iterator[WorkLoop[str]]:
    loop = WorkLoop("test", (), step)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_a_key_is_looked_at_once_for_all_that_named_it_meanwhile() -> None:
    begun, go_on, finished = threading.Event(), threading.Event(), threading.Event()
    keys: list[str] = []

    def step(key: str) -> None:
        keys.append(key)
        begun.set()
        assert go_on.wait(SOON)
        if key == "last":
            finished.set()

    with running(step) as loop:
        loop.add("a")
        assert begun.wait(SOON)
        for key in (
            "a",
            "b",
            "b",
            "a",
            "last",
        ):  # the first step is running: the key is queued again
            loop.add(key)
        go_on.set()
        assert finished.wait(SOON)
    assert keys == ["a", "a", "b", "last"]


@pytest.mark.parametrize("failure", [ApiUnavailable("away", 0), None])
def test_a_step_that_fails_or_asks_for_it_is_repeated_later(failure: Exception | None) -> None:
    times: list[float] = []
    finished = threading.Event()

    def step(_: str) -> float | None:
        times.append(time.monotonic())
        if len(times) > 1:
            finished.set()
            return None
        if failure:
            raise failure
        return 0.2

    with running(step) as loop:
        loop.add("a")
        assert finished.wait(SOON)
    assert times[1] - times[0] >= 0.2


def test_a_key_that_nobody_can_understand_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished = threading.Event()

    def step(key: str) -> None:
        if key == "odd":
            raise KeyError("spec")
        finished.set()

    with running(step) as loop:
        loop.add("odd")
        loop.add("good")
        assert finished.wait(SOON)
    assert "not done loop=test key=odd" in caplog.text


def test_a_loop_ends_though_a_key_is_due_later() -> None:
    keys = threading.Event()

    def step(_: str) -> float:
        keys.set()
        return 3600.0

    began = time.monotonic()
    with running(step) as loop:
        loop.add("a")
        assert keys.wait(SOON)
    assert time.monotonic() - began < SOON
    assert not any(thread.name == "test" for thread in threading.enumerate())
