"""The scheduling cycles in the order of their ends: the last ones, and a file of all.

The file has one JSON object per line.

Tested in `localcluster/tests/test_scheduler_trace.py`.
"""

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare_localcluster.scheduler.schedule_one import Tracer
from gpushare_localcluster.scheduler.trace import CycleTrace

_MOST_KEPT = 1000


class LastCycles:
    """The last cycles, for expectations; any thread may add cycles."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cycles = deque[CycleTrace](maxlen=_MOST_KEPT)

    def add(self, cycle: CycleTrace) -> None:
        """Add an ended cycle."""
        with self._lock:
            self._cycles.append(cycle)

    def clear(self) -> None:
        """Remove all cycles, before another scenario."""
        with self._lock:
            self._cycles.clear()

    def all(self) -> Sequence[CycleTrace]:
        """Return the cycles in the order of their ends."""
        with self._lock:
            return tuple(self._cycles)


@contextlib.contextmanager
def cycle_log(file: Path | None) -> Iterator[Tracer]:
    """Yield a function that writes a cycle, from any thread; without a file it does nothing.

    Raises SettingsError for a file that cannot be written.
    """
    if file is None:
        yield lambda _cycle: None
        return
    lock = threading.Lock()
    try:
        out = file.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error

    def write(cycle: CycleTrace) -> None:
        with lock:
            print(json.dumps(cycle.document()), file=out, flush=True)

    with out:
        yield write
