"""The body of a later answer: the request waits, and no thread waits.

Knows WSGI, not the application. Tested in `tests/unit/extender/door/test_deferred.py`.
"""

from collections.abc import Iterator
from concurrent.futures import Future


class DeferredBody:
    """A body that a WSGI application returns before the answer exists.

    A WSGI server that iterates over the body waits. The worker of this package (worker.py) looks at
    the future instead, and gives the thread to other requests meanwhile.
    """

    def __init__(self, future: Future[bytes]) -> None:
        self.future = future

    def __iter__(self) -> Iterator[bytes]:
        """Wait for the answer, and yield the body."""
        yield self.future.result()
