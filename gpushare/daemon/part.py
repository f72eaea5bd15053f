"""Part: one thing that a process starts, stops, and asks for its state.

A process is a list of parts. A new part is one class and one line in that list.

Tested in `tests/unit/extender/test_settler.py`.
"""

from collections.abc import Mapping

from gpushare.daemon.loop import Loop

STOP_SECONDS = 1.0
"""Seconds for a step under way when a part is stopped."""


class Part:
    """A part of a process. A subclass overrides the methods that it needs."""

    def start(self) -> None:
        """Start the threads of the part. The process has made its last fork."""

    def stop(self) -> None:
        """End the threads of the part, within about a second."""

    def tick(self, is_ready: bool, /) -> None:
        """Do the short work that is due. One thread calls this once a second.

        is_ready: whether this process answers calls.
        """

    def state(self) -> Mapping[str, float]:
        """Return the values of the part for metrics, by name."""
        return {}

    def liveness(self) -> Mapping[str, str]:
        """Return, by check, the problem that only a restart of the process solves; "" for none."""
        return {}


class LoopPart(Part):
    """A part with one thread that repeats a step. The constructor of the subclass sets `loop`."""

    loop: Loop

    def start(self) -> None:
        """Start the thread."""
        self.loop.start()

    def stop(self) -> None:
        """End the thread. A step under way gets STOP_SECONDS."""
        self.loop.stop(STOP_SECONDS)
