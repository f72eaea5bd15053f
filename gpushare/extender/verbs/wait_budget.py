"""A short wait before a refusal, for changes that our watch may still deliver.

kube-scheduler tries a pending pod again when its watch shows a deletion, perhaps before our watch
does. If filter refuses the pod then, the pod waits for the next event, up to five minutes. So
filter waits for a moment in case the ledger changes. Filter calls are serial in kube-scheduler, so
all waits together take only a small share of the time: pods that never fit must not delay other
pods.
"""

import time
from collections.abc import Callable

_CHECK_INTERVAL = 0.004
"""Seconds; a check costs 0.1 ms when the ledger has changed, and nothing otherwise."""


class WaitBudget:
    """A budget of waits: at most `hold` seconds each, and together `share` of the time.

    Unused time accumulates up to `max_balance` seconds: kube-scheduler may try a pod two or three
    times before the deletion arrives, and only the last wait finds the room.
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
        """Wait for the condition within the budget; return whether it became true."""
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
