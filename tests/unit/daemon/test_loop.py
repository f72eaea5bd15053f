"""A loop repeats a step after failures and wakes, and begins no step after `stop`."""

import logging
import queue
from collections.abc import Iterator

import pytest

from gpushare.daemon.loop import Loop
from gpushare.errors import SettingsError
from tests.support.waiting import poll

LOG = logging.getLogger("gpushare.test")
SECONDS = 10.0
LONG = 3600.0


class Steps:
    """A loop with scripted steps: each step takes the next result of the test."""

    def __init__(self, interval: float, *, at_once: bool) -> None:
        self.results: queue.Queue[float | Exception | None] = queue.Queue()
        self.done: queue.Queue[float | Exception | None] = queue.Queue()
        self.loop = Loop(
            "test", self.step, interval, log=LOG, failed="test failed", at_once=at_once
        )

    def step(self) -> float | None:
        result = self.results.get(timeout=SECONDS)
        self.done.put(result)
        if isinstance(result, Exception):
            raise result
        return result

    def does(self, result: float | Exception | None) -> None:
        """Wait for a step, which does this."""
        self.results.put(result)
        assert self.done.get(timeout=SECONDS) is result


@pytest.fixture
def steps() -> Iterator[Steps]:
    new_steps = Steps(0.01, at_once=True)
    new_steps.loop.start()
    yield new_steps
    new_steps.results.put(None)
    new_steps.loop.stop(SECONDS)
    assert not new_steps.loop.alive()


def test_it_goes_on_whatever_a_step_raises(steps: Steps, caplog: pytest.LogCaptureFixture) -> None:
    steps.does(SettingsError("a reason"))
    steps.does(ValueError("a bug"))
    steps.does(None)
    steps.does(0.0)
    steps.does(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", 'test failed error="a reason"'),
        ("ERROR", "test failed"),
    ]
    assert caplog.records[1].exc_info


def test_a_step_says_when_the_next_one_is_unless_it_is_woken() -> None:
    steps = Steps(LONG, at_once=True)
    steps.loop.start()
    steps.does(0.0)
    steps.does(None)
    steps.results.put(LONG)
    with pytest.raises(queue.Empty):
        steps.done.get(timeout=0.1)
    steps.loop.wake()
    assert steps.done.get(timeout=SECONDS) == LONG
    steps.loop.stop(SECONDS)
    assert not steps.loop.alive()


def test_the_first_step_comes_after_the_pause_and_none_after_the_end() -> None:
    steps = Steps(LONG, at_once=False)
    steps.results.put(None)
    steps.loop.stop(SECONDS)  # before the start there is no thread to wait for
    steps = Steps(LONG, at_once=False)
    steps.results.put(None)
    steps.loop.start()
    assert steps.loop.alive()
    steps.loop.stop(SECONDS)
    assert not steps.loop.alive()
    assert steps.done.empty()


def test_progress_is_a_start_a_step_or_a_note_within_a_long_step() -> None:
    now = [100.0]
    ages: list[float] = []

    def step() -> None:
        now[0] += 7.0
        ages.append(loop.seconds_since_progress())
        loop.note_progress()
        ages.append(loop.seconds_since_progress())
        loop.stop()

    loop = Loop(
        "test", step, 0.01, log=LOG, failed="test failed", at_once=True, clock=lambda: now[0]
    )
    now[0] += 50.0
    assert loop.seconds_since_progress() == 50.0
    loop.start()
    poll(lambda: not loop.alive())
    assert ages == [7.0, 0.0]


def test_a_step_rests_until_the_loop_stops() -> None:
    rests: list[bool] = []

    def step() -> None:
        rests.append(loop.rest(0.0))
        loop.stop()
        rests.append(loop.rest(LONG))

    loop = Loop("test", step, LONG, log=LOG, failed="test failed", at_once=True)
    loop.run()
    assert rests == [False, True]
    assert loop.is_stopping
