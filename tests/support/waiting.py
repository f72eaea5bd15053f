"""How a test waits: for a condition, with a limit that only something broken reaches."""

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds that anything may take on a busy machine; anything slower is broken."""


def poll(
    condition: Callable[[], object],
    subject: str | Callable[[], str] = "the condition holds",
    seconds: float = PATIENCE,
) -> None:
    """Return once the condition holds; fail when time is up.

    The condition is read often at first, then ten times a second: reads cost a process time.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        if time.monotonic() > deadline:
            text = subject if isinstance(subject, str) else subject()
            raise AssertionError(f"not within {seconds} s: {text}")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)
