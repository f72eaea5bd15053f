"""Stories: run from a seed, ended well, and made short if they end badly.

`tell` runs a list of numbers; an error of the run is the end of the story. `shrink` cuts steps out
of a failing story as long as the story fails in the same way.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.chance import numbers
from tests.simulation.oracle import Violation
from tests.simulation.preempting import serve_the_urgent
from tests.simulation.replica import Alarms
from tests.simulation.rest import come_to_rest, stop_faults
from tests.simulation.service import serve_the_honest
from tests.simulation.steps import take_step
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Told:
    """An ended story. error: "" or the broken promise; at: the step of the failure."""

    error: str
    at: int
    fired: Counter[str]


def tell(story: list[int], listener: Callable[[str], None] | None = None) -> Told:
    """How the story ends."""
    at = 0
    world: World | None = None
    with _alarms() as alarms:
        try:
            world = World(story[0], listener)
            for number in story[1:]:
                at += 1
                take_step(world, number)
                _raise(alarms)
            at += 1
            if world.setting.hostile:
                stop_faults(world)
                serve_the_honest(world, story[0])
            if world.setting.preempts:
                stop_faults(world)
                serve_the_urgent(world, story[0])
            come_to_rest(world)
            _raise(alarms)
        except Exception as error:
            is_violation = isinstance(error, Violation)
            text = str(error) if is_violation else f"X3 {type(error).__name__}: {error}"
            if listener is not None and not is_violation:
                logging.getLogger(__name__).exception("the story ends")
            return Told(text, at, world.fired if world else Counter())
        finally:
            if world is not None:
                world.close()
    return Told("", at, world.fired)


def shrink(story: list[int], error: str) -> list[int]:
    """A shorter story that breaks the same promise, cut as in delta debugging (Zeller)."""
    promise = error.split(" ", 1)[0]
    story = story[: tell(story).at + 1]
    size = max(1, (len(story) - 1) // 2)
    while size:
        start = 1
        while start < len(story):
            shorter = story[:start] + story[start + size :]
            if tell(shorter).error.split(" ", 1)[0] == promise:
                story = shorter
            else:
                start += size
        size //= 2
    return story


def replay(story: list[int]) -> str:
    """The story in words, with the end."""
    lines: list[str] = []
    outcome = tell(story, lines.append)
    return "\n".join([*lines, outcome.error or "it ends well"])


def of_seed(seed: int, steps: int) -> list[int]:
    """The story of a seed."""
    return numbers(seed, steps)


@contextmanager
def _alarms() -> Iterator[Alarms]:
    logger = logging.getLogger("gpushare")
    alarms = Alarms()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(alarms)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield alarms
    finally:
        logger.removeHandler(alarms)
        logger.setLevel(level)
        logger.propagate = propagate


def _raise(alarms: Alarms) -> None:
    if alarms.said:
        raise Violation(f"X3 {alarms.said[0]}")
