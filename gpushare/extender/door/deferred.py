"""The body of an answer that is made later: the request waits, and no thread waits with it.

Knows WSGI; nothing of what is served. Tested in `tests/unit/extender/door/test_deferred.py`.
"""

from collections.abc import Iterator
from concurrent.futures import Future


class DeferredBody:
    """A body that a WSGI application returns before it is there.

    Any WSGI server may iterate over it, and waits. The worker of this package (worker.py) looks at
    the future, and gives its thread to other requests meanwhile.
    """

    def __init__(self, future: Future[bytes]) -> None:
        self.future = future

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body once it is there."""
        yield self.future.result()
