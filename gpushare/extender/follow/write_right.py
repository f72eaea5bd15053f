"""Which writes to the API server are worth a try, by the errors of earlier writes.

The API server answers 403 if the account lacks the right to such writes: then no write of this kind
succeeds. The API server also answers 403 if a quota, a policy or a webhook refuses one object: then
writes of other objects may succeed, and this one later. Only the message tells the two apart.

Tested in `tests/unit/extender/follow/test_rights.py`.
"""

import math
import re
from collections.abc import Callable, Hashable

from gpushare.errors import ApiError

PAUSE = 600.0
"""Seconds without a write after the right was missing; the longest pause of one write."""
FIRST_REST = 10.0
"""Seconds until a write that was refused is tried again; each further time twice as long."""

REFUSED = (400, 401, 403, 405, 422)
"""Statuses of a write that the API server refuses."""

_BY_AUTHORIZER = re.compile(r' is forbidden: User ".*" cannot \S+ (?:resource|path) "')
"""The message of kube-apiserver for a missing right, of any authorizer: RBAC, webhook, node."""


def lacks_right(error: ApiError) -> bool:
    """Return whether the account may not make such writes at all, whatever is written."""
    return error.refusal == 401 or (
        error.refusal == 403 and _BY_AUTHORIZER.search(str(error)) is not None
    )


class WriteRight:
    """Decides by earlier errors whether a write is worth a try; each write has a key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._missing_until = -math.inf
        self._rests: dict[Hashable, tuple[float, float]] = {}
        """By key: the end of the pause of the write, and the length of the pause, in seconds."""

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
        elif error.refusal in REFUSED:
            # One that was not tried for so long is another matter by now.
            self._rests = {k: pause for k, pause in self._rests.items() if now < pause[0] + PAUSE}
            _, last = self._rests.get(key, (0.0, FIRST_REST / 2))
            pause = min(2 * last, PAUSE)
            self._rests[key] = now + pause, pause

    def taken(self, key: Hashable) -> None:
        """Note that the API server took the write."""
        self._rests.pop(key, None)
