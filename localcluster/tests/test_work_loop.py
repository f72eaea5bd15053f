"""A key that was added is looked at, once for all that named it, and again when it asks to be."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpushare.errors import ApiUnavailable
from gpushare_localcluster.work_loop import WorkLoop

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
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def step(key: str) -> None:
        seen.append(key)
        begun.set()
        assert go_on.wait(SOON)
        if key == "last":
            done.set()

    with running(step) as loop:
        loop.add("a")
        assert begun.wait(SOON)
        for key in ("a", "b", "b", "a", "last"):  # the first one is under way: it counts again
            loop.add(key)
        go_on.set()
        assert done.wait(SOON)
    assert seen == ["a", "a", "b", "last"]


@pytest.mark.parametrize("failure", [ApiUnavailable("away", 0), None])
def test_a_step_that_fails_or_asks_for_it_is_repeated_later(failure: Exception | None) -> None:
    times: list[float] = []
    done = threading.Event()

    def step(_: str) -> float | None:
        times.append(time.monotonic())
        if len(times) > 1:
            done.set()
            return None
        if failure:
            raise failure
        return 0.2

    with running(step) as loop:
        loop.add("a")
        assert done.wait(SOON)
    assert times[1] - times[0] >= 0.2


def test_a_key_that_nobody_can_understand_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()

    def step(key: str) -> None:
        if key == "odd":
            raise KeyError("spec")
        done.set()

    with running(step) as loop:
        loop.add("odd")
        loop.add("good")
        assert done.wait(SOON)
    assert "not done loop=test key=odd" in caplog.text


def test_a_loop_ends_though_a_key_is_due_later() -> None:
    seen = threading.Event()

    def step(_: str) -> float:
        seen.set()
        return 3600.0

    began = time.monotonic()
    with running(step) as loop:
        loop.add("a")
        assert seen.wait(SOON)
    assert time.monotonic() - began < SOON
    assert not any(thread.name == "test" for thread in threading.enumerate())
