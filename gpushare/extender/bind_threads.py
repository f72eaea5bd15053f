"""The threads behind the binder: these go on with the binds that wait at the gate, whose calls
keep no thread.

Tested in `tests/integration/test_gate.py` and `tests/integration/test_bind_faults.py`.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart, Part
from gpushare.extender.verbs.bind.binder import Binder

log = logging.getLogger("gpushare.serve")

GATE_WRITERS = 16
"""Threads that send the Bindings of groups that are whole."""
_RETRY_SECONDS = 1.0


class GateWriters(Part):
    """The pool of threads that sends the Bindings of a group that has passed the gate."""

    _pool: ThreadPoolExecutor
    """Made by `start`: no thread survives a fork."""

    def start(self) -> None:
        """Make the pool."""
        self._pool = ThreadPoolExecutor(GATE_WRITERS, "gate-writer")

    def run(self, send: Callable[[], None]) -> None:
        """Call `send` in a thread of the pool."""
        self._pool.submit(send)


class BindKeeper(LoopPart):
    """Ends due waits at the gate, and settles the charges in doubt."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        failed = "the gate failed"
        self.loop = Loop("gate", self._guard, _RETRY_SECONDS, log=log, failed=failed, at_once=True)

    def tick(self, _is_ready: bool, /) -> None:
        """Read the pods of charges in doubt."""
        self._binder.settle_overdue()

    def state(self) -> Mapping[str, float]:
        """Return the values of the binder for metrics."""
        return self._binder.state()

    def _guard(self) -> float:
        self._binder.guard_gate()
        return 0.0
