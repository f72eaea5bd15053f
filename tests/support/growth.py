"""Whether a cost grows with its input and no faster: counted in CPU time, with wide margins."""

import time
from collections.abc import Callable

_FLOOR = 0.02
"""CPU seconds below which nothing is compared: noise, and harmless."""
_TRIES = 3
"""What grows with the square does so each time; a shared machine may be slow for one of the two."""


def cost(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU seconds of a few rounds."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
        if found[-1] > 1.0:  # once tells it
            break
    return min(found)


def assert_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """Fail if twice the input costs more than three times as much, each time that it is tried.

    work: for a size, what is measured; its input is made before.
    """
    for _ in range(_TRIES):
        once, twice = cost(work(size)), cost(work(2 * size))
        if twice <= 3 * max(once, _FLOOR):
            return
    raise AssertionError(f"{size}: {once:.3f} s, {2 * size}: {twice:.3f} s")
