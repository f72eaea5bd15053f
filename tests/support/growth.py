"""Whether a cost grows linearly with the input: counted in CPU time, with wide margins."""

import time
from collections.abc import Callable

_FLOOR = 0.02
"""CPU seconds below which nothing is compared: noise, and harmless."""
_ROUNDS = 5


def assert_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """Fail if twice the input costs more than three times as much, by the minimum of some rounds.

    work: from a size to the measured function, with its input prepared. Both sizes are measured in
    turn: a shared machine that is slow for a second is slow for both.
    """
    small, large = work(size), work(2 * size)
    costs = []
    for _ in range(_ROUNDS):
        costs.append((_cost(small), _cost(large)))
        if costs[-1][0] > 1.0:  # one round is enough
            break
    once, twice = (min(item) for item in zip(*costs, strict=True))
    assert twice <= 3 * max(once, _FLOOR), f"{size}: {once:.3f} s, {2 * size}: {twice:.3f} s"


def _cost(work: Callable[[], object]) -> float:
    """CPU seconds."""
    begin = time.process_time()
    work()
    return time.process_time() - begin
