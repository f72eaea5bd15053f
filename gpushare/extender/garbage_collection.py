"""Garbage collection that does not delay requests, and freed memory that goes back to the system.

Reference counts free nearly everything; only cycles need the collector. A full collection visits
every object, with the interpreter lock held: 70 to 200 ms with 10,000 pods, several times whenever
many objects are made at once, as in an audit. So `tick` runs full collections, once an hour; the
youngest generation, which has nearly all garbage, is collected as always, some thousand objects at
a time.

glibc keeps freed memory at the end of the heap, up to twice the largest block that was ever freed
(mallopt(3), M_MMAP_THRESHOLD), and whole pages between blocks for good. A large request now and
then would let the process grow for hours. So `tick` calls malloc_trim once a minute. With glibc's
own thresholds the same megabytes would be taken and given back for each page of a list, and the
kernel would clear them again: for 100,000 pods 100,000 page faults. So `start` sets fixed sizes.
"""

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable

from gpushare.daemon.part import Part

_COLLECT_EVERY = 3600.0
_TRIM_EVERY = 60.0
"""Seconds."""

_YOUNG, _MIDDLE, _WHOLE = 10_000, 10, 1_000_000
"""Objects made, net, for a collection of the youngest, and how many of these for a larger one."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""As in glibc's malloc.h."""

_LARGE = 4 << 20
"""Size in bytes from which glibc maps a block outside the heap and unmaps the block when freed; of
the heap glibc keeps twice as much. A page of 500 pods has 1 to 3 MiB.
"""


class GarbageCollection(Part):
    """Collects garbage and gives memory back. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._collected = self._trimmed = 0.0
        self._trim = _of_glibc("malloc_trim")

    def start(self) -> None:
        """Leave whole collections to `tick`."""
        gc.set_threshold(_YOUNG, _MIDDLE, _WHOLE)
        set_size = _of_glibc("mallopt")
        set_size(_M_MMAP_THRESHOLD, _LARGE)
        set_size(_M_TRIM_THRESHOLD, 2 * _LARGE)
        self._collected = self._trimmed = self._clock()

    def tick(self, _is_ready: bool = False, /) -> None:
        """Collect once an hour; give memory back once a minute."""
        now = self._clock()
        if now >= self._collected + _COLLECT_EVERY:
            self._collected = now
            gc.collect()
        if now >= self._trimmed + _TRIM_EVERY:
            self._trimmed = now
            self._trim(0)


def _of_glibc(name: str) -> Callable[..., object]:
    """Return glibc's function of that name; if the C library has none, one that does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
        return function
    return lambda *_: 0
