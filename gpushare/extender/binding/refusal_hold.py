"""How long a refusal may wait for news that is on its way.

kube-scheduler asks again when it sees a pod deleted, and it may see that before our watch does.
Refused then, the pod waits for the next event, up to five minutes. So a refusal is held for a
moment, in case the books change. Filter calls are serial in kube-scheduler, so all holds together
may take only a small share of the time: hopeless pods must not slow down the others.
"""

import time
from collections.abc import Callable

_LOOK_EVERY = 0.004
"""Seconds; a look costs a tenth of a millisecond when the books have changed, else nothing."""


class Patience:
    """Hands out waiting time: at most `hold` seconds at once, and `share` of all time.

    Up to `most` seconds are saved up: a pod is refused two or three times before the deletion that
    it waits for, and the hold that counts is the last.
    """

    def __init__(
        self,
        hold: float = 0.1,
        share: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        most: float = 1.0,
    ) -> None:
        self._hold = hold
        self._share = share
        self._clock = clock
        self._sleep = sleep
        self._most = max(most, hold)
        self._saved = self._most
        self._since = clock()

    def until(self, done: Callable[[], bool]) -> bool:
        """Whether it came true before the time that may be waited now was over."""
        begin = self._clock()
        self._saved = min(self._most, self._saved + (begin - self._since) * self._share)
        self._since = begin
        deadline = begin + min(self._hold, self._saved)
        try:
            while not done():
                if self._clock() >= deadline:
                    return False
                self._sleep(_LOOK_EVERY)
            return True
        finally:
            # What was waited too long is owed.
            self._saved -= self._clock() - begin
