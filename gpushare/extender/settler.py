"""The thread `settle`, which calls `tick` of each part of the process once a second.

Tested in `tests/unit/extender/test_settler.py` and `tests/integration/test_serve_threads.py`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart, Part
from gpushare.logline import Line

log = logging.getLogger("gpushare.serve")

STUCK = 120.0
"""Seconds without a step until this process counts as not alive."""
_EVERY = 1.0


class Settler(LoopPart):
    """Calls `tick` of the parts in order. not_ready: why this process must not answer, or ""."""

    def __init__(self, parts: Sequence[Part], not_ready: Callable[[], str]) -> None:
        self._parts = parts
        self._not_ready = not_ready
        failed = "settling failed"
        self.loop = Loop("settle", self._tick, _EVERY, log=log, failed=failed, at_once=True)

    def liveness(self) -> Mapping[str, str]:
        """Return whether the thread is stuck."""
        is_stuck = self.loop.seconds_since_progress() > STUCK
        return {"settling": "its thread is stuck" if is_stuck else ""}

    def _tick(self) -> None:
        for part in self._parts:
            try:
                part.tick(not self._not_ready())
            except Exception:
                # The other parts must go on: else a charge in doubt would stay for ever.
                log.exception(Line("settling failed", part=type(part).__name__))
