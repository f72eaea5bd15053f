"""How a test waits: for a condition, with a limit that only something broken reaches."""

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Upper bound on the seconds of any wait, also on a busy machine."""


def poll(
    condition: Callable[[], object],
    description: str | Callable[[], str] = "the condition holds",
    seconds: float = PATIENCE,
) -> None:
    """Return once the condition holds; fail after a time limit.

    The condition is checked often at first and ten times a second later, as a check costs the other
    process time too.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        if time.monotonic() > deadline:
            text = description if isinstance(description, str) else description()
            raise AssertionError(f"not within {seconds} s: {text}")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)
