"""What threads share that write to the API server again and again: rounds, and which writes are
worth a try.

The API server answers 403 for want of a right, and then nothing of the kind will be taken. It
answers 403 as well where a quota, a policy or a webhook refuses one object; others may be taken,
and this one later. Both are the same Status but for the words.

Tested in `tests/unit/extender/follow/test_rounds.py` and
`tests/unit/extender/follow/test_rights.py`.
"""

import logging
import math
import re
import threading
from collections.abc import Callable, Hashable

from gpushare.errors import ApiError

log = logging.getLogger("gpushare.serve")

PAUSE = 600.0
"""Seconds without a write once the right to it was missing; the longest rest of one write."""
FIRST_REST = 10.0
"""Seconds until a write that was refused is tried again; each further time twice as long."""

REFUSED = (400, 401, 403, 405, 422)
"""Statuses by which the API server says that it does not take this write."""

_BY_AUTHORIZER = re.compile(r' is forbidden: User ".*" cannot \S+ (?:resource|path) "')
"""What kube-apiserver writes whoever has judged the right: RBAC, a webhook, a node's."""


def lacks_right(error: ApiError) -> bool:
    """Return whether the account may not make such writes at all, whatever is written."""
    return error.status == 401 or (
        error.status == 403 and _BY_AUTHORIZER.search(str(error)) is not None
    )


class WriteRight:
    """Which of some writes are worth a try, as far as their errors tell; each write has a key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._missing_until = -math.inf
        self._rests: dict[Hashable, tuple[float, float]] = {}
        """By key, until when it rests and for how long."""

    @property
    def missing(self) -> bool:
        """Whether the right was missing a short while ago: none is worth a try."""
        return self._clock() < self._missing_until

    def rests(self, key: Hashable) -> bool:
        """Return whether this write was refused by itself a short while ago."""
        until, _ = self._rests.get(key, (-math.inf, 0.0))
        return self._clock() < until

    def failed(self, error: ApiError, key: Hashable = None) -> None:
        """Note why a write was not taken."""
        now = self._clock()
        if lacks_right(error):
            self._missing_until = now + PAUSE
        elif error.status in REFUSED:
            # One that was not tried for so long is another matter by now.
            self._rests = {k: rest for k, rest in self._rests.items() if now < rest[0] + PAUSE}
            _, last = self._rests.get(key, (0.0, FIRST_REST / 2))
            rest = min(2 * last, PAUSE)
            self._rests[key] = now + rest, rest

    def taken(self, key: Hashable) -> None:
        """Note that it was taken."""
        self._rests.pop(key, None)


class Rounds:
    """Calls `round` in a thread of this name, again and again, sooner if it could not do all.

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
