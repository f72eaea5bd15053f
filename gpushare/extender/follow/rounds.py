"""A thread that does the same again and again, sooner if a round could not do all.

Tested in `tests/unit/extender/follow/test_rounds.py`.
"""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("gpushare.serve")


class Rounds:
    """Calls `round` in a thread of this name.

    round: returns whether nothing is left to be done. every, again: seconds until the next one
    after a round that did all, and after another.
    """

    def __init__(
        self,
        name: str,
        round_: Callable[[], bool],
        every: float,
        again: float,
        stopping: threading.Event,
    ) -> None:
        self._name = name
        self._round = round_
        self._every = every
        self._again = again
        self._stopping = stopping
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Make rounds until `stop`."""
        done = False
        while not self._stopping.wait(self._every if done else self._again):
            try:
                done = self._round()
            except Exception:
                # The thread must go on: what it has written would stay for ever.
                log.exception("%s failed", self._name)

    def stop(self) -> None:
        """End the thread; a round under way is not waited for long."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)
