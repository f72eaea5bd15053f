"""How many binds are under way at once, and how long filter waits while they are many.

A bind waits for the API server, and holds a thread. If kube-scheduler decides faster than pods are
bound, binds pile up until one has to be refused, and kube-scheduler tries its pod again seconds
later. So while there are many, filter waits for a bind to end: kube-scheduler calls filter for one
pod after the other, and then decides no faster than pods are bound.
"""

import threading

_MAX_WAIT = 0.1
"""Seconds that filter waits at most: all pods of a kube-scheduler wait with it."""


class BindSlots:
    """The binds under way: at most `most`. Three quarters of that are many.

    Every method may be called from any thread. max_wait: seconds that filter waits at most.
    """

    def __init__(self, most: int, max_wait: float = _MAX_WAIT) -> None:
        self._most, self._max_wait = most, max_wait
        self._under_way = 0
        self._ended = threading.Condition()

    def take(self) -> bool:
        """Return whether one more bind may be under way; if so, `free` must follow."""
        with self._ended:
            if self._under_way == self._most:
                return False
            self._under_way += 1
            return True

    def free(self) -> None:
        """Note that a bind has ended."""
        with self._ended:
            self._under_way -= 1
            self._ended.notify_all()

    def wait_while_many(self) -> None:
        """Wait until the binds under way are not many, at most `max_wait` seconds."""
        with self._ended:
            self._ended.wait_for(lambda: self._under_way < self._most * 3 / 4, self._max_wait)
