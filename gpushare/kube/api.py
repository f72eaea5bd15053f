"""The interface of an API server that the loops of this package use: one call and one stream.

Only protocols. The real one is `gpushare.kube.client.KubeClient`; a simulation has another.

Tested in `tests/unit/kube/test_reflector.py`.
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


class Getter(Protocol):
    """What gets objects and lists from the API server."""

    def request(self, method: str, path: str, *, query: Mapping[str, str], timeout: float) -> bytes:
        """Return the body of a 2xx answer. Raises ApiError."""
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

        ApiUnreachable says that nothing was sent. Nothing is sent after `not_after`, by the
        caller's clock (time.monotonic, except in a simulation).
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
        """Return an open watch; time-outs: seconds until the answer, and of silence after it."""
        ...
