"""Python's garbage collection, kept away from requests.

Reference counts free nearly everything; only cycles need the collector. Its full collections look
at every object, with the interpreter lock held: 70 to 200 ms with 10,000 pods, several times
whenever many objects are made at once, as in an audit. So full collections are left to `tick`, once
an hour; the youngest generation, which has nearly all garbage, is collected as always, some
thousand objects at a time.
"""

import gc

_EVERY = 3600.0
"""Seconds."""

_YOUNG, _MIDDLE, _WHOLE = 10_000, 10, 1_000_000
"""Objects made, net, for a collection of the youngest, and how many of these for a larger one."""


class GarbageCollection:
    """Call `start` in the process that serves, and then `tick` now and then, from one thread."""

    def __init__(self) -> None:
        self._collected = 0.0

    def start(self, now: float) -> None:
        """Leave whole collections to `tick`. now: seconds, of a clock that only goes forward."""
        gc.set_threshold(_YOUNG, _MIDDLE, _WHOLE)
        self._collected = now

    def tick(self, now: float) -> None:
        """Collect, if an hour has passed since the last time."""
        if now >= self._collected + _EVERY:
            self._collected = now
            gc.collect()
