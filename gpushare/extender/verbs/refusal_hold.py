"""A short wait before a refusal, for changes that are on their way.

kube-scheduler asks again when it sees a pod deleted, and it may see that before our watch does. If
the pod is refused then, it waits for the next event, up to five minutes. So a refusal is held for a
moment, in case the ledger changes. Filter calls are serial in kube-scheduler, so all holds together
may take only a small share of the time: hopeless pods must not slow down the others.
"""

import time
from collections.abc import Callable

_CHECK_INTERVAL = 0.004
"""Seconds; a look costs a tenth of a millisecond when the ledger has changed, else nothing."""


class RefusalHold:
    """The time that refusals may be held: at most `hold` seconds at once, and `share` of all time.

    Up to `max_balance` seconds are saved: a pod is refused two or three times before the deletion
    that it waits for, and the hold that counts is the last.
    """

    def __init__(
        self,
        hold: float = 0.1,
        share: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        max_balance: float = 1.0,
    ) -> None:
        self._hold = hold
        self._share = share
        self._clock = clock
        self._sleep = sleep
        self._max_balance = max(max_balance, hold)
        self._balance = self._max_balance
        self._since = clock()

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Return whether the condition became true within the time that may be waited now."""
        begin = self._clock()
        self._balance = min(self._max_balance, self._balance + (begin - self._since) * self._share)
        self._since = begin
        deadline = begin + min(self._hold, self._balance)
        try:
            while not condition():
                if self._clock() >= deadline:
                    return False
                self._sleep(_CHECK_INTERVAL)
            return True
        finally:
            # Waiting longer than allowed is taken from the balance too.
            self._balance -= self._clock() - begin
