"""Requests without an answer for such a long time that only a restart helps.

A verb ends within seconds: bind has a budget, filter a limited hold, an answer a deadline. A
request that runs for a minute hangs for ever, and one that waits a minute for a thread waits for
those that hang. Knows neither time nor threads: it counts observations, which the settle thread
makes once a second, so a process that was stopped for an hour has no stuck requests.
"""

from collections.abc import Iterable

MAX_LOOKS = 60
"""Observations at which a request may be there before it counts as stuck."""

PendingRequest = tuple[int, float]
"""A request that waits for a thread or is being answered: its connection, and since when."""


class UnansweredRequests:
    """Counts the observations in a row at which each request was there."""

    def __init__(self, max_looks: int = MAX_LOOKS) -> None:
        self._max_looks = max_looks
        self._looks: dict[PendingRequest, int] = {}

    def observe(self, pending: Iterable[PendingRequest]) -> None:
        """Count the requests that have no answer yet."""
        self._looks = {each: self._looks.get(each, 0) + 1 for each in pending}

    def stuck(self) -> str:
        """Return a text for the liveness check about requests that hang, or ""."""
        stuck = sum(looks > self._max_looks for looks in self._looks.values())
        return f"requests without an answer for {self._max_looks} s: {stuck}" if stuck else ""
