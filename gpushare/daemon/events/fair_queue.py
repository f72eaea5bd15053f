"""A bounded queue of events in which no namespace takes the place or the turn of another."""

import threading
from collections import OrderedDict, deque

from gpushare.daemon.events.aggregator import PendingEvent


class FairQueue:
    """Events by namespace, taken out in turn; any thread may call any method.

    most: events in all. most_of_one: of one namespace. evicted: those that made room for others.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._waiting: OrderedDict[str, deque[PendingEvent]] = OrderedDict()
        self._count = self.evicted = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, namespace: str, event: PendingEvent) -> bool:
        """Return whether there was room for the event; never waits.

        If the queue is full, the newest event of the namespace with most of them makes room for one
        that has fewer.
        """
        with self._changed:
            own = self._waiting.get(namespace, ())
            if len(own) >= self._most_of_one:
                return False
            if self._count >= self._most:
                longest = max(self._waiting.values(), key=len)
                if len(longest) <= len(own) + 1:
                    return False
                longest.pop()
                self._count -= 1
                self.evicted += 1
            self._waiting.setdefault(namespace, deque()).append(event)
            self._count += 1
            self._changed.notify()
            return True

    def get(self) -> PendingEvent | None:
        """Return the next event, waiting for one; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._closed)
            if self._closed:
                return None
            namespace, events = self._waiting.popitem(last=False)
            event = events.popleft()
            self._count -= 1
            if events:
                self._waiting[namespace] = events
            return event

    def close(self) -> None:
        """Let `get` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
