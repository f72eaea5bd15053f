"""What the loops of this package need of an API server: one call and one stream.

Knows shapes only. The true one is `gpushare.kube.client.KubeClient`; a simulation brings another.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class Lines(Protocol):
    """An open watch: its lines as they come."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines; ends when the server ends cleanly, raises ApiUnavailable when cut."""
        ...

    def close(self) -> None:
        """End the iteration at once; may be called by any thread, and twice."""
        ...


class Calls(Protocol):
    """HTTP calls whose failures are `gpushare.errors.ApiError`, and nothing else."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        """Return the body of a 2xx answer; `timeout` is seconds for the whole call.

        ApiUnreachable says that nothing was sent; what would leave later than `not_after`, by the
        clock that the caller has too (time.monotonic, but in a simulation), is not.
        """
        ...


class Api(Calls, Protocol):
    """Such calls, and watches."""

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> AbstractContextManager[Lines]:
        """Return an open watch: seconds to get an answer, seconds of silence it may have."""
        ...
